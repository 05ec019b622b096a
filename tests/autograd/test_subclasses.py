"""Tensor subclasses as arguments, parameters and results: what eager does with them, both doors do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import litz
from litz.capture.subclasses import form_of, put_together, taken_apart
from tests.autograd.both import Route, assert_compiled, both, left_to_eager


class Int8Weight(torch.Tensor):
    """A matrix kept as int8 with a scale for each row: to be multiplied with is all it can do."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, turned: bool = False) -> Int8Weight:
        sizes = data.t().shape if turned else data.shape
        return torch.Tensor._make_wrapper_subclass(cls, sizes, dtype=scale.dtype, device=data.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, turned: bool = False):
        self.data_, self.scale, self.turned = data, scale, turned

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data_", "scale"], self.turned

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], turned: Any, sizes: Any, strides: Any) -> Int8Weight:
        return Int8Weight(parts["data_"], parts["scale"], turned)

    def dequantised(self) -> torch.Tensor:
        whole = self.data_.to(self.scale.dtype) * self.scale[:, None]
        return whole.t() if self.turned else whole

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten.detach.default:
            return Int8Weight(args[0].data_, args[0].scale, args[0].turned)
        if func is aten.t.default:
            return Int8Weight(args[0].data_, args[0].scale, not args[0].turned)
        if func in (aten.mm.default, aten.addmm.default):
            return func(*(a.dequantised() if isinstance(a, Int8Weight) else a for a in args))
        raise NotImplementedError(f"Int8Weight has no {func}")


def two(*shape: int, needs_grad: bool = False) -> TwoTensor:
    return TwoTensor(torch.randn(shape), torch.randn(shape)).requires_grad_(needs_grad)


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            same(mine, theirs)
    elif isinstance(wanted, TwoTensor):
        assert (found.shape, found.stride(), found.requires_grad) == (
            wanted.shape,
            wanted.stride(),
            wanted.requires_grad,
        )
        same(found.a, wanted.a)
        same(found.b, wanted.b)
    else:
        torch.testing.assert_close(found, wanted)


