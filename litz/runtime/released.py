"""Parameters and buffers whose memory was given up: they keep their form, and whoever touches them is told why.

In: a tensor that only constants of a frozen program are still made of. Out: the same object, without memory. It has the
type, shape, strides, device and `requires_grad` it had, so that a module can be looked at, and Dynamo's guards, which
are about these, hold; anything that would read or write its elements raises.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.errors import CallError


def _refuse(function: Any, name: str) -> Any:
    of_property = getattr(getattr(function, "__self__", None), "__name__", None)
    what = of_property or getattr(function, "__name__", function)
    raise CallError(
        f"{what} of {name}: its memory was released when the program was frozen with freeze='discard'",
        hint="use freeze=True to keep the originals, or build the model again",
    )


class _Released:
    """Whatever is asked of it that takes more than its form is an error."""

    _litz_name: str

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if function in _OF_FORM:
                return function(*args, **(kwargs or {}))
        gone = next((a for a in _leaves(args, kwargs) if isinstance(a, _Released)), None)
        return _refuse(function, "a parameter" if gone is None else gone._litz_name)

    def __repr__(self) -> str:
        return f"<{self._litz_name}, released by freeze='discard'>"

    def __deepcopy__(self, memo: Any) -> Any:
        return _refuse(self.__deepcopy__, self._litz_name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _refuse(self.__reduce_ex__, self._litz_name)


class ReleasedParameter(_Released, torch.nn.Parameter):
    pass


class ReleasedBuffer(_Released, torch.Tensor):
    pass


_RELEASED = {torch.nn.Parameter: ReleasedParameter, torch.Tensor: ReleasedBuffer}
_FORM = (
    "shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "ndim", "names", "grad", "grad_fn", "_base",
    "is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_mkldnn", "is_nested", "itemsize", "_version",
    "_backward_hooks", "output_nr", "retains_grad", "volatile", "is_xpu", "is_mps", "is_vulkan", "is_ipu", "is_xla",
)  # fmt: skip
_ASKED = (
    "size", "stride", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_contiguous",
    "storage_offset", "ndimension", "get_device", "is_inference", "is_conj", "is_neg", "is_signed", "__hash__",
    "__len__",
)  # fmt: skip
_OF_FORM = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _FORM if hasattr(torch.Tensor, name)]
    + [getattr(torch.Tensor, name) for name in _ASKED]
    + [torch.numel, torch.is_floating_point, torch.is_complex, torch.is_inference, torch.is_conj, torch.is_neg]
)


def _leaves(args: Any, kwargs: Any) -> list[Any]:
    found: list[Any] = []
    todo = [args, *(kwargs or {}).values()]
    while todo:
        value = todo.pop()
        if isinstance(value, (tuple, list)):
            todo += value
        else:
            found.append(value)
    return found


def may_be_released(tensor: Any) -> bool:
    """Whether it is of a type that has a released form, and not a view, whose memory is others' as well."""
    return type(tensor) in _RELEASED and tensor._base is None


def is_released(tensor: Any) -> bool:
    return isinstance(tensor, _Released)


def release(tensor: torch.Tensor, name: str) -> None:
    """Gives up its memory, which may live on as a program's constant."""
    if not may_be_released(tensor):
        return
    with torch.no_grad():
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        empty.untyped_storage().resize_(0)
        tensor.data = empty
    released = _RELEASED[type(tensor)]
    tensor._litz_name = name  # type: ignore[attr-defined]
    tensor.__class__ = released


__all__ = ["is_released", "may_be_released", "release"]
