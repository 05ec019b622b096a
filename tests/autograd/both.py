"""The same program in eager and compiled, through both doors: everything a user can see must be equal.

`routes` are `torch.compile(backend="litz")` and `compile_directly`; `agrees` compares results, their types,
strides, memory and place in the autograd graph, updates of inputs, and every gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure

import litz
from litz.capture.direct import compile_directly

Route = Callable[[Callable[..., Any]], Callable[..., Any]]


def through_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz")


def directly(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()  # eager's own higher-order operators go through it
    return compile_directly(function)


ROUTES: dict[str, Route] = {"torch.compile": through_compile, "directly": directly}
both = pytest.mark.parametrize("route", ROUTES.values(), ids=list(ROUTES))

Inputs = Sequence[Any]


def grad(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True, **options)


def agrees(
    route: Route,
    function: Callable[..., Any],
    make: Callable[[], Inputs],
    *,
    compiled: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    calls: int = 2,
) -> Any:
    """`make` gives the inputs; it is called with one seed, so that both sides get the same.

    What `make` returns may be non-leaf tensors: the gradients compared are those of the leaves it made, which
    it lists under the last element if that is a dict named `{"leaves": […]}`.
    """
    fast = route(function)
    own = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    for call in range(calls):
        want = _once(function, make, own, call)
        got = _once(fast, make, own, call)
        _compare(got, want, rtol, atol)
    if compiled:
        assert_compiled()
    return fast


def assert_compiled() -> None:
    report = litz.last_report()
    assert report is not None
    left = [note for note in report.notes if "left to eager" in note]
    assert not left, left


def left_to_eager() -> bool:
    report = litz.last_report()
    return report is not None and any("left to eager" in note for note in report.notes)


def _once(
    function: Callable[..., Any], make: Callable[[], Inputs], own: list[torch.Tensor], call: int
) -> dict[str, Any]:
    torch.manual_seed(call)
    inputs = list(make())
    leaves = None
    if inputs and isinstance(inputs[-1], dict) and set(inputs[-1]) == {"leaves"}:
        leaves = inputs.pop()["leaves"]
    inputs_flat = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    leaves = [*([x for x in inputs_flat if x.is_leaf] if leaves is None else leaves), *own]
    leaves = [x for x in leaves if x.requires_grad]
    versions = [None if x.is_inference() else x._version for x in inputs_flat]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = function(*inputs)
    found = {"result": result, "inputs": inputs_flat, "leaves": leaves}
    found["bumped"] = [v is not None and x._version > v for x, v in zip(inputs_flat, versions, strict=True)]
    found["values"] = [x.detach().clone() for x in inputs_flat]
    flat = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    found["results"] = [x.detach().clone() for x in flat]
    total = sum(
        (_weighed(x) for x in [*flat, *inputs_flat] if x.requires_grad and x.grad_fn is not None),
        torch.zeros(()),
    )
    if total.requires_grad:
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        found["gradients"] = gradients
    return found


def _weighed(x: torch.Tensor) -> torch.Tensor:
    found = (x * _weights(x)).sum()
    return found.real + 2 * found.imag if found.is_complex() else found


def _weights(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, max(1, x.numel()), dtype=torch.float64).to(x.dtype)[: x.numel()].view(x.shape)


def _compare(got: dict[str, Any], want: dict[str, Any], rtol: float, atol: float) -> None:
    assert tree_structure(got["result"]) == tree_structure(want["result"])
    for mine, theirs in zip(tree_leaves(got["result"]), tree_leaves(want["result"]), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs and type(mine) is type(theirs)
            continue
        assert (mine.dtype, mine.shape, mine.requires_grad) == (theirs.dtype, theirs.shape, theirs.requires_grad)
        assert (mine.grad_fn is None) == (theirs.grad_fn is None), (mine.grad_fn, theirs.grad_fn)
        if theirs.numel() > 1:
            assert mine.stride() == theirs.stride()
    for what in ("results", "values"):
        for mine, theirs in zip(got[what], want[what], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)
    assert got["bumped"] == want["bumped"]
    assert _shared(got) == _shared(want)
    for mine, theirs in zip(got["inputs"], want["inputs"], strict=True):
        assert (mine.requires_grad, mine.is_leaf) == (theirs.requires_grad, theirs.is_leaf)
    assert ("gradients" in got) == ("gradients" in want)
    for mine, theirs in zip(got.get("gradients", ()), want.get("gradients", ()), strict=True):
        assert (mine is None) == (theirs is None), "a gradient exists on one side only"
        if theirs is not None:
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)


def _shared(found: dict[str, Any]) -> list[list[bool]]:
    """Which memory each result shares: that of inputs and of other results; and which are the same object."""
    results = [x for x in tree_leaves(found["result"]) if isinstance(x, torch.Tensor)]
    others = [*found["inputs"], *results]
    return [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0 for b in others] for a in results]
