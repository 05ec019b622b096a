"""Captures without the generator, with stand-ins for the driver: what is asked of it, in which order, and what is left
when something fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz.runtime import bare_graph
from litz.runtime.cuda_graph import Recorder, Uncapturable
from tests.graphs.test_recorder import Machine, machine

GRAPH, RUN, STREAM = 0x51, 0x52, 0x53
TO_POOL = "_cuda_beginAllocateCurrentThreadToPool"
AS_BEFORE, GIVEN_BACK = "_cuda_endAllocateToPool", "_cuda_releasePool"


class Driver:
    """`fails`: functions that do, and how."""

    def __init__(self, made: Machine):
        self.made, self.fails = made, dict[str, int]()

    def __getattr__(self, name: str) -> Any:
        def function(*args: Any) -> int:
            self.made.calls.append(name)
            if name == "cuStreamBeginCapture_v2":
                assert args[0].value == STREAM and args[1] == 1
            if name == "cuStreamEndCapture" and not self.fails.get(name):
                args[1]._obj.value = GRAPH
            if name == "cuGraphInstantiateWithFlags" and not self.fails.get(name):
                assert args[1].value == GRAPH
                args[0]._obj.value = RUN
            if name in ("cuGraphLaunch", "cuGraphExecDestroy"):
                assert args[0].value == RUN
            if name == "cuGetErrorString":
                args[1]._obj.value = b"a reason"
            return self.fails.get(name, 0)

        return function


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = machine(monkeypatch)
    found = Driver(made)
    monkeypatch.setattr(bare_graph, "cuda", lambda: found)
    monkeypatch.setattr(bare_graph, "make_current", lambda: None)
    monkeypatch.setattr(torch._C, TO_POOL, made.says(TO_POOL), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM + 1, raising=False)
    monkeypatch.setattr(torch.cuda.Stream, "cuda_stream", STREAM, raising=False)
    return found


def test_a_capture(driver: Driver) -> None:
    calls = driver.made.calls
    graph, results = Recorder(0).record(5, lambda: calls.append("run") or "results", False)
    begun = calls.index(TO_POOL)
    assert results == "results" and calls[begun:-2] == [
        TO_POOL, "cuStreamBeginCapture_v2", "run", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
        "cuGraphDestroy", AS_BEFORE,
    ]  # fmt: skip
    assert "begin" not in calls, "torch's own has the generator take part"
    graph.replay()
    assert calls[-1] == "cuGraphLaunch"
    del graph
    assert calls[-2:] == [GIVEN_BACK, "cuGraphExecDestroy"]


def test_work_that_fails(driver: Driver) -> None:
    def run() -> None:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(Uncapturable, match="out of memory"):
        Recorder(0).record(5, run, False)
    calls = driver.made.calls
    assert calls.count(AS_BEFORE) == calls.count(GIVEN_BACK) == calls.count("cuGraphExecDestroy") == 1


@pytest.mark.parametrize("where", ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])
def test_a_capture_that_breaks_off(driver: Driver, where: str) -> None:
    driver.fails[where] = 900
    recorder = Recorder(0)
    for _ in range(5):
        driver.made.calls.clear()
        with pytest.raises(Uncapturable, match=r"broke off: RuntimeError: .* a reason \(900\)"):
            recorder.record(5, lambda: None, False)
        calls = driver.made.calls
        assert calls.count(AS_BEFORE) == calls.count(GIVEN_BACK) == 1 and "cuGraphExecDestroy" not in calls
    assert recorder.why_not is None, "nothing is left of it"


def test_a_launch_that_fails(driver: Driver) -> None:
    graph, _ = Recorder(0).record(5, lambda: None, False)
    driver.fails["cuGraphLaunch"] = 700
    with pytest.raises(RuntimeError, match="did not start: a reason"):
        graph.replay()
