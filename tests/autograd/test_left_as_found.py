"""A trace that fails leaves nothing behind: wherever it stops, the thread is as it was and eager works."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.func import grad, hessian, jacfwd, vmap

from litz.capture.direct import compile_directly
from litz.capture.joint import trace_joint
from litz.capture.record import Recorder
from litz.errors import CaptureError
from litz.ops.decompose import decompositions


def all_kinds(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A region of every kind that a graph enters and leaves by calls of its own."""
    a = hessian(lambda v: (v.sin() * v.sum()).sum())(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = x @ w
        with torch.no_grad():
            c = vmap(lambda v: v * v.sum())(b)
    with torch.inference_mode():
        d = (w + 1).tanh()
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        e = vmap(grad(lambda v: v.square().sum()))(w)
    with torch.no_grad(), torch.enable_grad():
        f = jacfwd(torch.exp)(x)
    return a, b, c.float(), d.sum(), e, f


def state() -> tuple[Any, ...]:
    try:
        torch._C._exit_dual_level(level=torch._C._enter_dual_level())
        dual = False
    except RuntimeError:
        dual = True
    return (
        dual, torch._C._functorch.get_dynamic_layer_stack_depth(), torch._C._is_fwd_grad_enabled(),
        torch._C._functorch.get_inplace_requires_grad_allowed(), torch.autograd.forward_ad._current_level,
        torch._C._functorch.get_single_level_autograd_function_allowed(),
        torch._functorch.eager_transforms.JVP_NESTING, torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        torch.autocast_increment_nesting() - 1, torch.autocast_decrement_nesting(),
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(), torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(),
        [torch._C._get_dispatch_mode(k) for k in (torch._C._TorchDispatchModeKey.FAKE,
         torch._C._TorchDispatchModeKey.FUNCTIONAL, torch._C._TorchDispatchModeKey.PROXY)],
        str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set()),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_default_dtype(),
        torch.get_rng_state().tolist(),
    )  # fmt: skip


class Stop(Exception):
    pass


class StopsAt(Recorder):
    """A recorder that raises at one of its operators."""

    left = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        type(self).left -= 1
        if type(self).left == 0:
            raise Stop
        return super().__torch_dispatch__(func, types, args, kwargs)


def captured(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(graph_module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph_module)
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, fullgraph=True)(*inputs)
    return graphs[0]


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("door", ["captured", "direct"])
def test_wherever_a_trace_stops(monkeypatch: pytest.MonkeyPatch, needs_grad: bool, door: str) -> None:
    x, w = torch.randn(3), torch.randn(3, 3)
    function: Callable[..., Any] = captured(all_kinds, x, w).forward if door == "captured" else all_kinds
    want, before = all_kinds(x, w), state()
    monkeypatch.setattr("litz.capture.joint.Recorder", StopsAt)
    inputs = [t.clone().requires_grad_(needs_grad) for t in (x, w)]
    stops = 0
    for k in range(1, 10_000, 11):
        StopsAt.left = k
        try:
            trace_joint(function, inputs, None, decompositions(), needs_grad)
        except CaptureError as error:
            assert isinstance(error.__cause__, Stop), error
            stops += 1
            assert state() == before, f"after a stop at operator {k}"
            torch.testing.assert_close(all_kinds(x, w), want)
        else:
            break
    assert stops > 15
    assert state() == before


@pytest.mark.parametrize("door", ["compile", "direct"])
def test_a_function_left_to_eager_that_raises(door: str) -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"), torch.inference_mode():
            return vmap(grad(lambda v: v[index].sum()))(x)

    x, far = torch.randn(2, 3), torch.tensor([7])
    before = state()
    run = torch.compile(function, backend="litz") if door == "compile" else compile_directly(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with pytest.raises(IndexError):
                run(x, far)
            assert state() == before
        torch.testing.assert_close(run(x, far * 0), function(x, far * 0))
