"""The fused steps of optimisers, generated: one kernel a parameter reads its state once and writes it once.

In: lists of parameters, gradients and state. Out: lists of what they become, in the order of the operator's results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type
from litz.loop.ir import View
from litz.ops.builder import Body, Builder, Space, Val, broadcast
from litz.ops.registry import lowers

aten = torch.ops.aten

Views = Sequence[View]


class _Step:
    """One parameter's step: its tensors as values, and a result for each list that the operator returns."""

    def __init__(self, b: Builder, fakes: Sequence[Sequence[torch.Tensor]], k: int, lists: Sequence[Views]):
        self.b, self.k = b, k
        self.lists = [views[k] if k < len(views) else None for views in lists]
        self.outs = [b.allocate(some[k]) if k < len(some) else None for some in fakes]
        self.space, self.body = Space(), Body()
        parameter = self.lists[0]
        assert parameter is not None
        self.point = self.space.over(parameter.sizes, parameter.strides)
        self.dtype = compute_type(parameter.dtype)
        self.values = [None if v is None else self.number(v) for v in self.lists]

    def number(self, value: View | float) -> Val:
        """A tensor's element here, or a number, in the type the step is computed in."""
        if isinstance(value, View):
            return self.body.cast(self.body.load(value, broadcast(value, self.point)), self.dtype)
        return self.body.const(value, self.dtype)

    def gradient(self, maximize: bool, scale: View | None) -> tuple[Val, Val]:
        """The gradient as it is used, and as it is left behind."""
        given = self.values[1]
        assert given is not None
        plain = given if scale is None else given / self.number(scale)
        return -plain if maximize else plain, plain

    def finish(self, found_inf: View | None, *values: Val | None) -> None:
        """Store each value, or, where an infinity was found, what was there before."""
        skip = None if found_inf is None else self.number(found_inf).eq(1)
        for out, value, old in zip(self.outs, values, self.values, strict=True):
            if out is not None and value is not None:
                assert old is not None
                self.body.store(out, self.point, value if skip is None else self.body.where(skip, old, value))
        self.b.emit(self.space, self.body)


def _steps(
    b: Builder, node: fx.Node, lists: Sequence[Views], step: Callable[[_Step], None]
) -> tuple[tuple[View | None, ...], ...]:
    fakes = node.meta["val"]
    made = []
    for k in range(len(lists[0])):
        one = _Step(b, fakes, k, lists)
        step(one)
        made.append(one.outs)
    return tuple(tuple(outs[i] for outs in made if outs[i] is not None) for i in range(len(fakes)))


# -- Adam -------------------------------------------------------------------------------------
@lowers(aten._fused_adamw.default, aten._fused_adamw.tensor_lr)
def fused_adamw(b: Builder, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
    return _adam(b, node, *args, **kwargs, decoupled=True)


@lowers(aten._fused_adam.default, aten._fused_adam.tensor_lr)
def fused_adam(b: Builder, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
    return _adam(b, node, *args, **kwargs, decoupled=False)


def _adam(
    b: Builder, node: fx.Node, parameters: Views, grads: Views, averages: Views, squares: Views, most: Views,
    counts: Views, *, lr: float | View, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool,
    maximize: bool, grad_scale: View | None = None, found_inf: View | None = None, decoupled: bool,
) -> Any:  # fmt: skip
    def step(one: _Step) -> None:
        body = one.body
        old, _, average, square, largest = one.values
        assert old is not None and average is not None and square is not None
        grad, left = one.gradient(maximize, grad_scale)
        rate = one.number(lr)
        value = old
        if weight_decay:
            value = value - value * (rate * weight_decay) if decoupled else value
            grad = grad if decoupled else grad + value * weight_decay
        average = average + (grad - average) * (1 - beta1)
        square = square * beta2 + grad * grad * (1 - beta2)
        largest = body.apply("max", largest, square) if amsgrad and largest is not None else None
        # In double, as eager: 1 - beta**step has few digits left in single at the start.
        taken = body.cast(body.load(counts[one.k], ()), "f64")
        warmth = [1 - body.apply("pow", body.const(beta, "f64"), taken) for beta in (beta1, beta2)]
        size = body.cast(body.cast(rate, "f64") / warmth[0], one.dtype)
        root = body.cast(body.apply("sqrt", warmth[1]), one.dtype)
        length = body.apply("sqrt", square if largest is None else largest) / root + eps
        value = value - size * average / length
        one.finish(found_inf, value, left if grad_scale is not None else one.values[1], average, square, largest)

    return _steps(b, node, (parameters, grads, averages, squares, most), step)


# -- stochastic gradient descent --------------------------------------------------------------
@lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def fused_sgd(
    b: Builder, node: fx.Node, parameters: Views, grads: Views, momenta: Views, *, weight_decay: float,
    momentum: float, lr: float | View, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: View | None = None, found_inf: View | None = None,
) -> Any:  # fmt: skip
    def step(one: _Step) -> None:
        old, _, speed = one.values
        assert old is not None
        grad, left = one.gradient(maximize, grad_scale)
        if weight_decay:
            grad = grad + old * weight_decay
        if momentum and speed is not None:
            speed = grad if is_first_step else speed * momentum + grad * (1 - dampening)
            grad = grad + speed * momentum if nesterov else speed
        value = old - grad * one.number(lr)
        one.finish(found_inf, value, left if grad_scale is not None else one.values[1], speed)

    return _steps(b, node, (parameters, grads, momenta), step)
