"""`litz` on the command line: this machine, what lasts, how fast a model is, and what went wrong, made small.

    litz doctor                     what this machine has, and whether Litz works here
    litz explain SCRIPT             a page about what Litz does with a script's model
    litz bench SCRIPT               a script's model: eager, inductor and Litz
    litz bisect GRAPH               which optimisation a failure comes with
    litz minify GRAPH               the smallest program that fails alike, as one file
    litz cache list                 the values of the cache, latest use first
    litz cache size
    litz cache explain [KEY]        why a function was compiled: how it differs from the nearest that was there before
    litz cache clear
    litz cache export FILE          the whole cache as one file, for other machines of the same kind
    litz cache import FILE

A GRAPH is a folder that `litz.debug_compile` has made: torch.compile(model, backend=litz.debug_compile).
The cache is the one that `LITZ_CACHE_DIR` names, or the user's own.

A command that finds something wrong, or cannot do its work, ends with a status other than zero.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from litz.errors import CacheError, LitzError

if TYPE_CHECKING:
    from litz.debug.bench import Row
    from litz.runtime.cache import Cache


def _commands(help: str, epilog: str | None = None) -> typer.Typer:
    return typer.Typer(
        help=help, epilog=epilog, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
    )


_app = _commands("Litz compiles PyTorch programs: what there is to look at, and to look after.")
_cache_app = _commands("The persistent cache.", "Example: litz cache explain")
_app.add_typer(_cache_app, name="cache")

Graph = Annotated[Path, typer.Argument(help="What litz.debug_compile has saved, or a file of `litz minify`.")]
Folder = Annotated[Path | None, typer.Option(help="Keeps all that is tried, to go on from (default: beside).")]
Limit = Annotated[float, typer.Option(help="Seconds of work after which a run counts as one without end.")]
Slower = Annotated[float | None, typer.Option(help="How many times eager's time is a failure.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """The status that the process ends with."""
    try:
        _app(args=None if arguments is None else list(arguments), prog_name="litz")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        return 1
    except (LitzError, OSError) as error:  # a path that is not there, a full disk
        print(f"litz: {error}", file=sys.stderr)
        return 1
    return 0


@_app.command(epilog="Example: litz doctor")
def doctor() -> None:
    """What this machine has, and whether Litz works here."""
    from litz.debug.doctor import examine

    findings = examine()
    for finding in findings:
        print(finding)
    if any(not finding.well for finding in findings):
        raise typer.Exit(1)


@_app.command(
    epilog="Example: litz explain --output page.html train.py --epochs 1",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
)
def explain(
    script: Annotated[Path, typer.Argument(help="A script, or a page that was made before.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("litz_explain.html"),
) -> None:
    """A page about what Litz does with a script's model."""
    from litz.explanation.script import explain_file

    explain_file(script, output, arguments or [])
    print(f"wrote {output}: {output.stat().st_size:,} bytes")


@_app.command(epilog="Example: litz bench my_model.py --training --seconds 5")
def bench(
    script: Annotated[Path, typer.Argument(help="Defines a function or module, and what to call it with.")],
    model: Annotated[str, typer.Option(help="Its name in the script.")] = "model",
    inputs: Annotated[
        str, typer.Option(help="The name of its inputs: a tensor, a tuple, or a dict of keywords.")
    ] = "inputs",
    training: Annotated[bool, typer.Option("--training", help="Forward and backward.")] = False,
    seconds: Annotated[float, typer.Option(help="For each contender.")] = 2.0,
) -> None:
    """A script's model: eager, inductor and Litz, taking turns."""
    from litz.debug.bench import LITZ, bench

    rows = bench(script, model=model, inputs=inputs, training=training, seconds=seconds)
    _print_rows(rows)
    if any(row.failed for row in rows if row.contender == LITZ):
        raise typer.Exit(1)


