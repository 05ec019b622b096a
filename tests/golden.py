"""Golden text: what a stage prints is kept in a file, and a change to it is reviewed as a diff.

`LITZ_BLESS=1 pytest ...` rewrites the files instead of comparing.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

BLESS = "LITZ_BLESS"


def check(name: str | Path, text: str) -> None:
    """Compares `text` with a golden file: a `Path` as given, a name as `golden/NAME.txt` beside the calling test."""
    if isinstance(name, Path):
        path = name
    else:
        path = Path(sys._getframe(1).f_code.co_filename).parent / "golden" / f"{name}.txt"
    if os.environ.get(BLESS) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    if not path.exists():
        raise AssertionError(f"there is no golden file {path.name}: run again with {BLESS}=1, and review it")
    expected = path.read_text()
    if text != expected:
        diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), path.name, "printed", lineterm="")
        raise AssertionError("\n".join([f"{path.name} differs ({BLESS}=1 rewrites it):", *diff]))
