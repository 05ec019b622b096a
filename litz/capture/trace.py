"""Trace a torch-level graph to a functional ATen graph.

In: Dynamo's graph module and the tensors it is called with. Out: a `Captured`: an fx graph of ATen
operators without mutation (a write to an input is one `copy_` at the end), fake tensors on every node,
and outputs with the strides eager would give them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.context import Context
from litz.errors import CaptureError

aten = torch.ops.aten


@dataclass(frozen=True)
class Captured:
    graph: fx.GraphModule
    mutated: tuple[int, ...]  # inputs written to


def trace(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    output_strides: Sequence[tuple[int, ...] | None] | None,
    ctx: Context,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> Captured:
    """`output_strides`: what eager's outputs have, where known; a result laid out otherwise is copied."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_fake(mode, x) for x in inputs]

    def flat(*args: Any) -> list[Any]:
        outputs = function(*args)
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        if output_strides is None:
            return outputs
        return [_laid_out(o, s) for o, s in zip(outputs, output_strides, strict=True)]

    table = dict(decompositions or {}) | dict(ctx.options.decompositions or {})
    with mode, torch.no_grad(), torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        try:
            graph = make_fx(
                torch.func.functionalize(flat, remove="mutations"), decomposition_table=table
            )(*fakes)
        except Exception as error:
            raise CaptureError(
                f"tracing to ATen failed: {type(error).__name__}: {error}", stage="trace"
            ) from error
    graph.graph.eliminate_dead_code()
    return Captured(graph, _mutated(graph.graph))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if isinstance(value, FakeTensor):
            value = torch.empty_strided(
                [int(s) for s in value.shape], [int(s) for s in value.stride()], dtype=value.dtype, device="meta"
            )
        return mode.from_tensor(value.detach() if value.requires_grad else value, static_shapes=True)
    return value


def _laid_out(output: Any, strides: tuple[int, ...] | None) -> Any:
    if not isinstance(output, torch.Tensor) or strides is None or output.stride() == strides:
        return output
    return torch.empty_strided(output.shape, strides, dtype=output.dtype, device=output.device).copy_(output)


def _mutated(graph: fx.Graph) -> tuple[int, ...]:
    placeholders = {node: i for i, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    return tuple(
        placeholders[node.args[0]] for node in graph.nodes if node.target is aten.copy_.default and node.args[0] in placeholders
    )