def _print_rows(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("")
    for name in ("first call", "best", "median", "× eager", "difference"):
        table.add_column(name, justify="right")
    eager = rows[0].best
    for row in rows:
        if row.failed:
            table.add_row(row.contender, "failed")
            continue
        times = (f"{row.first:.2f} s", f"{row.best * 1e3:.3f} ms", f"{row.median * 1e3:.3f} ms")
        table.add_row(row.contender, *times, f"{eager / row.best:.2f}", f"{row.apart:.1e}")
    console.print(table)
    for row in rows:
        if row.failed:
            console.print(f"{row.contender} failed: {row.failed}", markup=False)


@_app.command(epilog="Example: litz bisect litz_debug/graph_0 --limit 30")
def bisect(graph: Graph, folder: Folder = None, limit: Limit = 60.0, slower_than: Slower = None) -> None:
    """Which optimisation a failure comes with."""
    from litz.debug.minify import bisect

    symptom, culprit = bisect(graph, folder=folder, limit=limit, slower_than=slower_than)
    print(symptom)
    print(f"it comes with {culprit}" if culprit else "it is there without any optimisation")


@_app.command(epilog="Example: litz minify litz_debug/graph_0 --limit 30")
def minify(graph: Graph, folder: Folder = None, limit: Limit = 60.0, slower_than: Slower = None) -> None:
    """The smallest program that fails alike, as one file."""
    from litz.debug.minify import minify

    print(minify(graph, folder=folder, limit=limit, slower_than=slower_than))


# -- the cache --------------------------------------------------------------------------------------
def _cache() -> Cache:
    from litz.runtime.cache import cache_of

    cache = cache_of({**os.environ, "LITZ_CACHE": "1"})
    if cache is None:
        raise typer.Exit(1)  # why was said by a warning
    return cache


@_cache_app.command("list", epilog="Example: litz cache list")
def cache_list() -> None:
    """Its values, latest use first."""
    for found in sorted(_cache().files(), key=lambda found: -found.used):
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.used))
        print(f"{found.kind:9} {found.key}  {found.bytes:>12,} bytes  last used {used}")


@_cache_app.command("size", epilog="Example: litz cache size")
def cache_size() -> None:
    """How many bytes it takes."""
    cache = _cache()
    files = list(cache.files())
    counts = Counter(found.kind for found in files)
    kinds = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(counts.items()))
    total = sum(found.bytes for found in files)
    print(f"{cache.folder}: {total:,} of {cache.most_bytes:,} bytes in {len(files)} files ({kinds or 'none'})")


@_cache_app.command("clear", epilog="Example: litz cache clear")
def cache_clear() -> None:
    """Delete all of it."""
    print(f"deleted {_cache().clear()} files")


@_cache_app.command("explain", epilog="Example: litz cache explain 3f2a")
def cache_explain(
    key: Annotated[str | None, typer.Argument(help="The beginning of one; the latest if left out.")] = None,
) -> None:
    """Why a function was compiled: how it differs from the nearest that was there before."""
    cache = _cache()
    functions = [found for found in sorted(cache.files(), key=lambda found: -found.made) if found.kind == "function"]
    asked = next((found for found in functions if key is None or found.key.startswith(key)), None)
    if asked is None:
        print("there is no such function in the cache" if key else "there is no function in the cache")
        raise typer.Exit(1)
    earlier = [found for found in functions if found.made <= asked.made and found.key != asked.key]
    print(f"{asked.key}")
    differences = cache.differences_among(asked, earlier)
    if not differences:
        print("  the first of its kind: nothing that was there before is like it")
    for difference in differences:
        print(f"  {difference}")


@_cache_app.command("export", epilog="Example: litz cache export litz.cache")
def cache_export(file: Path) -> None:
    """The whole cache as one file, for other machines of the same kind."""
    if not file.absolute().parent.is_dir():
        raise CacheError(f"there is no folder {file.parent} for the file")
    print(f"wrote {_cache().export(file)} values to {file}")


@_cache_app.command("import", epilog="Example: litz cache import litz.cache")
def cache_import(file: Path) -> None:
    """Take over what another machine has exported."""
    print(f"took over {_cache().take_over(file)} values from {file}")


if __name__ == "__main__":
    sys.exit(main())
