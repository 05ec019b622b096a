"""`litz.ts_compile`: graphs through TorchScript give what they give in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import litz
from litz.graph.trace_example import forward_only, joint


def captured(function: Callable[..., Any], *inputs: Any) -> tuple[fx.GraphModule, Sequence[Any]]:
    """Dynamo's graph, of torch calls."""
    found: list[tuple[fx.GraphModule, Sequence[Any]]] = []

    def backend(graph_module: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        found.append((graph_module, given))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    (one,) = found
    return one


X, W = torch.arange(20.0).view(4, 5) / 20, torch.arange(15.0).view(5, 3) / 15
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "products": (lambda x, w: (torch.nn.functional.gelu(x @ w).sum(-1),), (X, W)),
    "casts": (lambda x: (x.to(torch.bfloat16).float() + x.double(), x.to("cpu", copy=True)), (X,)),
    "several": (lambda x: (*x.split(2), x.max(0)[0], x.max(0)[1]), (X,)),
    "writes": (lambda x: (x.clone().add_(1).mul_(2), torch.zeros(4).index_fill_(0, torch.tensor([1]), 3.0)), (X,)),
    "made": (lambda x: (torch.arange(4) + x[:, 0], torch.full((2,), 1.5, dtype=torch.float64)), (X,)),
    "norm": (lambda x: (torch.nn.functional.layer_norm(x, (5,)), torch.nn.functional.softmax(x, -1)), (X,)),
    "attention": (
        lambda q: (torch.nn.functional.scaled_dot_product_attention(q, q, q),), (X.view(1, 1, 4, 5),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_of_torch_calls(name: str) -> None:
    function, inputs = PROGRAMS[name]
    graph, given = captured(function, *inputs)
    text = graph.code
    got = litz.ts_compile(graph, given)(*given)
    torch.testing.assert_close(tuple(got), tuple(function(*inputs)), rtol=1e-6, atol=1e-6)
    assert graph.code == text  # the graph is as it was


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_of_operators(name: str) -> None:
    function, inputs = PROGRAMS[name]
    for graph in (make_fx(function)(*inputs), forward_only(function, list(inputs))):
        got = litz.ts_compile(graph, inputs)(*inputs)
        torch.testing.assert_close(tuple(got), tuple(function(*inputs)), rtol=1e-6, atol=1e-6)


def test_a_backward() -> None:
    graph = joint(lambda x, w: (x @ w).tanh(), [X, W])
    inputs = [X, W, torch.ones(4, 3)]
    torch.testing.assert_close(litz.ts_compile(graph, inputs)(*inputs), graph(*inputs), rtol=1e-6, atol=1e-6)


def test_inputs_that_are_written_to() -> None:
    def count(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y = x * 1  # Dynamo has inputs in the order of their use
        total.add_(1)
        return y + total

    graph, given = captured(count, X, torch.zeros(()))
    total = torch.zeros(())
    compiled = litz.ts_compile(graph, [X, torch.zeros(())])
    for calls in (1, 2):
        (result,) = compiled(X, total)
        assert total.item() == calls
        torch.testing.assert_close(result, X + calls)


def test_numbers_as_inputs_and_results_of_any_form() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, count: int) -> Any:
            return {"a": [torch.ops.aten.mul.Scalar(x, count), None], "b": x}

    got = litz.ts_compile(fx.symbolic_trace(Scaled()), [X, 3])(X, 3)
    assert got["a"][1] is None
    torch.testing.assert_close((got["a"][0], got["b"]), (X * 3, X))


def test_it_is_frozen() -> None:
    weight = W.clone()
    graph = make_fx(lambda x: (x @ weight,))(X)
    (node,) = (n for n in graph.graph.nodes if n.op == "get_attr")
    weight = getattr(graph, node.target)
    compiled = litz.ts_compile(graph, [X])
    before = compiled(X)
    weight.zero_()
    torch.testing.assert_close(compiled(X), before)
    assert not graph(X)[0].any()


@pytest.mark.parametrize("on", [True, False])
def test_autocast_of_torchscript_is_off_and_as_it_was_afterwards(on: bool) -> None:
    before = torch._C._jit_set_autocast_mode(on)
    try:
        graph = make_fx(lambda x, w: (torch.ops.aten.mm.default(x, w),))(X, W)
        compiled = litz.ts_compile(graph, [X, W])
        assert torch._C._jit_set_autocast_mode(on) == on
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(3):
                (result,) = compiled(X, W)
                assert result.dtype is torch.float32
        assert torch._C._jit_set_autocast_mode(on) == on
        bad = fx.symbolic_trace(lambda x: (x.frobnicate(),))
        with pytest.raises(litz.CompileError):
            litz.ts_compile(bad, [X])
        assert torch._C._jit_set_autocast_mode(on) == on
    finally:
        torch._C._jit_set_autocast_mode(before)


def test_what_is_refused_says_what_and_where() -> None:
    with pytest.raises(litz.CompileError, match=r"takes a torch.fx.GraphModule, not a function"):
        litz.ts_compile(lambda x: x, [X])  # type: ignore[arg-type]
    graph = make_fx(lambda x: (x.sin(),))(X)
    with pytest.raises(litz.CompileError, match="2 inputs for a graph that has 1"):
        litz.ts_compile(graph, [X, X])
    graph, given = captured(lambda x: (x.square(),), X)
    next(n for n in graph.graph.nodes if n.op == "call_method").target = "no_such_method"
    graph.recompile()
    with pytest.raises(litz.CompileError, match=r"no_such_method(.|\n)*source: .*test_ts_compile\.py"):
        litz.ts_compile(graph, given)
