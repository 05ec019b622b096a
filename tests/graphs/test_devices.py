"""Which GPU a program is for, and which one is the current one while it runs: with stand-ins for the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import fx

from litz.capture import backend
from litz.codegen.llvm.shim import DEVICE_SLOT, STREAM_SLOT
from litz.runtime import device
from litz.target import GpuTarget, detect

TARGET = GpuTarget(detect(), "sm_90", "+ptx80", 132)
SLOTS = {"in0": 0, DEVICE_SLOT: 1, STREAM_SLOT: 2}


class Driver:
    """Two GPUs, of which `now` is the current one; `stream` is the caller's, on any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(device, "make_current", lambda: None)
        self.now, self.stream, self.waits = 0, 100, 0

        @contextmanager
        def current(which: Any) -> Iterator[None]:
            before, self.now = self.now, which if isinstance(which, int) else which.index
            try:
                yield
            finally:
                self.now = before

        def synchronize() -> None:
            self.waits += 1

        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "device", current)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: self.now, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.stream + index, raising=False)


class Constant:
    def __init__(self) -> None:
        self.known: list[int] = []

    def record_stream(self, stream: int) -> None:
        self.known.append(stream)


def test_the_gpu_a_program_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.now = 1
    assert device.device_for(TARGET, SLOTS, []).device == torch.device("cuda", 1)
    assert device.device_for(TARGET, SLOTS, [], gpu=0).device == torch.device("cuda", 0)
    assert isinstance(device.device_for(detect(), SLOTS, [], gpu=0), device.Cpu)


def test_it_is_the_current_one_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    gpu = device.device_for(TARGET, SLOTS, [], gpu=1)
    assert gpu.is_elsewhere()
    with gpu.current():
        assert driver.now == 1 and not gpu.is_elsewhere()
    assert driver.now == 0


def test_native_code_is_told_the_device_and_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    gpu, slots = device.device_for(TARGET, SLOTS, [], gpu=1), [0, 0, 0]
    for stream in (100, 200, 100):
        driver.stream = stream
        gpu.tell(slots, [])
        assert slots == [0, 1, stream + 1]
    assert driver.waits == 0


def test_constants_are_known_to_every_stream_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, constant = Driver(monkeypatch), Constant()
    gpu, slots = device.device_for(TARGET, SLOTS, [], gpu=0), [0, 0, 0]
    for stream in (100, 100, 200, 100, 200):
        driver.stream = stream
        gpu.tell(slots, [constant])  # type: ignore[list-item]
    assert constant.known == [100, 200]
    assert driver.waits == 1, "once for the stream they were made on"


def graph_that_makes(place: Any) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.zeros, (3,), {} if place is None else {"device": place})
    graph.output((graph.call_function(torch.add, (x, made)),))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("place", "means"),
    [("cuda", True), (torch.device("cuda"), True), ("cuda:1", False), (torch.device("cuda", 0), False), (None, False)],
)
def test_graphs_that_mean_the_current_gpu(monkeypatch: pytest.MonkeyPatch, place: Any, means: bool) -> None:
    Driver(monkeypatch)
    assert backend._means_the_current_gpu(graph_that_makes(place)) is means


def test_they_run_in_eager_where_another_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    run = backend._where_it_is_current(lambda x: "compiled", graph_that_makes(None))
    assert run(torch.ones(3)) == "compiled"
    driver.now = 1
    (found,) = run(torch.ones(3))
    assert torch.equal(found, torch.ones(3))
