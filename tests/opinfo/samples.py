"""Cases out of torch's operator database: a function of flat tensors, and the tensors.

In: an entry of `op_db` and a dtype. Out: `Case`s: every sample, as it is and non-contiguous; and the samples that
must be refused. Everything of a sample that is not a tensor is bound into the function.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

DTYPES = {
    "float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool, "complex64": torch.complex64,
}  # fmt: skip
_WIDE = {
    torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip


def database() -> list[Any]:
    _stand_in_for_expecttest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as invocations
        from torch.testing._internal import common_utils
        from torch.testing._internal.opinfo import core
    # Random operators seed themselves in there, which is no part of the operator: whoever runs a case does it.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    # Before it draws, an entry looks for the unittest it draws for, and reads the source of every frame on the stack to
    # find it: under pytest that takes longer than most of the tests.
    core.extract_test_fn = common_utils.extract_test_fn = lambda: None
    return invocations.op_db


def _stand_in_for_expecttest() -> None:
    """The database's module asks for this package, for tests of its own: where only the database is wanted, an empty
    one will do."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        empty = types.ModuleType("expecttest")
        empty.__dict__.update(TestCase=unittest.TestCase, ACCEPT=False)
        sys.modules["expecttest"] = empty


def name_of(entry: Any) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def dtypes_of(entry: Any, device: str = "cpu") -> list[str]:
    supported = entry.supported_dtypes(device)
    return [name for name, dtype in DTYPES.items() if dtype in supported]


@dataclass
class Case:
    """`function(*tensors)` gives the list of the operator's results, flat."""

    operator: str
    dtype: str
    label: str  # "3" is the fourth sample, "3n" the same one non-contiguous, "e0" the first to be refused
    call: Callable[..., Any]
    leaves: list[Any]
    spec: Any
    backward: bool = False  # the function gives the gradients as well
    wanted: tuple[bool, ...] = ()  # which tensors take gradients, if not all that can
    device: str = "cpu"
    positions: list[int] = field(init=False)  # of the tensors among the leaves

    def __post_init__(self) -> None:
        self.positions = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def __str__(self) -> str:
        return f"{self.operator}[{self.dtype}] sample {self.label}"

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Fresh copies, so that no run sees what another wrote."""
        return [copied(self.leaves[i]) for i in self.positions]

    def function(self, *tensors: torch.Tensor) -> list[Any]:
        return with_gradients(self.forward, self.differentiated(tensors)) if self.backward else self.forward(*tensors)

    def differentiated(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors with a mark on those that take gradients."""
        wanted = self.wanted or [True] * len(tensors)
        return [t.detach().requires_grad_(w and _is_floating(t)) for t, w in zip(tensors, wanted, strict=True)]

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        leaves = list(self.leaves)
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return pytree.tree_leaves(self.call(*args, **kwargs))

    def in_double(self) -> Case:
        """The same case in float64 (complex128): what the referee computes."""
        return replace(self, leaves=[_widened(leaf) for leaf in self.leaves])

    def in_single(self) -> Case:
        """A float64 case in float32: how much eager's way of computing it loses."""
        return replace(self, leaves=[_narrowed(leaf) for leaf in self.leaves])

    def devices(self) -> set[str]:
        return {self.leaves[i].device.type for i in self.positions}

    def is_plain(self) -> bool:
        """Whether Litz takes such inputs at all: the front door leaves all others to eager."""
        return all(
            type(t) in (torch.Tensor, torch.nn.Parameter) and t.layout is torch.strided and not t.is_quantized
            and t.device.type == self.device and not t.is_conj() and not t.is_neg()
            for t in (self.leaves[i] for i in self.positions)
        )  # fmt: skip


