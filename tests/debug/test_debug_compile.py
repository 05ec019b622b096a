"""`litz.debug_compile`: a graph becomes a folder that can be imported, and lines that minimise it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx

import litz
from litz.debug.reproduction import Reproduction
from tests.debug.models import Model, saved
from tests.debug.test_minify import ENVIRONMENT, setup_of
from tests.debug.test_ts_compile import captured


def test_the_folder_is_a_package_that_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, ids = Model(), torch.arange(35).view(5, 7) % 50
    torch._dynamo.reset()
    monkeypatch.chdir(tmp_path)
    compiled = torch.compile(model, backend=litz.debug_compile)
    torch.testing.assert_close(compiled(ids), model(ids))
    monkeypatch.syspath_prepend(str(tmp_path))
    package = importlib.import_module("litz_debug.graph_0")
    (result,) = package.Graph()(*package.inputs())
    torch.testing.assert_close(result, model(ids))
    said = capsys.readouterr().out
    assert "from litz.debug.minify import minify" in said and str(tmp_path / "litz_debug" / "graph_0") in said


@pytest.mark.long
def test_the_lines_that_are_printed_minimise_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, setup_of("exception"))
    said = capsys.readouterr().out
    script = said[said.index("# Litz saved") :]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert "CompileError in stage lower" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "graph_0_minified" / "minified.py").exists()


def test_each_graph_has_its_own_folder_and_calls_of_modules_are_looked_into(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    graph, x = fx.symbolic_trace(net), torch.randn(2, 3)
    for _ in range(2):
        compiled = litz.debug_compile(graph, [x], folder=tmp_path, verify=True)
        torch.testing.assert_close(compiled(x), net(x))
    for name in ("graph_0", "graph_1"):
        again = Reproduction.read(tmp_path / name, tmp_path / "kept")
        assert again.options == {"verify": True} and len(again.given) == 3
        assert sum(given.requires_grad for given in again.given) == 2


def test_large_inputs_are_described(tmp_path: Path) -> None:
    graph, given = captured(lambda x, i: (x[i] * 2,), torch.randn(3000, 2000), torch.tensor([1, 2, 2999]))
    compiled = litz.debug_compile(graph, given, folder=tmp_path)
    assert compiled(*given)[0].shape == (3, 2000)
    text = (tmp_path / "graph_0" / "__init__.py").read_text()
    assert "torch.randn((3000, 2000))" in text and "torch.load(" in text
    assert sum(file.stat().st_size for file in (tmp_path / "graph_0").iterdir()) < 100_000


def test_rules_of_your_own_are_written_by_their_name(tmp_path: Path) -> None:
    from tests.debug import faults

    graph, given = captured(lambda x: (x.tanh(),), torch.randn(3))
    litz.debug_compile(graph, given, folder=tmp_path, rules=(faults.tanh_is_nearly_sin,))
    text = (tmp_path / "graph_0" / "__init__.py").read_text()
    assert "'rules': (tests.debug.faults.tanh_is_nearly_sin, )" in text and "import tests.debug.faults" in text
    done = subprocess.run(
        [sys.executable, str(tmp_path / "graph_0" / "__init__.py")], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 1 and "wrong numbers in the results" in done.stdout, done.stdout + done.stderr


def test_mistakes(tmp_path: Path) -> None:
    graph, given = captured(lambda x: (x.sin(),), torch.randn(3))
    with pytest.raises(litz.OptionError, match="'fule'"):
        litz.debug_compile(graph, given, folder=tmp_path, fule=3)
    with pytest.raises(litz.OptionError, match="takes a graph, not a Linear"):
        litz.debug_compile(torch.nn.Linear(1, 1), given, folder=tmp_path)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
