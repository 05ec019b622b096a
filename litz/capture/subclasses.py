"""Tensor subclasses that are made of plain tensors: taken apart for the graph, put together for the user.

In: arguments and results, some of them traceable wrapper subclasses (`__tensor_flatten__`). Out: plain tensors, and a
`Form` for each that says how to put it together again. Autograd sees both steps: the gradient of a subclass is a
subclass whose parts are the gradients of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
            seen[id(value)] = (
                list(_Apart.apply(value, form)) if needs_grad else [part.detach() for part in parts_of(value)]
            )
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
    @staticmethod
    def forward(ctx: Any, value: Any, form: Form) -> Any:
        parts = [part.detach() for part in parts_of(value)]
        if not all(part.is_floating_point() or part.is_complex() for part in parts):
            raise CaptureError(f"a {form} requires grad, and parts of it are whole numbers, which have no gradient")
        ctx.form, ctx.like = form, [torch.empty((), dtype=p.dtype, device=p.device).expand(p.shape) for p in parts]
        ctx.set_materialize_grads(False)
        return tuple(parts)

    @staticmethod
    @torch.compiler.disable(reason="Litz's own code")
    def backward(ctx: Any, *given: Any) -> Any:
        if all(gradient is None for gradient in given):
            return None, None
        parts = [torch.zeros_like(p) if g is None else g for g, p in zip(given, ctx.like, strict=True)]
        return ctx.form.build(iter(parts)), None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, *parts: Any) -> Any:
        ctx.form = form
        return form.build(iter(part.detach() for part in parts))

    @staticmethod
    @torch.compiler.disable(reason="Litz's own code")
    def backward(ctx: Any, given: Any) -> Any:
        form = form_of(given)
        if form is None or (form.kind, form.count) != (ctx.form.kind, ctx.form.count):
            raise CaptureError(f"the gradient of a {ctx.form} is a {type(given).__name__}, which has no such parts")
        return None, *parts_of(given)
