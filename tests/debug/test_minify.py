"""Planted faults, made small: each in at most 40 lines that show the same fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import fx

from litz.debug.given import Given
from litz.debug.reproduction import Reproduction
from litz.debug.trials import Trials
from tests.debug.models import saved

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "LITZ_CACHE": "0"}


def litz(*arguments: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "litz", *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def setup_of(fault: str) -> str:
    return f"from tests.debug.faults import plant\nplant({fault!r})"


# What each is called, the most calls of operators that are left, and what it comes with.
FAULTS = {
    "wrong rule": ("wrong numbers in the results", 2, "tanh_is_nearly_sin"),
    "NaN": ("wrong NaN in the results", 2, "exp_of_nothing"),
    "wrong lowering": ("wrong numbers in the results", 2, None),
    "exception": ("CompileError in stage lower", 2, None),
    "signal": ("SIGSEGV in stage lower", 2, None),
}


LATER = [pytest.param(fault, marks=pytest.mark.long) for fault in FAULTS if fault != "wrong rule"]


@pytest.mark.parametrize("fault", ["wrong rule", *LATER])
def test_a_fault_is_made_small_and_stays_what_it_was(fault: str, tmp_path: Path) -> None:
    told, most_calls, rule = FAULTS[fault]
    graph = saved(tmp_path, setup_of(fault), blocks=2)
    said = litz("minify", graph)
    file = tmp_path / "graph_0_minified" / "minified.py"
    text = file.read_text()
    lines = text.splitlines()
    assert len(lines) <= 40, text
    assert sum(line.startswith("        ") and " = " in line for line in lines) <= most_calls, text
    assert told in said and told in lines[0]
    if rule is not None:
        assert rule in lines[0] and "faults.py:" in lines[0]
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    (alone / "shows.py").write_text(text)
    done = subprocess.run([sys.executable, "shows.py"], capture_output=True, text=True, cwd=alone, env=ENVIRONMENT)
    if fault == "signal":
        assert done.returncode < 0
    else:
        assert done.returncode == 1 and told in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_what_never_ends_is_found_by_its_stage(tmp_path: Path) -> None:
    graph = saved(tmp_path, setup_of("hang"))
    said = litz("bisect", graph, "--limit", 8)
    assert "no end in stage lower: it worked for 8 seconds" in said
    assert "it is there without any optimisation" in said


@pytest.mark.long
def test_slowness_is_a_failure_where_asked_for(tmp_path: Path) -> None:
    graph = saved(tmp_path, setup_of("slow"))
    assert "nothing is wrong" in litz("bisect", graph, code=1)
    said = litz("minify", graph, "--slower-than", 3)
    text = (tmp_path / "graph_0_minified" / "minified.py").read_text()
    assert "times eager's time" in said and "product_that_dawdles" in said
    assert sum(line.startswith("        ") and " = " in line for line in text.splitlines()) <= 2, text


def test_bisect_names_the_rule_and_its_file_in_training(tmp_path: Path) -> None:
    graph = saved(tmp_path, setup_of("wrong rule"), training=True)
    said = litz("bisect", graph)
    assert "wrong numbers in the results" in said
    assert "tanh_is_nearly_sin at " in said and "tests/debug/faults.py:" in said


@pytest.mark.long
def test_a_search_that_was_stopped_goes_on(tmp_path: Path) -> None:
    graph = saved(tmp_path, setup_of("exception"))
    first = litz("minify", graph)
    ledger = tmp_path / "graph_0_minified" / "tried.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    result = (ledger.parent / "minified.py").read_text()
    ledger.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:10])  # killed while it wrote
    again = litz("minify", graph)
    assert (ledger.parent / "minified.py").read_text() == result
    assert 0 < trials(again) < trials(first)
    assert trials(litz("minify", graph)) == 0
    assert len({json.loads(line)[0] for line in ledger.read_text().splitlines()}) == trials(first)


def trials(said: str) -> int:
    return int(said.rpartition("found in ")[2].partition(" trials")[0])


def test_what_does_not_fail_is_said_to_and_exits_with_one(tmp_path: Path) -> None:
    assert "there is no failure of Litz to look for: nothing is wrong" in litz("minify", saved(tmp_path), code=1)
    assert "there is no reproduction at" in litz("minify", tmp_path / "nowhere", code=1)
    (tmp_path / "other.py").write_text("x = 1\n")
    assert "does not define Graph" in litz("minify", tmp_path / "other.py", code=1)


def test_a_process_that_ends_in_eager_is_not_litz_s_affair(tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.call_function(os.abort)
    graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
    ends = Reproduction(graph, (Given((3,), torch.float32, "torch.randn({sizes})"),))
    with Trials(tmp_path, 10) as trials:
        found = trials(ends)
    assert found.kind == "invalid" and "ended by SIGABRT in eager" in found.told


ASKS = """
import sys
from pathlib import Path
import torch
from torch import fx
from litz.debug.given import Given
from litz.debug.reproduction import Reproduction
from litz.debug.trials import Trials

graph = fx.Graph()
graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
def asleep(name):
    setup = f"import os, pathlib, time\\npathlib.Path('{name}').write_text(str(os.getpid()))\\ntime.sleep(600)"
    return Reproduction(graph, (Given((3,), torch.float32, "torch.randn({sizes})"),), setup=setup)

count = int(sys.argv[1])
with Trials(Path("trials"), 600, count) as trials:
    trials.together([asleep("first"), asleep("second")][:count])
"""


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_is_tried_ends_with_who_asks_for_it(how: signal.Signals, count: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ASKS, str(count)]
    asks = subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, stderr=subprocess.DEVNULL)
    files = [tmp_path / name for name in ("first", "second")[:count]]
    while not all(file.exists() and file.read_text() for file in files):
        assert asks.poll() is None
        time.sleep(0.05)
    asks.send_signal(how)
    asks.wait()
    deadline = time.monotonic() + 20
    while any(is_running(int(file.read_text())) for file in files):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
