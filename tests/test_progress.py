"""Progress: a line on the terminal where a compile takes long, and nowhere else."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import litz
from litz import progress
from litz.options import Options
from litz.progress import Progress, terminal


class Terminal(io.StringIO):
    """Remembers what was written, and says when something was."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        if "litz: compiling" in text:
            self.told.set()
        return written


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal on which the line appears at once."""
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("LITZ_PROGRESS", raising=False)
    torch._dynamo.reset()
    yield made


def compile_slowly(screen: Terminal, **options: Any) -> None:
    """One stage takes until the line is there."""

    def wait(_: object) -> None:
        assert screen.told.wait(20)

    litz.compile(lambda x: x.sin() + 1, before={"lower": wait}, **options)(torch.ones(3))


def test_a_compile_that_takes_long_shows_its_stage_and_share(screen: Terminal) -> None:
    compile_slowly(screen)
    lines = re.findall(r"\r\x1b\[2K([^\r]*)", screen.getvalue())
    assert re.fullmatch(r"litz: compiling .*(test_progress.py:\d+)?(: \w+, \d+%)?", lines[0])
    assert lines[-1] == "" and not threading_leftovers()  # taken away, by whoever wrote it


def test_a_backward_shows_too(screen: Terminal) -> None:
    times = []

    def wait_in_the_second(_: object) -> None:
        times.append(0)
        if len(times) == 2:
            screen.told.clear()
            assert screen.told.wait(20)

    x = torch.ones(3, requires_grad=True)
    litz.compile(lambda x: x.sin(), before={"lower": wait_in_the_second})(x).sum().backward()
    assert len(times) == 2 and screen.getvalue().endswith("\r\x1b[2K")


def test_silence_where_it_is_turned_off_or_nobody_looks(screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(**options: Any) -> None:
        torch._dynamo.reset()
        litz.compile(lambda x: x.sin() + 1, **options)(torch.ones(3))

    compile(progress=False)
    monkeypatch.setenv("LITZ_PROGRESS", "0")
    compile()
    monkeypatch.setenv("LITZ_PROGRESS", "1")
    monkeypatch.setenv("TERM", "dumb")
    compile()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(screen, "isatty", lambda: False)
    compile()
    assert screen.getvalue() == "" and not threading_leftovers()


def test_a_compile_that_fails_takes_the_line_away(screen: Terminal) -> None:
    def fail(_: object) -> None:
        assert screen.told.wait(20)
        raise RuntimeError("no")

    with pytest.raises(Exception, match="no"):
        litz.compile(lambda x: x.sin(), before={"fuse": fail}, verify=True)(torch.ones(3))
    assert screen.getvalue().endswith("\r\x1b[2K") and not threading_leftovers()


def test_nothing_is_started_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Progress", None)
    torch._dynamo.reset()
    litz.compile(lambda x: x.sin() + 1)(torch.ones(3))
    assert terminal(True, {}) is None  # pytest's own


def test_a_script_whose_output_goes_to_a_file_has_none_of_it() -> None:
    code = "import torch, litz.progress\nlitz.progress.AFTER_SECONDS = 0.0\n" \
           "torch.compile(lambda x: x.sin(), backend='litz')(torch.ones(3))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stderr == ""


def test_the_share_grows_to_the_whole() -> None:
    shown, shares = Progress("model.py:3", io.StringIO()), []
    for stage in ("trace", "rewrite_joint", "split", "lower", "fuse", "render", "build", "lower", "build", "load"):
        shown.at(stage)
        shares.append(shown.share)
    assert shares == sorted(shares) and shares[0] == 0.0 and 0.9 < shares[-1] <= 1.0
    backward = Progress("model.py:3", io.StringIO())
    for stage in ("rewrite_post_grad", "lower", "fuse", "accumulate", "plan_memory", "render", "build", "load"):
        backward.at(stage)
    assert backward.share == pytest.approx(1.0)


def test_a_long_line_is_cut() -> None:
    shown = Progress("a" * 200 + ".py:3", io.StringIO())
    shown.at("lower")
    assert len(shown.line(40)) == 39 and shown.line(40).endswith(": lower, 0%")


def test_the_option_is_of_the_environment() -> None:
    assert (
        Options.from_environment({}, {}).progress and not Options.from_environment({}, {"LITZ_PROGRESS": "0"}).progress
    )
    assert Options.from_environment({"progress": True}, {"LITZ_PROGRESS": "0"}).progress
    with pytest.raises(litz.OptionError, match="progress"):
        Options.parse({"progress": "yes"})


def threading_leftovers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "litz-progress"]
