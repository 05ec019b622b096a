"""`litz explain` on the command line: a page, or one message and a status that is not zero."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from litz.cli import main
from litz.explanation.page import read_page

GOOD = """
import sys, torch
assert __name__ == "__main__" and sys.argv[1:] == ["--epochs", "2"]
from beside import f
compiled = torch.compile(f, backend="litz", dynamic=False)
for length in (8, 12):
    compiled(torch.randn(length))
"""


@pytest.fixture(autouse=True)
def anew() -> None:
    torch._dynamo.reset()


def run(tmp_path: Path, text: str, *more: str) -> int:
    (tmp_path / "script.py").write_text(text)
    return main(["explain", "-o", str(tmp_path / "page.html"), str(tmp_path / "script.py"), *more])


def test_a_scripts_compiles_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("def f(x):\n    return x.sin() + 1\n")
    path, argv = list(sys.path), list(sys.argv)
    try:
        assert run(tmp_path, GOOD, "--epochs", "2") == 0
    finally:
        sys.modules.pop("beside", None)
    assert (sys.path, sys.argv) == (path, argv)
    assert "wrote" in capsys.readouterr().out
    first, second = read_page(tmp_path / "page.html").pieces
    assert not first.again and second.again and "size mismatch" in second.why
    assert first.steps[0].lines[0].endswith("beside.py:2: return x.sin() + 1")
    # A page is made anew of the data of another.
    assert main(["explain", "-o", str(tmp_path / "again.html"), str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "again.html").read_text() == (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\ntorch.zeros(2) @ torch.zeros(3)\n", "raised RuntimeError"),
        ("def f(:\n", "raised SyntaxError"),
        ("raise SystemExit(3)\n", "ended with 3"),
        ("print(1)\n", "nothing was compiled"),
    ],
)
def test_no_page_is_a_message_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert run(tmp_path, text) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_the_line_that_raised_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "x = 1\nassert x == 2\n")
    assert "script.py:2: assert x == 2" in capsys.readouterr().err


def test_a_page_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import base64
    import gzip
    import json

    data = base64.b64encode(gzip.compress(json.dumps({"format": 0, "made": {"litz": "0.0.1"}}).encode())).decode()
    page = tmp_path / "old.html"
    page.write_text(f'<script type="application/gzip" id="data">{data}</script>')
    assert main(["explain", "-o", str(tmp_path / "new.html"), str(page)]) == 1
    assert "made by Litz 0.0.1, in format 0" in capsys.readouterr().err
    assert not (tmp_path / "new.html").exists()


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "none.py")]) == 1
    assert "there is no file" in capsys.readouterr().err
