"""Tensors in the place of others, for a trace to come.

In: the inputs of a compile. Out: a function that makes inputs which a trace cannot tell from them: as they lie in
memory, which of them share it, what autograd knows of them. Only their values are not kept, nor is anything of the
caller's kept alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True, eq=False)
class _Form:
    """A tensor, and the one whose view it is, with which it counts its versions. `storage` is a number."""

    base: _Form | None
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    requires_grad: bool
    is_leaf: bool
    parameter: bool
    inference: bool
    conjugated: bool
    negated: bool


def stand_ins(inputs: Sequence[Any]) -> Callable[[], list[Any]]:
    """What has no memory (a number, a fake) stands for itself."""
    looked = _Looking()
    places = [looked.at(x) if _has_memory(x) else x for x in inputs]
    storages = looked.storages
    return lambda: _Making(storages).all(places)


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


class _Looking:
    """Each tensor once, each storage once."""

    def __init__(self) -> None:
        self.storages: list[tuple[int, torch.device]] = []
        self._numbers: dict[int, int] = {}
        self._forms: dict[int, _Form] = {}

    def at(self, tensor: torch.Tensor) -> _Form:
        if id(tensor) not in self._forms:
            base = None if tensor._base is None else self.at(tensor._base)
            self._forms[id(tensor)] = _Form(
                base, self._storage(tensor), tuple(tensor.shape), tensor.stride(), tensor.storage_offset(),
                tensor.dtype, tensor.requires_grad, tensor.is_leaf, isinstance(tensor, torch.nn.Parameter),
                tensor.is_inference(), tensor.is_conj(), tensor.is_neg(),
            )  # fmt: skip
        return self._forms[id(tensor)]

    def _storage(self, tensor: torch.Tensor) -> int:
        memory = tensor.untyped_storage()
        number = self._numbers.setdefault(memory._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append((memory.nbytes(), tensor.device))
        return number


class _Making:
    def __init__(self, storages: Sequence[tuple[int, torch.device]]):
        # Memory that nobody touches is none of the machine's.
        self._storages = [torch.empty(n, dtype=torch.uint8, device=device).untyped_storage() for n, device in storages]
        self._made: dict[int, torch.Tensor] = {}

    def all(self, places: Sequence[Any]) -> list[Any]:
        return [self._tensor(place) if isinstance(place, _Form) else place for place in places]

    def _tensor(self, form: _Form) -> torch.Tensor:
        if id(form) not in self._made:
            with torch.inference_mode(form.inference):
                self._made[id(form)] = self._known_to_autograd(form)
        return self._made[id(form)]

    def _known_to_autograd(self, form: _Form) -> torch.Tensor:
        base = None if form.base is None else self._tensor(form.base)
        computed = form.requires_grad and not form.is_leaf
        with torch.set_grad_enabled(computed and base is not None and base.requires_grad):
            tensor = self._lying(form, base)
        if form.parameter:
            return torch.nn.Parameter(tensor, form.requires_grad)
        if not form.requires_grad or tensor.requires_grad:
            return tensor
        with torch.enable_grad():
            return _Computed.apply((tensor,), _LEAF) if computed else tensor.requires_grad_()

    def _lying(self, form: _Form, base: torch.Tensor | None) -> torch.Tensor:
        if base is None:
            memory = self._storages[form.storage]
            whole = torch.empty(0, dtype=form.dtype, device=memory.device)
            tensor = whole.set_(memory, form.offset, form.shape, form.strides)  # type: ignore[call-overload]
        else:
            same = base if base.dtype is form.dtype else base.view(form.dtype)
            tensor = same.as_strided(form.shape, form.strides, form.offset)
        tensor = tensor.conj() if form.conjugated else tensor
        return torch._neg_view(tensor) if form.negated else tensor


class _Computed(torch.autograd.Function):
    """A tensor as the result of something, and no view."""

    @staticmethod
    def forward(ctx: Any, tensor: tuple[torch.Tensor], leaf: torch.Tensor) -> torch.Tensor:
        return tensor[0]


_LEAF = torch.empty(0, device="cpu", requires_grad=True)


__all__ = ["stand_ins"]
