"""The command line: help with an example for each command, and a status other than zero for what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from litz.cli import main
from litz.debug.bench import EAGER, LITZ, bench
from litz.errors import CallError

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
inputs = torch.randn(4, 8)
other = {"x": torch.ones(3)}
def own(x): return x.exp() + 1
if __name__ == "__main__":
    raise RuntimeError("this is not for benchmarks")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands look at a cache of the test's own."""
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


COMMANDS = ["doctor", "bench", "bisect", "minify", "cache", *(
    f"cache {action}" for action in ("list", "size", "clear", "explain", "export", "import")
)]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"Example: litz {command}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nonsense"], ["doctor", "--loud"], ["bench"], ["cache", "nonsense"]])
def test_what_it_does_not_know_ends_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: litz" in capsys.readouterr().err


def test_the_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["cache", "size"]) == 0
    assert "0 files" in capsys.readouterr().out
    assert main(["cache", "list"]) == 0 and main(["cache", "clear"]) == 0
    assert main(["cache", "explain"]) == 1  # there is nothing to explain
    capsys.readouterr()
    assert main(["cache", "export", str(tmp_path / "none" / "file")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(["cache", "import", str(tmp_path / "file")]) == 1


@pytest.mark.parametrize("command", ["bisect", "minify", "bench"])
def test_a_path_that_is_not_there(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([command, str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("litz: ")


def test_importing_litz_imports_nothing_of_the_command_line() -> None:
    code = (
        "import sys, litz; print([m for m in ('torch', 'typer', 'rich', 'llvmlite', 'litz.cli') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "[]\n", done.stderr


def test_bench_measures_what_a_script_defines(script: Callable[[str], Path]) -> None:
    contenders = (EAGER, "aot_eager", LITZ)
    for training, names in ((False, {}), (True, {}), (False, {"model": "own", "inputs": "other"})):
        rows = bench(script(SCRIPT), training=training, seconds=0.01, contenders=contenders, **names)
        assert [row.contender for row in rows] == list(contenders)
        for row in rows:
            assert row.failed is None and 0 < row.best <= row.median and row.apart < 1e-5


def test_bench_prints_a_table(
    script: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litz.debug.bench.CONTENDERS", (EAGER, LITZ))
    assert main(["bench", str(script(SCRIPT)), "--seconds", "0.01", "--training"]) == 0
    said = capsys.readouterr().out
    assert "× eager" in said and "eager" in said and "litz" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise ValueError('no weights')", "raised ValueError: no weights"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("inputs = 1", "defines no 'model'"),
        ("model = 3\ninputs = 1", "'model' in"),
        ("def model(x): raise KeyError('k')\ninputs = 1", "raised KeyError"),
        ("def model(x): return x\ninputs = 1", "Litz compiled nothing"),
    ],
)
def test_bench_says_what_is_wrong_with_a_script(
    script: Callable[[str], Path], text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(text)
    with pytest.raises(CallError, match=told):
        bench(path, contenders=(EAGER, LITZ), seconds=0.01)


def test_a_script_that_raises_ends_with_one(script: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(script("raise ValueError('no weights')"))]) == 1
    said = capsys.readouterr()
    assert "raised ValueError: no weights" in said.err and said.out == ""
