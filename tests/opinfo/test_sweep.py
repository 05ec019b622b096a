"""The sweep fails for what is wrong, and for what is left to eager without being listed, with and without gradients and
known sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.opinfo.left_to_eager import LEFT, SOME_LEFT, may_be_left
from tests.opinfo.sweep import Job, Sweep, report

LISTED = min(LEFT[""])


class Done(Sweep):
    """A sweep with its rows."""

    def __init__(self, rows: list[dict[str, Any]], symbolic: bool):
        super().__init__([("add", "float32")], None, "symbolic" if symbolic else "")
        self.made = rows

    def run(self) -> Iterator[Job]:
        self.rows += self.made
        yield self.todo.pop()


def row(operator: str, status: str, dtype: str = "float32") -> dict[str, Any]:
    return {"operator": operator, "dtype": dtype, "sample": "3", "status": status, "message": "no trace"}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "grad-float32"])
@pytest.mark.parametrize("status", ["wrong", "crashed", "eager"])
def test_fails_and_names_the_operator(
    status: str, dtype: str, symbolic: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row("sub", "right"), row("add", status, dtype)]
    assert report(Done(rows, symbolic), set(), tmp_path / "rows.json") == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert f"add[{dtype}]" in line and "sub" not in line


@pytest.mark.parametrize("symbolic", [False, True])
def test_passes_what_is_listed(symbolic: bool, tmp_path: Path) -> None:
    rows = [row("sub", "right"), row(LISTED, "eager"), row("sub", "refused"), row("sub", "known")]
    assert report(Done(rows, symbolic), set(), tmp_path / "rows.json") == 0


def test_is_listed_for_its_kind_of_run() -> None:
    of_gradients = next(name for name in LEFT["grad"] if name not in LEFT[""] and name not in SOME_LEFT[""])
    assert may_be_left(of_gradients, "grad-float32") and not may_be_left(of_gradients, "float32")