def agrees(
    route: Route, function: Callable[..., Any], make: Callable[[], Sequence[Any]], compiled: bool = True
) -> None:
    """Results, the arguments afterwards, and the gradients of a sum over all results."""
    fast = route(function)
    for seed in range(2):
        outcomes = []
        for run in (function, fast):
            torch.manual_seed(seed)
            args = list(make())
            results = run(*args)
            flat = results if isinstance(results, (tuple, list)) else [results]
            differentiable = [r for r in flat if isinstance(r, torch.Tensor) and r.requires_grad]
            if differentiable:
                torch.autograd.backward(differentiable, [torch.ones_like(r) for r in differentiable])
            leaves = [a.grad for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
            outcomes.append(([x.detach() for x in flat], [a.detach() for a in args], leaves))
        same(outcomes[1], outcomes[0])
    if compiled:
        assert_compiled()
        report = litz.last_report()
        assert report is not None and report.launches
    else:
        assert left_to_eager()


@both
def test_subclasses_in_inference(route: Route) -> None:
    agrees(route, lambda x, w: ((x @ w).relu() * 2, w.sum(), x + 1), lambda: [torch.randn(4, 3), two(3, 5)])
    agrees(route, lambda x: x.exp(), lambda: [two(4, 3)])


@both
def test_subclasses_that_need_gradients(route: Route) -> None:
    agrees(
        route, lambda x, w: ((x @ w).relu(), w.exp()), lambda: [two(4, 3, needs_grad=True), two(3, 5, needs_grad=True)]
    )
    agrees(route, lambda x, w: x.detach() @ w, lambda: [torch.randn(4, 3), two(3, 5, needs_grad=True)])


@both
def test_subclasses_inside_one_another(route: Route) -> None:
    def nested() -> list:
        return [TwoTensor(two(4, 3), two(4, 3)).requires_grad_()]

    agrees(route, lambda x: x.sin() * 2, nested)


@both
def test_a_subclass_beside_plain_tensors(route: Route) -> None:
    agrees(
        route, lambda x, w, y: (x * 2, w * 3, (y * y).sum()),
        lambda: [torch.randn(3, requires_grad=True), two(2, needs_grad=True), torch.randn(4, requires_grad=True)],
    )  # fmt: skip


@both
def test_parameters_that_are_subclasses(route: Route) -> None:
    linear = nn.Linear(3, 5)
    linear.weight, linear.bias = nn.Parameter(two(5, 3)), nn.Parameter(two(5))
    x = torch.randn(4, 3)
    outcomes = []
    for run in (linear, route(linear)):
        linear.zero_grad()
        result = run(x)
        result.sum().backward(two(1).sum() * 0 + 1)
        outcomes.append((result.detach(), linear.weight.grad, linear.bias.grad))
    same(outcomes[1], outcomes[0])
    assert_compiled()


@both
def test_weights_kept_as_small_integers(route: Route) -> None:
    linear = nn.Linear(16, 8)
    scale = linear.weight.detach().abs().amax(1) / 127
    whole = (linear.weight.detach() / scale[:, None]).round().to(torch.int8)
    linear.weight = nn.Parameter(Int8Weight(whole, scale), requires_grad=False)
    x = torch.randn(4, 16, requires_grad=True)
    (wanted,) = torch.autograd.grad(linear(x).square().sum(), x)
    compiled = route(linear)
    torch.testing.assert_close(compiled(x), linear(x))
    (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
    torch.testing.assert_close(found, wanted)
    assert_compiled()


@both
def test_an_argument_that_comes_back(route: Route) -> None:
    x, compiled = two(4, 3), route(lambda x: (x, x.t(), x * 2))
    itself, turned, fresh = compiled(x)
    assert itself is x and type(turned) is type(fresh) is TwoTensor
    turned.a.fill_(7)
    assert (x.a == 7).all(), "a view of the argument's memory"
    assert_compiled()


@both
def test_one_subclass_passed_twice(route: Route) -> None:
    def both_of_them() -> list:
        x = two(3, needs_grad=True)
        return [x, x]

    agrees(route, lambda x, y: x * y.sin(), both_of_them)


@both
def test_a_write_to_a_subclass(route: Route) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.add_(1)
        return x * 2

    agrees(route, write, lambda: [two(3)])


@both
def test_what_is_made_otherwise_is_compiled_again_or_left(route: Route) -> None:
    compiled = route(lambda x: x * 2)
    for x in (two(3), torch.randn(3), TwoTensor(two(3), two(3)), two(5), two(3)):
        same(compiled(x), x * 2)


@both
def test_a_gradient_of_another_kind_than_its_tensor_is_left_to_eager(route: Route) -> None:
    with pytest.warns(UserWarning, match="the gradient of a plain tensor is a subclass"):
        litz.capture.leave._warned.clear()
        agrees(
            route, lambda x, w: x @ w,
            lambda: [torch.randn(4, 3, requires_grad=True), two(3, 5, needs_grad=True)], compiled=False,
        )  # fmt: skip


@both
def test_a_tangent_of_another_kind_than_its_result(route: Route) -> None:
    x = torch.randn(3, requires_grad=True)
    result = route(lambda x: x * 2)(x)
    with pytest.raises(litz.CallError, match="TwoTensor"):
        (result + two(3)).sum().backward(torch.ones_like(two(1).sum()))


def test_taking_apart_and_putting_together() -> None:
    x, plain = TwoTensor(two(2), two(2)), torch.zeros(1)
    forms = (form_of(plain), form_of(x))
    assert forms[0] is None and forms[1] is not None and forms[1].count == 4
    assert str(forms[1]) == "TwoTensor(a: TwoTensor(a, b), b: TwoTensor(a, b))"
    parts = taken_apart([plain, x], forms)
    assert [type(p) for p in parts] == [torch.Tensor] * 5 and parts[0] is plain
    assert parts[1].data_ptr() == x.a.a.data_ptr() and parts[1] is not x.a.a
    same(put_together(parts, forms), [plain, x])
    needing = two(2, needs_grad=True)
    (whole,) = put_together(taken_apart([needing], (form_of(needing),)), (form_of(needing),))
    (whole * 3).sum().backward(torch.ones_like(whole.sum()))
    assert torch.equal(needing.grad.a, torch.full((2,), 3.0)) and type(needing.grad) is TwoTensor


@both
def test_writes_beside_subclasses(route: Route) -> None:
    agrees(route, lambda p, t: (p.mul_(2), p * t)[1], lambda: [torch.randn(3, 4), two(3, 4, needs_grad=True)])
    agrees(route, lambda p, t: (t.mul_(2), t + p)[1], lambda: [torch.randn(3, 4), two(3, 4)])