def with_gradients(function: Callable[..., Any], leaves: Sequence[torch.Tensor]) -> list[Any]:
    """The results, and the gradients of what takes them for fixed tangents; None where there is none."""
    with torch.enable_grad():
        results = function(*leaves)
        used = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        wanted = [t for t in leaves if t.requires_grad]
        gradients: Sequence[Any] = [None] * len(wanted)
        if used and wanted:
            gradients = torch.autograd.grad(used, wanted, [tangent(r) for r in used], allow_unused=True)
    # How a gradient lies in memory is nobody's promise.
    laid_out = [g if g is None else g.contiguous() for g in gradients]
    return [*(r.detach() if isinstance(r, torch.Tensor) else r for r in results), *laid_out]


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def tangent(result: torch.Tensor) -> torch.Tensor:
    """Numbers around 1, exact in every type, none like its neighbours."""
    count = torch.arange(result.numel(), device=result.device)
    return (1 + (count * 7 % 16 - 8) / 16).to(result.dtype).reshape(result.shape)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its strides and the memory between its elements."""
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.clone()
    if tensor.is_conj() or tensor.is_neg():
        return tensor
    storage = tensor.untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return _WIDE.get(leaf, leaf)
    if isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDE:
        wide = leaf.detach().to(_WIDE[leaf.dtype])
        if leaf.layout is torch.strided and wide.stride() != leaf.stride() and not _overlaps(leaf):
            wide = torch.empty_strided(leaf.shape, leaf.stride(), dtype=wide.dtype, device=wide.device).copy_(wide)
        return wide
    return leaf


def _narrowed(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return torch.float32 if leaf is torch.float64 else leaf
    return leaf.detach().float() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float64 else leaf


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def cases(
    entry: Any, dtype: str, first: int | None = None, twins: bool = True, device: str = "cpu", begin: int = 0
) -> Iterator[Case]:
    """Every sample and its non-contiguous twin, if `twins`; of the samples from `begin` on, and before `first`."""
    torch.manual_seed(0)  # samples are drawn at random: the same ones each time
    every = entry.sample_inputs(device, DTYPES[dtype], requires_grad=False)
    for number, sample in islice(enumerate(every), begin, first):
        yield _case(entry, dtype, str(number), sample, device)
        twin = sample.noncontiguous() if twins and _is_strided(sample) else sample
        if _differs(sample, twin):
            yield _case(entry, dtype, f"{number}n", twin, device)


def differentiable(
    entry: Any, dtype: str, first: int | None = None, device: str = "cpu", begin: int = 0
) -> Iterator[Case]:
    """The samples that eager can differentiate, with their gradients."""
    torch.manual_seed(0)
    every = entry.sample_inputs(device, DTYPES[dtype], requires_grad=True)
    for number, sample in islice(enumerate(every), begin, first):
        case = _case(entry, dtype, str(number), sample, device)
        yield replace(case, backward=True, wanted=tuple(case.leaves[i].requires_grad for i in case.positions))


def has_gradients(entry: Any, dtype: str, device: str = "cpu") -> bool:
    return entry.supports_autograd and DTYPES[dtype] in entry.supported_backward_dtypes(device)


def forwards(entry: Any, dtype: str, first: int | None = None, device: str = "cpu", begin: int = 0) -> Iterator[Case]:
    """The samples that eager can differentiate, with the tangents of their results: those of what takes gradients are
    arguments, behind all others."""
    for case in differentiable(entry, dtype, first, device, begin):
        moving = tuple(p for p, w in zip(case.positions, case.wanted, strict=True) if w)
        if not moving:
            continue
        leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in case.leaves]
        tangents = [_lying_alike(tangent(leaves[p]), leaves[p]) for p in moving]
        args, kwargs = pytree.tree_unflatten(leaves, case.spec)
        leaves, spec = pytree.tree_flatten((args, {**kwargs, "tangents": tangents}))
        yield Case(case.operator, dtype, case.label, Derivative(entry.op, moving), leaves, spec, device=device)


def has_forward_mode(entry: Any, dtype: str, device: str = "cpu") -> bool:
    return entry.supports_forward_ad and has_gradients(entry, dtype, device)


@dataclass(frozen=True)
class Derivative:
    """An operator with tangents for the leaves of its arguments that are `moving`: its tensors, and their tangents.
    `by` is `torch.func.jvp`, or what is to do the same."""

    call: Callable[..., Any]
    moving: tuple[int, ...]
    by: Callable[..., Any] = torch.func.jvp

    def __call__(self, *args: Any, tangents: Sequence[torch.Tensor], **kwargs: Any) -> list[Any]:
        leaves, spec = pytree.tree_flatten((args, kwargs))

        def of_moving(*moved: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = list(leaves)
            for place, value in zip(self.moving, moved, strict=True):
                given[place] = value
            args, kwargs = pytree.tree_unflatten(given, spec)
            return tuple(r for r in pytree.tree_leaves(self.call(*args, **kwargs)) if isinstance(r, torch.Tensor))

        results, rates = self.by(of_moving, tuple(leaves[p] for p in self.moving), tuple(tangents))
        return [*results, *map(_with_memory, rates)]


def _with_memory(rate: torch.Tensor) -> torch.Tensor:
    """Where a result does not move, torch's tangent may be zeros that lie nowhere."""
    return rate.clone() if rate._is_zerotensor() else rate


def _lying_alike(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor if _overlaps(like) else torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).copy_(tensor)


GRADIENTS, FORWARDS = "grad-", "jvp-"


def cases_of(
    entry: Any, kind: str, first: int | None = None, twins: bool = True, device: str = "cpu", begin: int = 0
) -> Iterator[Case]:
    """`kind` is a dtype; "grad-" before it is with gradients, "jvp-" with tangents."""
    if kind.startswith(GRADIENTS):
        return differentiable(entry, kind.removeprefix(GRADIENTS), first, device, begin)
    if kind.startswith(FORWARDS):
        return forwards(entry, kind.removeprefix(FORWARDS), first, device, begin)
    return cases(entry, kind, first, twins, device, begin)


def refused(entry: Any) -> Iterator[Case]:
    """What eager must refuse. Not all entries list such samples."""
    if entry.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for number, error in enumerate(entry.error_inputs("cpu")):
        yield _case(entry, "float32", f"e{number}", error.sample_input)


def _case(entry: Any, dtype: str, label: str, sample: Any, device: str = "cpu") -> Case:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    return Case(name_of(entry), dtype, label, entry.op, leaves, spec, device=device)


def _is_strided(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(t.layout is torch.strided for t in leaves if isinstance(t, torch.Tensor))


def _differs(sample: Any, twin: Any) -> bool:
    def strides(s: Any) -> list[Any]:
        leaves: Sequence[Any] = pytree.tree_leaves((s.input, s.args, s.kwargs))
        return [t.stride() for t in leaves if isinstance(t, torch.Tensor) and t.layout is torch.strided]

    return strides(sample) != strides(twin)
