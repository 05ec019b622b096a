"""Capture a function, rewrite it, and compare: what every test of a rule does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from litz.capture.joint import trace_joint
from litz.context import Context
from litz.graph.replacement import forward_only
from litz.graph.rewrite import Outcome, Rules, apply_rules
from litz.options import Options
from litz.target import detect


@dataclass
class Rewritten:
    graph: fx.GraphModule
    ctx: Context
    outcome: Outcome

    def count(self, *targets: Any) -> int:
        return sum(node.target in targets for node in self.graph.graph.nodes)

    @property
    def fired(self) -> dict[str, int]:
        return {firing.rule: firing.times for firing in self.ctx.firings}

    @property
    def misses(self) -> list[Any]:
        return sorted(self.ctx.near_misses, key=lambda miss: -miss.matched)


def context(**options: Any) -> Context:
    return Context(Options(verify=True, **options), detect())


def capture(function: Callable[..., Any], inputs: Sequence[Any], training: bool = False) -> fx.GraphModule:
    """The functional ATen graph; in training, with its backward, as the compiler itself traces it."""
    if training:
        return trace_joint(function, list(inputs), None, {}, True).graph
    return forward_only(function, list(inputs))


def symbolic(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Fakes of them in which every size above 1 is known only at run time."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    moving = StatelessSymbolicContext
    return [
        mode.from_tensor(t, source=ConstantSource(f"x{i}"), symbolic_context=moving([DimDynamic.DYNAMIC] * t.dim()))
        for i, t in enumerate(tensors)
    ]


def guards(fake: Any) -> int:
    """How many questions about sizes were answered so far: each ties the program to the answer."""
    return len(fake.fake_mode.shape_env.guards)


def results(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    found = graph(*[i.clone() if isinstance(i, torch.Tensor) else i for i in inputs])
    return list(found) if isinstance(found, (tuple, list)) else [found]


def rewrite(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    rules: Rules,
    *,
    training: bool = False,
    tolerance: float = 1e-5,
    **options: Any,
) -> Rewritten:
    """Rewrites and checks that every result keeps its value, shape, strides and type."""
    graph = capture(function, [_leaf(i, training) for i in inputs], training)
    given = [i.detach() if isinstance(i, torch.Tensor) else i for i in inputs]
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    torch.manual_seed(1)
    given += [torch.randn(n.meta["val"].shape, dtype=n.meta["val"].dtype) for n in placeholders[len(given) :]]
    torch.manual_seed(0)
    before = results(graph, given)
    ctx = context(**options)
    outcome = apply_rules(graph, rules, ctx)
    torch.manual_seed(0)
    after = results(graph, given)
    for old, new in zip(before, after, strict=True):
        if not isinstance(old, torch.Tensor):
            continue
        assert (old.shape, old.dtype, old.stride()) == (new.shape, new.dtype, new.stride())
        torch.testing.assert_close(new, old, rtol=tolerance, atol=tolerance, equal_nan=True)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            assert "val" in node.meta, f"{node} has no value"
    return Rewritten(graph, ctx, outcome)


def _leaf(value: Any, training: bool) -> Any:
    if training and isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().clone().requires_grad_(True)
    return value
