"""Tensor subclasses that are made of plain tensors: taken apart for the graph, put together for the user.

In: arguments and results, some of them traceable wrapper subclasses (`__tensor_flatten__`). Out: plain tensors, and a
`Form` for each that says how to put it together again. Autograd sees both steps: the gradient of a subclass is a
subclass whose parts are the gradients of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from litz.errors import CaptureError


@dataclass(frozen=True)
class Form:
    """A subclass: its parts by name, plain (None) or subclasses themselves, and what else it is made from."""

    kind: type
    parts: tuple[tuple[str, Form | None], ...]
    extra: Any
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Plain tensors it is made of."""
        return sum(1 if form is None else form.count for _, form in self.parts)

    def build(self, plain: Iterator[torch.Tensor]) -> Any:
        parts = {name: next(plain) if form is None else form.build(plain) for name, form in self.parts}
        return self.kind.__tensor_unflatten__(parts, self.extra, self.sizes, self.strides)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        parts = (name if form is None else f"{name}: {form}" for name, form in self.parts)
        return f"{self.kind.__name__}({', '.join(parts)})"


Forms = tuple["Form | None", ...]


def form_of(value: Any) -> Form | None:
    """None for what is no such subclass."""
    if not is_subclass(value):
        return None
    names, extra = value.__tensor_flatten__()
    parts = tuple((name, form_of(getattr(value, name))) for name in names)
    return Form(type(value), parts, extra, tuple(value.shape), tuple(value.stride()))


def is_subclass(value: Any) -> bool:
    return type(value) is not torch.Tensor and is_traceable_wrapper_subclass(value)


def parts_of(value: Any) -> list[torch.Tensor]:
    """The plain tensors a subclass is made of."""
    names, _ = value.__tensor_flatten__()
    parts = [getattr(value, name) for name in names]
    return [plain for part in parts for plain in (parts_of(part) if is_subclass(part) else [part])]


def _parts_named(value: Any, form: Form) -> list[torch.Tensor]:
    """The same, of a subclass of that form, which knows their names: this is done at every call."""
    found: list[torch.Tensor] = []
    for name, inner in form.parts:
        part = getattr(value, name)
        found += [part] if inner is None else _parts_named(part, inner)
    return found


def has_gradient(part: torch.Tensor) -> bool:
    """Whole numbers have none; they are handed on as they are, since a nested tensor knows its offsets by identity."""
    return part.is_floating_point() or part.is_complex()


def taken_apart(values: Sequence[Any], forms: Forms) -> list[Any]:
    """Each subclass replaced by its parts, differentiably; one that is there twice has the same parts twice."""
    found: list[Any] = []
    seen: dict[int, list[Any]] = {}
    for value, form in zip(values, forms, strict=True):
        if form is None:
            found.append(value)
            continue
        if id(value) not in seen:
            needs_grad = torch.is_grad_enabled() and value.requires_grad
            # Not the parts themselves: what happens to a trace's inputs must not show in the subclass.
            parts = _parts_named(value, form)
            alone = _Apart.apply(value, form) if needs_grad else map(torch.Tensor.detach, filter(has_gradient, parts))
            rest = iter(alone)
            seen[id(value)] = [next(rest) if has_gradient(part) else part for part in parts]
        found += seen[id(value)]
    return found


def put_together(values: Sequence[Any], forms: Forms) -> list[Any]:
    """The reverse."""
    waiting = iter(values)
    found: list[Any] = []
    for form in forms:
        if form is None:
            found.append(next(waiting))
            continue
        parts = [next(waiting) for _ in range(form.count)]
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
            found.append(_Together.apply(form, *parts))
        else:
            found.append(form.build(iter(parts)))
    return found


class _Apart(torch.autograd.Function):
    """The parts that have gradients."""

    @staticmethod
    def forward(ctx: Any, value: Any, form: Form) -> Any:
        ctx.form, parts = form, parts_of(value)
        ctx.zeros = [partial(torch.zeros, p.shape, dtype=p.dtype, device=p.device) for p in parts]
        ctx.rest = [None if has_gradient(p) else p for p in parts]  # which the gradient of the whole has too
        ctx.set_materialize_grads(False)
        return tuple(part.detach() for part in parts if has_gradient(part))

    @staticmethod
    @torch.compiler.disable(reason="Litz's own code")
    def backward(ctx: Any, *given: Any) -> Any:
        if all(gradient is None for gradient in given):
            return None, None
        waiting = iter(given)
        found = [next(waiting) if part is None else part for part in ctx.rest]
        parts = (make() if part is None else part for part, make in zip(found, ctx.zeros, strict=True))
        return _without_grad(ctx.form.build(parts)), None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, *parts: Any) -> Any:
        ctx.form, ctx.has_gradient = form, [has_gradient(part) for part in parts]
        ctx.set_materialize_grads(False)
        return _without_grad(form.build(part.detach() if has_gradient(part) else part for part in parts))

    @staticmethod
    @torch.compiler.disable(reason="Litz's own code")
    def backward(ctx: Any, given: Any) -> Any:
        if given is None:
            return None, *(None for _ in ctx.has_gradient)
        form = form_of(given)
        if form is None or (form.kind, form.count) != (ctx.form.kind, ctx.form.count):
            raise CaptureError(f"the gradient of a {ctx.form} is a {type(given).__name__}, which has no such parts")
        return None, *(p if has else None for p, has in zip(parts_of(given), ctx.has_gradient, strict=True))


def _without_grad(whole: Any) -> Any:
    """Some are built needing gradients, as what they were taken from did; here autograd says who does."""
    return whole.requires_grad_(False)
