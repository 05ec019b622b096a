"""Tools that are given what they cannot use say so, and end."""

from __future__ import annotations

from pathlib import Path

import pytest

import litz
from litz.cli import main
from litz.debug.bench import bench
from litz.errors import CallError, OptionError, ParseError
from litz.explanation.script import explain_file


@pytest.mark.parametrize("command", ["minify", "bisect"])
def test_a_file_that_raises_is_no_reproduction(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.py"
    file.write_text("raise ValueError('not for you')")
    assert main([command, str(file)]) == 1
    assert "is no reproduction: it raised ValueError: not for you" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_are_none(seconds: float, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not one to measure in"):
        bench(tmp_path / "script.py", seconds=seconds)


def test_a_page_takes_no_arguments(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.touch()
    with pytest.raises(CallError, match="takes no arguments"):
        explain_file(page, tmp_path / "new.html", ["-o", "other.html"])


def test_what_cannot_be_called_or_compared_with() -> None:
    with pytest.raises(OptionError, match="cannot be called"):
        litz.explain(3, path=None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not 3"):
        litz.pareto(len, beside=("eager", 3))  # type: ignore[arg-type]


def test_what_is_no_reproduction_is_told_of_by_name(tmp_path: Path) -> None:
    from litz.debug.reproduction import Reproduction

    with pytest.raises(ParseError, match="there is no reproduction"):
        Reproduction.read(tmp_path / "nothing.py", tmp_path)
