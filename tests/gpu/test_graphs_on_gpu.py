"""CUDA graphs on a GPU: `make test-gpu`. Their rules, and what is done with arguments and results, are tested without
one in `tests/graphs`; here, that the device does the same, and that it survives captures that fail."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz
from litz.runtime import cuda_graph
from litz.runtime.cuda_graph import Recorder, Uncapturable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def given(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def compiled(function: Callable[..., Any], mode: str = "reduce-overhead", **options: Any) -> Callable[..., Any]:
    return litz.compile(function, mode=mode, **options)


def told() -> str:
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    return "\n".join(report.graphs)


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.gelu(x @ w), -1) @ w.t() + x.sum()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + self.second(F.gelu(self.norm(self.first(x))))
        return x


def test_results_are_the_users_own() -> None:
    run, w = compiled(mixed), given(64, 64)
    xs = [given(32, 64) for _ in range(8)]
    kept = [run(x, w) for x in xs]
    for x, found in zip(xs, kept, strict=True):
        same(found, mixed(x, w))
    assert "forward: captured" in told()


def test_weights_that_change_in_place_and_that_move() -> None:
    run, w = compiled(mixed), given(64, 64)
    for _ in range(4):
        x = given(32, 64)
        same(run(x, w), mixed(x, w))
        w.mul_(0.5)
    for w in (given(64, 64), given(64, 64)):
        for _ in range(3):
            x = given(32, 64)
            same(run(x, w), mixed(x, w))


@pytest.mark.parametrize("moves", [False, True])
def test_caches_that_are_written_to(moves: bool) -> None:
    def function(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        return torch.softmax(x @ cache.t(), -1) @ cache

    run = compiled(function)
    mine = given(16, 64)
    theirs, held = mine.clone(), []
    with torch.no_grad():
        for step in range(8):
            x, at = given(1, 64), torch.tensor([step], device="cuda")
            same(run(mine, x, at), function(theirs, x, at))
            same(mine, theirs)
            if moves:
                held.append(mine)
                mine = mine.clone()
    assert "captured" in told()


def test_training() -> None:
    mine = Block().cuda()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    optimizers = [torch.optim.SGD(m.parameters(), 1e-2) for m in (mine, theirs)]
    for _ in range(10):
        x = given(8, 64)
        for optimizer, call in zip(optimizers, (run, theirs), strict=True):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
        same([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
    same(dict(mine.named_parameters()), dict(theirs.named_parameters()))
    assert "forward: captured" in told() and "backward: captured" in told()


def test_several_forwards_before_their_backwards() -> None:
    mine = Block().cuda()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    for _ in range(8):
        xs = [given(8, 64) for _ in range(2)]
        for module, call in ((mine, run), (theirs, theirs)):
            module.zero_grad()
            losses = [call(x).square().mean() for x in xs]
            losses[1].backward(retain_graph=True)
            (losses[0] + losses[1]).backward()
        same([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])


def test_dropout_draws_what_it_draws_without_graphs() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.5), nn.ReLU(), nn.Linear(256, 64), nn.Dropout(0.1)).cuda()
    x, found = given(32, 64), []
    for mode in ("max-autotune-no-cudagraphs", "reduce-overhead"):
        torch._dynamo.reset()
        run = compiled(model, mode=mode)
        torch.manual_seed(5)
        results = []
        for _ in range(6):
            loss = run(x)
            loss.square().mean().backward()
            results.append((loss.detach(), torch.rand(3, device="cuda")))
        found.append(results)
    same(found[1], found[0])
    assert not torch.equal(found[1][4][0], found[1][5][0]), "other numbers at each replay"


def test_streams_and_threads() -> None:
    run, w = compiled(mixed), given(64, 64)
    for _ in range(3):
        run(given(32, 64), w)
    torch.cuda.synchronize()
    wrong = []

    def work() -> None:
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                for _ in range(20):
                    x = given(32, 64)
                    kept = [run(x, w) for _ in range(2)]
                    if not all(torch.allclose(one, mixed(x, w), rtol=2e-3, atol=2e-3) for one in kept):
                        wrong.append(x)
                stream.synchronize()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_others_draw_while_calls_are_captured() -> None:
    """In eager, from the default generator, in another thread: nothing of that is part of a capture."""
    over, failed, drawn = threading.Event(), [], []

    def draw() -> None:
        try:
            while not over.is_set():
                drawn.append(torch.rand(4, device="cuda"))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for rows in (16, 24, 32, 40):
        torch._dynamo.reset()
        run, x, w = compiled(mixed), torch.ones(rows, 64, device="cuda"), torch.ones(64, 64, device="cuda")
        for _ in range(6):
            same(run(x, w), mixed(x, w))
        assert "captured" in told()
    over.set()
    thread.join()
    # That they are new ones each time is not said: Dynamo puts back the generator's state when it has compiled.
    assert not failed and drawn


def test_a_user_who_captures() -> None:
    run, x, w = compiled(mixed), given(32, 64), given(64, 64)
    for _ in range(4):
        run(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(x, w)
    for _ in range(2):
        x.normal_()
        graph.replay()
        same(found, mixed(x, w))
    same(run(x, w), mixed(x, w))


def test_sizes() -> None:
    run, w = compiled(mixed, dynamic=True), given(64, 64)
    for _ in range(4):
        for rows in (8, 32, 33):
            x = given(rows, 64)
            same(run(x, w), mixed(x, w))
    assert "captured" in told()


def test_by_default_where_the_device_waits() -> None:
    model, x = Block().cuda().eval(), given(8, 64)
    run = compiled(model, mode="default")
    with torch.no_grad():
        for _ in range(30):
            found = run(x)
            torch.cuda.synchronize()
        same(found, model(x))
        assert "forward: captured" in told()
        large = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(8))).cuda()
        torch._dynamo.reset()
        run, x = compiled(large, mode="default"), given(8192, 8192)
        for _ in range(30):  # some of which are eager's, to see who is faster
            run(x)
            torch.cuda.synchronize()
        assert "not captured: the device is at work" in told()


# -- captures that fail -----------------------------------------------------------------------------
def is_usable() -> None:
    """Memory, random numbers and captures, as before."""
    before = torch.cuda.memory_allocated()
    torch.rand(1 << 20, device="cuda").sum().item()
    side = torch.cuda.Stream()
    block = torch.ones(1 << 22, device="cuda")
    block.record_stream(side)
    del block
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before
    x = given(8)
    graph, (y,) = Recorder(torch.cuda.current_device()).record(0, lambda: (x * 2 + torch.rand_like(x) * 0,), True)
    for _ in range(2):
        x.normal_()
        graph.replay()
        same(y, x * 2)


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("fails", ["waits", "memory", "error"])
def test_the_device_survives(fails: str, draws: bool) -> None:
    broken = {index: list(kept) for index, kept in cuda_graph._broken.items()}

    def run() -> None:
        x = (given(8) if draws else torch.ones(8, device="cuda")) + 1
        if fails == "waits":
            x.sum().item()
        elif fails == "memory":
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        raise ValueError("no more")

    earlier, (kept,) = Recorder(0).record(0, lambda: (torch.rand(4, device="cuda"),), True)
    with pytest.raises(Uncapturable) as failure:
        Recorder(0).record(0, run, draws)
    words = {"waits": "broke off", "memory": "OutOfMemoryError", "error": "ValueError: no more"}
    assert words[fails] in str(failure.value)
    is_usable()
    earlier.replay()
    first = kept.clone()
    earlier.replay()
    assert not torch.equal(first, kept), "a capture from before still draws"
    cuda_graph._broken.clear()
    cuda_graph._broken.update(broken)


def test_a_program_goes_on_where_captures_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Recorder, stream: int, run: Callable[[], Any], draws: bool) -> Any:
        raise Uncapturable("OutOfMemoryError: not enough")

    monkeypatch.setattr(Recorder, "record", fails)
    run, w = compiled(mixed), given(64, 64)
    for _ in range(4):
        x = given(32, 64)
        same(run(x, w), mixed(x, w))
    assert told() == "forward: not captured: OutOfMemoryError: not enough"


def test_memory_goes_back_with_the_program() -> None:
    def use() -> None:
        model = Block().cuda()
        run = compiled(model)
        for _ in range(5):
            run(given(256, 64)).sum().backward()

    use()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    use()
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (2 << 20)


def test_another_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    run = compiled(mixed)
    x, w = (torch.randn(64, 64, device="cuda:1") for _ in range(2))
    for _ in range(4):
        found = run(x, w)
        assert found.device == x.device and torch.cuda.current_device() == 0
        same(found, mixed(x, w))
    assert "captured" in told()
