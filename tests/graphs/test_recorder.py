"""How captures are made and how they fail, with stand-ins for torch's CUDA graphs: what is called, in which order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from litz import compat
from litz.runtime import cuda_graph
from litz.runtime.cuda_graph import NotNow, Recorder, Uncapturable


class Machine:
    """A device of stand-ins: `calls` is what was asked of torch; `ends` is what ending a capture raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ends: Exception | None = None
        self.current = "mine"

    def says(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.calls.append(name)


def machine(monkeypatch: pytest.MonkeyPatch, version: str = "2.11.0") -> Machine:
    made = Machine()

    class Graph:
        ended = False

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            assert capture_error_mode == "thread_local" and made.current == "aside"
            made.calls.append("begin")

        def capture_end(self) -> None:
            made.calls.append("end")
            error, made.ends = made.ends, None
            if error is not None:
                raise error
            self.ended = True

        def pool(self) -> tuple[int, int]:
            if not self.ended:
                raise RuntimeError("no capture")
            return (0, 1)

        def replay(self) -> None:
            made.calls.append(f"replay on {made.current}")

        def reset(self) -> None:
            made.calls.append("reset")

    class Stream:
        def __init__(self, name: str = "aside"):
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            made.calls.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        before, made.current = made.current, chosen.name
        try:
            yield
        finally:
            made.current = before

    handles = iter(range(1, 1000))
    for name, stand_in in {
        "CUDAGraph": Graph, "Stream": Stream, "stream": stream, "current_stream": lambda: Stream(made.current),
        "graph_pool_handle": lambda: (0, next(handles)), "current_blas_handle": made.says("handle"),
        "get_allocator_backend": lambda: "native",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name in ("_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, made.says(name), raising=False)
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: torch.zeros(1))
    monkeypatch.setattr(compat, "torch_version", lambda: compat.parse_version(version))
    for name in ("_streams", "_broken"):
        monkeypatch.setattr(cuda_graph, name, {})
    return made


def test_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(monkeypatch)
    recorder = Recorder(0)

    def run() -> str:
        assert made.current == "aside" and not gc.isenabled()
        made.calls.append("run")
        return "results"

    graph, results = recorder.record(5, run, True)
    clear = "_cuda_clearCublasWorkspaces"
    assert made.calls == [
        "aside waits for mine", "handle", clear, "begin", "run", "end", clear, "mine waits for aside",
    ]  # fmt: skip
    assert results == "results" and gc.isenabled() and made.current == "mine"
    graph.replay()
    assert made.calls[-1] == "replay on mine"


def test_graphs_of_a_stream_share_a_pool_as_long_as_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    recorder = Recorder(0)
    assert recorder.lent(5) is None
    one, other = (recorder.record(5, lambda: None, True)[0] for _ in range(2))
    elsewhere, _ = recorder.record(6, lambda: None, True)
    assert one.pool is other.pool is not elsewhere.pool
    first = one.pool.handle
    one.pool.lent.add(0x100)
    assert recorder.lent(5) == {0x100} and recorder.lent(6) == set()
    del one, other
    assert recorder.lent(5) is None
    again, _ = recorder.record(5, lambda: None, True)
    assert again.pool.handle != first


def test_work_that_fails_is_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(monkeypatch)
    recorder = Recorder(0)

    def run() -> None:
        raise torch.OutOfMemoryError("out of memory\nand a page of figures")

    with pytest.raises(Uncapturable, match=r"^OutOfMemoryError: out of memory$"):
        recorder.record(5, run, True)
    assert made.calls[-3:] == ["_cuda_clearCublasWorkspaces", "mine waits for aside", "reset"]
    assert "_cuda_releasePool" not in made.calls, "that graph gives its share back itself"
    assert gc.isenabled() and made.current == "mine" and recorder.why_not is None
    assert recorder.record(5, lambda: 1, True)[1] == 1


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0"])
def test_a_capture_that_does_not_end_is_mended(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    made = machine(monkeypatch, version)
    recorder = Recorder(0)

    def run() -> None:
        made.ends = RuntimeError("the capture was invalidated")
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(Uncapturable, match="broke off: RuntimeError: operation not permitted"):
        recorder.record(5, run, True)
    rest = made.calls[made.calls.index("end") + 1 :]
    mended = ["_cuda_endAllocateToPool", "_cuda_releasePool"]
    if version == "2.11.0":  # the generator leaves its capture with the end of another one
        mended += ["begin", "end", "reset"]
    assert rest == [*mended, "_cuda_clearCublasWorkspaces"]
    assert gc.isenabled() and made.current == "mine"
    for _ in range(3):
        assert recorder.why_not is None
        with pytest.raises(Uncapturable):
            recorder.record(5, run, True)
    assert recorder.why_not == "4 captures broke off on this device" and Recorder(1).why_not is None


def test_one_capture_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    recorder = Recorder(0)

    def run() -> None:
        with pytest.raises(NotNow):
            recorder.record(5, lambda: None, True)

    recorder.record(5, run, True)
    recorder.record(5, lambda: None, True)


def test_another_allocator_has_no_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert "another one is in use" in (Recorder(0).why_not or "")
