"""`litz explain`: a script run as ever, and a page about all that Litz compiled meanwhile.

In: the path of a script, or of a page that was made before. Out: the page.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from litz.errors import CallError, LitzError
from litz.explanation.breaks import counted_breaks
from litz.explanation.explain import explained, refuse_nothing
from litz.explanation.explanation import Explanation
from litz.explanation.gather import Gathering
from litz.explanation.page import read_page, write_page
from litz.watch import watching


def explain_file(file: Path, output: Path, arguments: Sequence[str] = ()) -> Explanation:
    """Writes the page of a script, run with these arguments; or of another page, as this version writes it."""
    if not file.is_file():
        raise CallError(f"there is no file {file}", hint="litz explain takes a script, or a page that it has made")
    if file.suffix in (".html", ".htm"):
        if arguments:
            told = f"{file} is a page, and takes no arguments: {' '.join(arguments)}"
            raise CallError(told, hint="options stand before it: litz explain -o new.html page.html")
        explanation = read_page(file)
    else:
        explanation = explain_script(file, arguments)
        if not explanation.pieces:
            refuse_nothing(explanation)
    write_page(explanation, output)
    refuse_nothing(explanation)
    return explanation


def explain_script(script: Path, arguments: Sequence[str] = ()) -> Explanation:
    gathering, before = Gathering(), counted_breaks()
    with watching(gathering), _as_main(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as left:
            if left.code not in (None, 0):
                raise CallError(f"{script} ended with {left.code!r}; no page was made") from left
        except LitzError:
            raise
        except Exception as error:
            raise _failed(script, error) from error
    return explained(gathering, script.name, before)


def _failed(script: Path, error: Exception) -> CallError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
    source = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None
    return CallError(
        f"{script} raised {type(error).__name__}: {error}",
        source=source,
        hint="no page was made: run it by itself first",
    )


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """What a script finds when it is run by itself."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [str(script), *arguments], [str(script.resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


__all__ = ["explain_file", "explain_script"]
