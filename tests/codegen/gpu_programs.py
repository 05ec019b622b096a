"""Compile for a GPU where there is none, all but the load: the graph is captured on the CPU, and moved once it is ATen.

In: a module, or a function of tensors, and what it is called with. Out: its artefacts, forward and backward, and what
the compile had to say of them.

A fake tensor can be on any device, but torch chooses an attention only on a device that it was built for. So which one
is called is decided here, as a recent GPU would have it: flash attention where there is no mask, else the one that
saves memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from litz.capture.higher_order import write_out
from litz.capture.lift_state import lift_state
from litz.codegen.plan import Native
from litz.context import Context
from litz.graph import rewrite_pre_grad as pre_grad
from litz.graph.editor import mode_of
from litz.graph.signature import Joint
from litz.options import Options
from litz.pipeline import compile_to_data
from litz.report import Report
from litz.runtime.artifact import Artifact
from litz.runtime.bind import Backward
from tests.codegen.emulate import gpu_target

aten = torch.ops.aten
GPU = torch.device("cuda", 0)


@dataclass(frozen=True)
class ForGpu:
    forward: Artifact
    backward: Backward | None
    ctx: Context

    @property
    def report(self) -> Report:
        return self.ctx.report()

    @property
    def fired(self) -> dict[str, int]:
        return {firing.rule: firing.times for firing in self.ctx.firings}

    def parts(self) -> list[Artifact]:
        return [self.forward] if self.backward is None else [self.forward, self.backward(())]


def from_python(artifact: Artifact) -> Counter[str]:
    """Operators that Python calls, between stretches of native code."""
    return Counter(item.run.target for item in artifact.plan.items if not isinstance(item.run, Native))


def compile_for_gpu(
    function: Callable[..., Any], inputs: Mapping[str, Any], *, training: bool = False, dynamic: bool = False,
    moved: str = "rewrite_joint", numbers: bool = False, after: Mapping[str, Callable[[Any], Any]] | None = None,
    **options: Any,
) -> ForGpu:  # fmt: skip
    """`moved`: the stage after which all is on the GPU. Rules that differentiate need it to be on the CPU. `numbers`:
    what single numbers were given, and what is made of them alone, stays on the CPU then. `after`: further hooks."""
    module, given = captured(function, inputs, training, dynamic)
    write_out(module)
    lifted, held = lift_state(module)
    given = [*given, *held.values()]
    hooks = {**(after or {}), moved: partial(on_gpu, numbers=numbers)}
    ctx = Context(Options(after=hooks, **options), gpu_target())
    with torch.set_grad_enabled(training), as_if_on_gpu():
        compiled, backward = compile_to_data(lifted.forward, given, None, ctx, training)
    return ForGpu(compiled.forward, backward, ctx)


class _Captured(BaseException):
    """Dynamo has what was asked for."""


def captured(
    function: Callable[..., Any], inputs: Mapping[str, Any], training: bool = False, dynamic: bool = False
) -> tuple[fx.GraphModule, list[Any]]:
    """The graph, and what it is called with; fakes where sizes vary."""
    found: list[Any] = []

    def backend(graph_module: fx.GraphModule, given: list[Any]) -> Any:
        fakes = [node.meta["example_value"] for node in graph_module.graph.nodes if node.op == "placeholder"]
        found[:] = graph_module, fakes if dynamic else given
        raise _Captured

    torch._dynamo.reset()
    try:
        with torch.set_grad_enabled(training):
            torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(**inputs)
    except _Captured:
        pass
    return found[0], found[1]


@contextmanager
def as_if_on_gpu() -> Iterator[None]:
    """Masks are looked at, and attention is chosen, as for tensors of a GPU."""
    rules = tuple(replace(r, extra_check=None) if r.name in _OF_GPUS else r for r in pre_grad.PRE_GRAD)
    with mock.patch.object(pre_grad, "PRE_GRAD", rules), _FusedAttention():
        yield


_OF_GPUS = ("attention_with_known_mask",)


class _FusedAttention(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = _attention if func is functional.scaled_dot_product_attention else func
        return called(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    if attn_mask is None:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    learns = torch.is_grad_enabled()
    found = aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, learns, dropout_p, is_causal, scale=scale
    )
    return found[0]


def on_gpu(joint: Joint, numbers: bool = False) -> Joint:
    """The joint graph as if all of it had been traced on a GPU, or all but single numbers."""
    graph = joint.graph.graph
    with mode_of(graph), torch.no_grad():
        for node in graph.nodes:
            value = node.meta.get("val")
            if numbers and isinstance(value, torch.Tensor) and value.dim() == 0 and not _meets_tensors(node):
                continue
            node.args, node.kwargs = pytree.tree_map_only(torch.device, lambda _: GPU, (node.args, node.kwargs))
            if node.op != "call_function":
                node.meta["val"] = _there(value) if isinstance(value, torch.Tensor) else value
            elif isinstance(node.target, torch._ops.OpOverload):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
                node.meta["val"] = node.target(*args, **kwargs)
            else:
                node.meta["val"] = node.target(*fx.node.map_arg(node.args, lambda n: n.meta["val"]))  # type: ignore[operator]
    return joint


def _meets_tensors(node: fx.Node) -> bool:
    """Whether it is made of something that is on the GPU by now; a tangent is on the side of its result."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return node.name.startswith("tangent") or any(isinstance(v, torch.Tensor) and v.device == GPU for v in values)


def _there(value: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)
    if isinstance(value, FakeTensor):
        made.item_memo = value.item_memo  # type: ignore[attr-defined]
    return made


__all__ = ["GPU", "ForGpu", "as_if_on_gpu", "captured", "compile_for_gpu", "from_python"]
