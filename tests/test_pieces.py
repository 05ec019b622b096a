"""Functions that Dynamo runs in pieces: left as they were written where the pieces cost more than they save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn

import litz
from litz.capture.pieces import gain_of, is_little
from litz.report import HISTORY

MANY = 18  # calls, after which a function has been judged
LEFT = "the function runs as it was written from here on"


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    HISTORY.clear()
    yield
    torch._dynamo.reset()


def entries(call: Callable[[], Any]) -> int:
    """How many pieces Dynamo enters in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return sum(event.count for event in profile.key_averages() if event.key.startswith("Torch-Compiled Region"))


def left() -> list[str]:
    return [report.left_to_eager for report in litz.reports() if LEFT in (report.left_to_eager or "")]


class Padded(nn.Module):
    """A convolution that computes its own padding from a tensor, and looks at it: pieces of next to nothing."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, width)
        self.register_buffer("width", torch.tensor(width))

    def extra(self, x: torch.Tensor) -> torch.Tensor:
        return (self.width - 1) * 2 - self.width + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = self.extra(x)
        if padding > 0:
            x = nn.functional.pad(x, (int(padding), 0))
        return self.conv(x)


class Codec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Padded(4, width) for width in (3, 5, 3, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_model_of_tiny_pieces_is_left_as_it_was() -> None:
    model, x = Codec().eval(), torch.randn(1, 4, 200)
    compiled = torch.compile(model, backend="litz")
    with torch.no_grad():
        for _ in range(MANY):
            torch.testing.assert_close(compiled(x), model(x))
        assert entries(partial(compiled, x)) == 0
        torch.testing.assert_close(compiled(x * 3), model(x * 3))
    assert left()


def test_gradients_of_a_function_that_is_left() -> None:
    model, x = Codec(), torch.randn(1, 4, 200, requires_grad=True)
    compiled = torch.compile(model, backend="litz")
    for _ in range(MANY):
        (want,) = torch.autograd.grad(model(x).sum(), x)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(found, want)


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x * 2 + 1
    torch._dynamo.graph_break()
    return (x.sin() * x).exp()


def test_pieces_that_are_worth_it_stay() -> None:
    compiled, x = torch.compile(broken, backend="litz"), torch.randn(20_000)
    for _ in range(MANY):
        torch.testing.assert_close(compiled(x), broken(x))
    assert entries(lambda: compiled(x)) == 2


def test_what_a_left_function_calls_is_compiled_by_itself() -> None:
    def worth_it(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).exp() + x

    def outer(x: torch.Tensor, inner: Callable[..., Any]) -> torch.Tensor:
        n = int(x[0])
        y = inner(x)
        torch._dynamo.graph_break()
        return y.view(-1) if n else y

    compiled, x = torch.compile(outer, backend="litz"), torch.ones(20_000)
    for _ in range(MANY):
        torch.testing.assert_close(compiled(x, worth_it), outer(x, worth_it))
    assert entries(lambda: compiled(x, worth_it)) >= 1


def test_a_whole_function_is_never_left() -> None:
    compiled, x = torch.compile(lambda x: x + 1, backend="litz"), torch.randn(3)
    for _ in range(MANY):
        compiled(x)
    assert entries(lambda: compiled(x)) == 1


def test_what_dynamo_forgot_is_tried_again() -> None:
    x = torch.randn(3)
    for _ in range(2):
        HISTORY.clear()
        compiled = torch.compile(tiny, backend="litz")
        for _ in range(MANY):
            torch.testing.assert_close(compiled(x), (x + 1) * 2)
        assert entries(partial(compiled, x)) == 0
        assert sum(report.kernels for report in litz.reports()) > 0
        torch._dynamo.reset()


def tiny(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def test_what_another_backend_has_captured_stays() -> None:
    x = torch.randn(3)
    other = torch.compile(tiny, backend="eager")
    compiled = torch.compile(tiny, backend="litz")
    other(x)
    for _ in range(MANY):
        compiled(x)
    assert entries(lambda: other(x)) == 2


def test_pieces_that_are_worth_it_outlast_other_captures() -> None:
    """Captures that Dynamo has forgotten, and those for other options, cost nothing."""
    x = torch.randn(20_000)
    for threads in range(1, 9):
        for again in range(2):
            compiled = torch.compile(broken, backend="litz", options={"threads": threads})
            for _ in range(2):
                torch.testing.assert_close(compiled(x), broken(x))
            assert entries(partial(compiled, x)) == 2
            if again == threads % 2:
                torch._dynamo.reset()
    assert not any(report.left_to_eager for report in litz.reports()[-2:])


def test_large_arguments_after_small_ones() -> None:
    compiled = torch.compile(broken, backend="litz")
    for x in [torch.randn(5)] * MANY + [torch.randn(100_000)] * 2:
        torch.testing.assert_close(compiled(x), broken(x))
    assert entries(lambda: compiled(x)) == 2


def test_a_function_that_calls_itself() -> None:
    def down(x: torch.Tensor, depth: int) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2 if depth == 0 else down(x, depth - 1) - 1

    compiled, x = torch.compile(down, backend="litz"), torch.randn(3)
    for _ in range(MANY):
        torch.testing.assert_close(compiled(x, 3), down(x, 3))


def test_threads_that_enter_at_once() -> None:
    compiled, x = torch.compile(tiny, backend="litz"), torch.randn(3)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(compiled, [x] * 100):
            torch.testing.assert_close(found, tiny(x))
    assert left()


def test_what_is_called_later_is_compiled() -> None:
    """A function that is left calls, one day, what it never called before."""

    def step(x: torch.Tensor, late: bool) -> torch.Tensor:
        x = tiny(x)
        torch._dynamo.graph_break()
        return broken(x) if late else x

    compiled, small, large = torch.compile(step, backend="litz"), torch.randn(3), torch.randn(20_000)
    for _ in range(MANY):
        compiled(small, False)
    for _ in range(2):
        torch.testing.assert_close(compiled(large, True), step(large, True))
    assert entries(lambda: compiled(large, True)) >= 2


def test_with_verify_everything_is_compiled() -> None:
    compiled, x = torch.compile(broken, backend="litz", options={"verify": True}), torch.randn(3)
    for _ in range(MANY):
        compiled(x)
    assert entries(lambda: compiled(x)) == 2


# -- what is gained --------------------------------------------------------------------------------
def captured(function: Callable[..., Any], *args: Any) -> fx.Graph:
    graphs: list[fx.GraphModule] = []

    def keep(graph_module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph_module)
        return graph_module.forward

    torch.compile(function, backend=keep)(*args)
    (found,) = graphs
    return found.graph


def test_operators_and_what_passes_by_are_gained() -> None:
    small, large = torch.randn(4), torch.randn(1 << 20)
    assert gain_of(captured(lambda x: x + 1, small)) < 0
    assert gain_of(captured(lambda x: x + 1, large)) < 0, "one operator reads and writes as much either way"
    assert gain_of(captured(lambda x: torch.rms_norm(x, (1 << 20,)), large)) > 0, "eager takes many passes"
    assert gain_of(captured(lambda x: (x + 1, (x + 1) * 2), large)) > 0, "what leaves may be read on the way"
    assert gain_of(captured(lambda x: (x + 1) * 2, large)) > 0
    assert gain_of(captured(lambda x: (x + 1).view(2, -1).t(), large)) < 0, "a view leaves with what it is a view of"
    chain = gain_of(captured(lambda x: ((((((x + 1) * 2).sin() - 1).cos() * 3).exp() + 1).neg() * 2).tanh(), small))
    assert chain > 0


def test_the_library_gains_nothing_but_what_follows_it() -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    assert gain_of(captured(lambda x, w: (x @ w).relu(), x, w)) > 0
    assert gain_of(captured(lambda x, w: x @ w @ w @ w @ w @ w @ w @ w @ w, x, w)) < 0


@pytest.mark.parametrize(
    "function, little",
    [
        (lambda x: x.t().reshape(-1)[2:], True),
        (lambda x: x[0, 0] * 2, True),
        (lambda x: x * 2, False),
        (lambda x: x.mul_(2), False),
        (lambda x: x.t().sum(0), False),
        (lambda x: x.sum(), False),
    ],
)
def test_little(function: Callable[..., Any], little: bool) -> None:
    graph = captured(function, torch.randn(8, 1))
    assert is_little([node for node in graph.nodes if node.op.startswith("call")]) is little


STRANGE = {
    "a transform": (lambda x: torch.vmap(torch.func.grad(lambda v: (v**3).sum()))(x.view(3, 5)).sum(), "dense"),
    "a nested tensor": (lambda x: (x * 2).values().sum(), "nested"),
    "a sparse tensor": (lambda x: (x.to_sparse() * 2).to_dense().sum(), "dense"),
    "nonzero": (lambda x: x.nonzero().float().sum() + x.sum(), "dense"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STRANGE)
def test_tensors_without_memory_of_their_own(name: str) -> None:
    compute, kind = STRANGE[name]

    def step(x: torch.Tensor) -> torch.Tensor:
        y = compute(x)
        torch._dynamo.graph_break()
        return y + compute(x)

    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    given = torch.nested.nested_tensor(parts, layout=torch.jagged) if kind == "nested" else torch.randn(15)
    compiled = torch.compile(step, backend="litz")
    for _ in range(MANY):
        torch.testing.assert_close(compiled(given), step(given))
