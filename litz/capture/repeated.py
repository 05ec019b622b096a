"""What operators give for fakes, worked out once for arguments of the same form.

In: an operator and its arguments. Out: its fake result, laid out as eager's kernels do it.

A model's layers are alike, so nearly every call of a trace is like an earlier one. PyTorch remembers such answers too,
and finds them slowly, since it has to think of symbols, constants and modes. What takes part here is only what ordinary
layers have: plain fakes of fixed sizes, and operators of ATen's that write to nothing; anything else is worked out each
time. What is made from an answer has memory of its own or, if the operator is a view, that of its first argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from litz.graph.eager_strides import as_eager_lays_out
from litz.ops.layout import depends_on_memory


class Fake(NamedTuple):
    """The result of an operator; and whether fakes have other strides than eager gives it."""

    value: Any
    laid_out_anew: bool


class _Form(NamedTuple):
    """All that an operator sees of a plain fake."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class _Answer(NamedTuple):
    forms: Any  # in the place of tensors
    laid_out_anew: bool


class _OutOfTheOrdinary(Exception):
    """A value that is worked with each time."""


class Repeated:
    """The answers of one trace, in a mode of fakes whose sizes are all known; else there are none."""

    def __init__(self, mode: FakeTensorMode | None):
        self._mode = mode if mode is not None and mode.shape_env is None else None
        self._answers: dict[Any, _Answer] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fake:
        if self._mode is None or not _is_ordinary(func):
            return self._asked(func, args, kwargs)
        try:
            key = (func, _formed(args), _formed(tuple(kwargs.items())) if kwargs else ())
        except _OutOfTheOrdinary:
            return self._asked(func, args, kwargs)
        known = self._answers.get(key)
        if known is not None:
            of = args[0] if func.is_view else None
            return Fake(self._made(known.forms, of), known.laid_out_anew)
        found = self._asked(func, args, kwargs)
        with suppress(_OutOfTheOrdinary):
            self._answers[key] = _Answer(_answer(func, found.value), found.laid_out_anew)
        return found

    @staticmethod
    def _asked(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fake:
        fake = func(*args, **kwargs)
        laid_out = as_eager_lays_out(func, args, fake)
        return Fake(laid_out, laid_out is not fake)

    def _made(self, forms: Any, of: FakeTensor | None) -> Any:
        if type(forms) is _Form:
            assert self._mode is not None
            return _fake(self._mode, forms, None if of is None else of.untyped_storage())
        return type(forms)(self._made(form, of) for form in forms) if isinstance(forms, (tuple, list)) else forms


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor | None:
    """A fake, in memory of its own, of a tensor that is all of its memory and nothing out of the ordinary, as most
    parameters are; else None."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or mode.shape_env is not None:
        return None
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        return None
    if tensor.is_quantized or tensor.is_inference() or not tensor.is_contiguous() or tensor.storage_offset():
        return None
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.itemsize or tensor.device.type == "meta":
        return None
    return _fake(mode, _Form(tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, tensor.device), None)


def _fake(mode: FakeTensorMode, form: _Form, memory: torch.UntypedStorage | None) -> FakeTensor:
    shape, stride, offset, dtype, device = form
    with in_kernel_invocation_manager(mode):
        elements = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        if memory is not None:
            elements.set_(memory, offset, shape, stride)  # type: ignore[call-overload]
    return FakeTensor(mode, elements, device)


@lru_cache(maxsize=None)
def _is_ordinary(func: Any) -> bool:
    """Whether the forms of its arguments are all that its result depends on."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return False
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view} & set(func.tags):
        return False
    if depends_on_memory(func) is not None:
        return False  # on all of it, however much a fake is of
    arguments, returns = func._schema.arguments, func._schema.returns
    if not func.is_view:
        return not any(a.alias_info is not None for a in (*arguments, *returns))
    return arguments[0].alias_info is not None and all(a.alias_info is None for a in arguments[1:])


def _formed(value: Any) -> Any:
    """As part of a key. Numbers are told apart by their types, which those of results depend on."""
    kind = type(value)
    if kind is FakeTensor:
        return _form(value)
    if kind is tuple or kind is list:
        return (kind, *map(_formed, value))
    if kind in _PLAIN or value is None:
        return kind, value
    raise _OutOfTheOrdinary


_PLAIN = {
    int, float, bool, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
}  # fmt: skip


def _form(fake: FakeTensor) -> _Form:
    if (
        fake.constant is not None or fake.layout is not torch.strided or fake.requires_grad
        or fake.is_conj() or fake.is_neg() or fake._is_zerotensor() or fake.is_inference()
    ):  # fmt: skip
        raise _OutOfTheOrdinary
    return _Form(tuple(fake.shape), fake.stride(), fake.storage_offset(), fake.dtype, fake.fake_device)


def _bytes(form: _Form) -> int:
    """Of memory that holds it and nothing else."""
    if 0 in form.shape:
        return 0
    return form.dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(form.shape, form.stride, strict=True)))


def _answer(func: Any, result: Any) -> Any:
    if type(result) is FakeTensor:
        form = _form(result)
        if not func.is_view and (form.offset or result.untyped_storage().nbytes() != _bytes(form)):
            raise _OutOfTheOrdinary  # it lies somewhere in memory that is larger
        return form
    if type(result) in (tuple, list):
        return type(result)(_answer(func, part) for part in result)
    if isinstance(result, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise _OutOfTheOrdinary
    return result


__all__ = ["Fake", "Repeated", "fake_like"]
