"""Dropout as arithmetic on a reserved stretch of the generator's stream: what the graph is, what the backward is given,
and what stays with eager's operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F

from litz.context import Context
from litz.graph.partition.split import split
from litz.graph.replay_draws import replay_draws
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.signature import Joint
from litz.loop.draw import DRAW, RESERVE
from litz.ops.draw import Dealing, dropout_dealing
from litz.ops.lower import lower
from litz.ops.random import replayed
from litz.options import Options
from litz.pipeline import trace
from litz.target import GpuTarget, detect

aten = torch.ops.aten
THREADS = 132 * 2048


def dropout(x: torch.Tensor, p: float = 0.1, train: bool | None = True) -> torch.Tensor:
    return torch.native_dropout(x, p, train)[0]


def context(fuel: int | None = None) -> Context:
    return Context(Options(fuel=fuel), GpuTarget(detect(threads=1), "sm_90", "+ptx80", 132))


def replay(
    function: Callable[..., Any], inputs: Sequence[Any], training: bool = False, ctx: Context | None = None
) -> Joint:
    ctx = ctx or context()
    with torch.set_grad_enabled(training):
        joint = rewrite_joint(trace(function, inputs, None, ctx, training), ctx)
    joint = replay_draws(joint, ctx)
    joint.graph.graph.lint()
    return joint


def calls(graph: fx.GraphModule, *targets: Any) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.target in targets]


# -- the graph ------------------------------------------------------------------------------------
def test_draws_in_a_row_share_a_reservation() -> None:
    x = torch.randn(3000, 1000)
    joint = replay(lambda x: dropout(dropout(x).sin()[:8], 0.5) + dropout(x[:8] * 2), [x])
    assert not calls(joint.graph, aten.native_dropout.default)
    (cell,) = calls(joint.graph, RESERVE)
    draws = calls(joint.graph, DRAW)
    many = (x.numel() - 1) // (4 * THREADS) + 1
    assert many > 1 and [node.args[1] for node in draws] == [0, many, many + 1]
    assert cell.args == (many + 2,) and all(node.args[0] is cell for node in draws)


def test_another_random_operator_comes_in_its_turn() -> None:
    joint = replay(lambda x: dropout(x) + torch.randn_like(x) + dropout(x * 2) + dropout(x * 3), [torch.randn(64, 64)])
    order = [node.target for node in calls(joint.graph, RESERVE, aten.randn_like.default)]
    assert order == [RESERVE, aten.randn_like.default, RESERVE]
    assert [node.args for node in calls(joint.graph, RESERVE)] == [(1,), (2,)]
    assert [node.args[1] for node in calls(joint.graph, DRAW)] == [0, 0, 1]


@pytest.mark.parametrize("p, cells", [(0.0, 1), (0.1, 2)])
def test_attention_draws_where_it_drops(p: float, cells: int) -> None:
    """Of the operators for GPUs, which cannot be traced here: between two dropouts, in a graph written out."""
    graph = fx.Graph()
    with FakeTensorMode():
        value = torch.empty(2, 4, 16, 8)
        both = (value, torch.empty_like(value, dtype=torch.bool))

    def add(target: Any, fake: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = fake
        return node

    x = graph.placeholder("x")
    x.meta["val"] = value
    kept = add(operator.getitem, value, add(aten.native_dropout.default, both, x, 0.1, True), 0)
    attended = add(aten._scaled_dot_product_flash_attention.default, both, kept, kept, kept, p)
    out = add(operator.getitem, value, attended, 0)
    graph.output((add(operator.getitem, value, add(aten.native_dropout.default, both, out, 0.1, True), 0),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    replay_draws(replace(replay(dropout, [torch.randn(8)]), graph=module), context())
    assert len(calls(module, RESERVE)) == cells and len(calls(module, DRAW)) == 2
    assert calls(module, aten._scaled_dot_product_flash_attention.default) == [attended]


def test_coins_are_drawn_too() -> None:
    joint = replay(lambda x: F.dropout2d(x, 0.3, True) * torch.empty_like(x).bernoulli_(0.4), [torch.randn(4, 6, 5, 5)])
    assert not calls(joint.graph, aten.bernoulli.p) and len(calls(joint.graph, DRAW)) == 2
    assert {node.args[5] for node in calls(joint.graph, DRAW)} == {1}
    assert len(calls(joint.graph, RESERVE)) == 1


def test_a_few_uniform_numbers_are_drawn_too() -> None:
    function = lambda x: torch.rand(x.shape[0], 1) + torch.rand_like(x) + torch.randn_like(x)  # noqa: E731
    joint = replay(function, [torch.randn(64, 64)])
    assert len(calls(joint.graph, DRAW)) == 2 and len(calls(joint.graph, aten.randn_like.default)) == 1
    joint = replay(function, [torch.randn(1024, 1024)])
    assert len(calls(joint.graph, DRAW)) == 1 and len(calls(joint.graph, aten.rand_like.default)) == 1


def test_without_fuel_nothing_is_replayed() -> None:
    joint = replay(lambda x: dropout(x) + dropout(x), [torch.randn(64)], ctx=context(fuel=1))
    assert len(calls(joint.graph, DRAW)) == 1 and len(calls(joint.graph, aten.native_dropout.default)) == 1


def test_on_a_cpu_eagers_operator_is_called() -> None:
    ctx = Context(Options(), detect(threads=1))
    joint = replay(dropout, [torch.randn(64)], ctx=ctx)
    assert len(calls(joint.graph, aten.native_dropout.default)) == 1


# -- what is kept for the backward ----------------------------------------------------------------
def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return dropout(F.gelu(dropout(x @ w) + x), 0.2) * 2


def test_the_mask_is_not_kept() -> None:
    inputs = [torch.randn(256, 256, requires_grad=True) for _ in range(2)]
    joint = replay(layer, inputs, training=True)
    parts = split(joint)
    (forward,) = (n for n in parts.forward.graph.nodes if n.op == "output")
    kept = [n.meta["val"] for n in forward.args[0][joint.forward_outputs :]]
    assert sorted((t.dtype, t.numel()) for t in kept if t.dtype is not torch.float32) == [(torch.int64, 2)]
    assert len(calls(parts.forward, RESERVE)) == 1 and not calls(parts.backward, RESERVE)
    assert len(calls(parts.backward, DRAW)) == 2


def test_what_nobody_reads_still_moves_the_generator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        dropout(x)
        return x * 2

    parts = split(replay(function, [torch.randn(64, requires_grad=True)], training=True))
    assert len(calls(parts.forward, RESERVE)) == 1


# -- how eager deals numbers out ------------------------------------------------------------------
def dealing(x: torch.Tensor) -> Dealing | str:
    return dropout_dealing(x, torch.empty_like(x, dtype=torch.bool))


@pytest.mark.parametrize(
    "dtype, width", [(torch.bfloat16, 8), (torch.float16, 8), (torch.float32, 4), (torch.float64, 2)], ids=str
)
def test_as_many_elements_as_sixteen_bytes_hold(dtype: torch.dtype, width: int) -> None:
    whole = torch.empty(1600, dtype=dtype)
    assert dealing(whole) == Dealing(width, (1,))
    assert dealing(whole.view(40, 40).t()) == Dealing(width, (1, 40))  # in the order of memory
    for offset in (1, 2, 4, 6):
        assert dealing(whole[offset : offset + 160]) == Dealing(min(width, offset & -offset), (1,))
    for elements in (8, 20, 30, 7):
        assert dealing(torch.empty(elements, dtype=dtype)) == Dealing(min(width, elements & -elements), (1,))


def test_a_tensor_with_gaps_is_counted_by_rows() -> None:
    assert dealing(torch.empty(8, 16)[:, ::2]) == Dealing(1, (8, 1))
    assert dealing(torch.empty(8, 16).t()[::2]) == Dealing(1, (8, 1))
    assert dealing(torch.empty(3, 5).t()) == Dealing(1, (3, 1))  # nor are there vectors


def symbolic(*shape: int, dynamic: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    sizes = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(len(shape))]
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(
        torch.empty(shape, dtype=dtype), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )


def test_sizes_known_only_at_run_time() -> None:
    fits = dealing(symbolic(10, 20, 768, dynamic=(0, 1)))
    assert isinstance(fits, Dealing) and fits.width == 8
    odd = symbolic(10, 20, 772, dynamic=(0, 1))
    unknown = dealing(odd)
    assert isinstance(unknown, str) and "how many elements" in unknown
    assert not odd.fake_mode.shape_env.guards  # type: ignore[attr-defined]  # and nothing was asked


# -- what stays with eager's operator -------------------------------------------------------------
CALLED: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[str]]] = {
    "a generator": (
        lambda x: torch.empty_like(x).bernoulli_(0.5, generator=torch.default_generator), (8,),
        ["aten::bernoulli_.float"],
    ),
    "doubles": (lambda x: torch.empty_like(x, dtype=torch.float64).bernoulli_(0.5), (8,), ["aten::bernoulli_.float"]),
    "no elements": (dropout, (0, 4), ["aten::native_dropout"]),
    "switched off": (lambda x: dropout(x, 0.1, False), (8,), []),
    "all dropped": (lambda x: dropout(x, 1.0), (8,), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLED)
def test_left_as_it_is(name: str) -> None:
    function, shape, called = CALLED[name]
    ctx = context()
    joint = replay(function, [torch.randn(shape)], ctx=ctx)
    assert not calls(joint.graph, DRAW, RESERVE)
    assert [call.target for call in lower(joint.graph, ctx).program.calls] == called


def test_the_report_says_why() -> None:
    """A tensor of which it is not known whether eager's vectors fit."""
    ctx = context()
    x = symbolic(10, 772, dynamic=(0,))
    with x.fake_mode:  # type: ignore[attr-defined]
        joint = replay(dropout, [x], ctx=ctx)
        lower(joint.graph, ctx)
    (fallback,) = ctx.fallbacks
    assert fallback.operator == "aten.native_dropout.default" and "known only at run time" in fallback.why


def test_a_probability_known_only_at_run_time() -> None:
    (node,) = calls(replay(dropout, [torch.randn(8)], ctx=context(fuel=0)).graph, aten.native_dropout.default)
    assert isinstance(replayed(node), Dealing)
    node.args = (node.args[0], ShapeEnv().create_unbacked_symfloat(), True)
    assert replayed(node) == "its probability is known only at run time"
