"""Many Python threads at once: calling one compiled model, and compiling."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.codegen.compiled import compiled

THREADS = 8


def at_once(work: Callable[[int], Any], threads: int) -> list[Any]:
    """`work(0)`, `work(1)`, … each in a thread of its own, all let go together; an error in any is raised here."""
    start = Barrier(threads)

    def one(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


class Block(nn.Module):
    """Kernels, products, a called operator, an arena and a checked index: all that a call keeps to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 40), nn.LayerNorm(40)
        self.up, self.down = nn.Linear(40, 90), nn.Linear(90, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return torch.sort(x.softmax(-1), -1).values + torch.cumsum(x, 1)


def test_eight_threads_call_one_model() -> None:
    torch._dynamo.reset()
    model = Block().eval()
    fast = torch.compile(model, backend="litz", options={"matmul": "generate"})
    inputs = [torch.randint(0, 50, (3, 70)) for _ in range(THREADS)]
    with torch.no_grad():
        wanted = [model(ids) for ids in inputs]
        fast(inputs[0])

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                torch.testing.assert_close(fast(inputs[number]), wanted[number], rtol=1e-4, atol=1e-4)

    at_once(work, THREADS)


def test_an_error_in_one_thread_stays_there() -> None:
    torch._dynamo.reset()
    table = torch.randn(10, 33)
    fast = torch.compile(lambda i: F.embedding(i, table) * 2, backend="litz")
    good, bad = torch.arange(10), torch.full((10,), 10)
    with torch.no_grad():
        fast(good)

    def work(number: int) -> int:
        raised = 0
        with torch.no_grad():
            for _ in range(30):
                try:
                    found = fast(bad if number % 2 else good)
                except IndexError:
                    raised += 1
                else:
                    torch.testing.assert_close(found, table * 2)
        return raised

    assert at_once(work, 4) == [0, 30, 0, 30]


def test_two_threads_compile_at_once() -> None:
    """Through Dynamo, which takes turns, and through the pipeline, which must by itself."""
    torch._dynamo.reset()

    def model(number: int) -> tuple[Callable[..., Any], torch.Tensor]:
        layers = nn.Sequential(nn.Linear(30 + number, 40), nn.GELU(), nn.Linear(40, 20), nn.Softmax(-1))
        return layers, torch.randn(17, 30 + number)

    def through_dynamo(number: int) -> None:
        function, x = model(number)
        with torch.no_grad():
            found = torch.compile(function, backend="litz")(x)
            torch.testing.assert_close(found, function(x), rtol=1e-4, atol=1e-5)

    def through_pipeline(number: int) -> None:
        x, w = torch.randn(33 + number, 47), torch.randn(47, 65)
        for _ in range(3):
            made, _ = compiled(lambda x, w: torch.relu(x @ w), [x, w], matmul="generate")
            torch.testing.assert_close(made(x, w)[0], torch.relu(x @ w), rtol=1e-4, atol=1e-4)

    at_once(through_dynamo, 2)
    at_once(through_pipeline, 4)


def _in_a_child(function: Any, x: torch.Tensor) -> None:
    torch.set_num_threads(1)  # as data loaders do
    function(x)
    os._exit(0)


def test_a_forked_process_does_not_wait_for_threads_of_its_parent() -> None:
    function = torch.compile(lambda x: torch.nn.functional.silu(x) * 2 + 1, backend="litz")
    x = torch.randn(512, 1024)
    function(x)
    child = os.fork()
    if child == 0:
        _in_a_child(function, x)
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")
