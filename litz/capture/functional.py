"""Functionalisation, and what it forgets of memory.

PyTorch's turns writes into new values. A value has the sizes of what was written to, and not its place in memory: the
gaps between its elements, and their order. What can see memory is put right here, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from litz.compat import adds_nothing_of_varying_sizes
from litz.errors import CaptureError
from litz.graph.alias import CHECKS
from litz.graph.sizes import is_dense, likely, sizes
from litz.ops.layout import depends_on_memory

aten = torch.ops.aten


class Functional(FunctionalTensorMode):
    """Functionalisation without the annotations that only PyTorch's own tracer could read."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: set[int] = set()  # memory with gaps that something may look into
        self._one_place: dict[int, torch.Tensor] = {}  # views with an element in two places, and views of those, by id
        self._reshaped: dict[int, list[torch.Tensor]] = {}  # memory: what was reshaped in place there, and views since
        self.refused: CaptureError | None = None  # torch 2.11's transforms raise something else in its place

    def _sync_view_replay_annotations(self, args: Any, kwargs: Any) -> None:
        pass

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CHECKS:
            # PyTorch would thread a token through the graph to keep such calls; here a call in its place is kept.
            return func(*(unwrap(a) for a in args), **(kwargs or {}))
        if _counts_in_memory(func):
            args = tree_map_only(FunctionalTensor, self._as_it_lies, args)
        elif func is aten.as_strided.default:
            self._open_window(args[0])
        elif self._windows:
            self._refuse_writes(func, args)
        if _writes(func):
            self._refuse_overlaps(func, args, kwargs or {})
        if func is aten.cudnn_batch_norm.default and args[5]:
            return self._batch_norm(*args, **(kwargs or {}))
        if func is aten.native_dropout.default and _is_one(args[1]) and args[2] is not False:
            return self._drop_all(args[0])
        if func is aten.bernoulli_.float and not args[0].is_contiguous():
            # Eager draws along memory, gaps or none. The functional operator gives rows, and draws along those: dropout
            # of something transposed dropped other elements. Drawn on its dimensions in the order of memory, both are
            # the same.
            order = sorted(range(args[0].dim()), key=lambda d: -args[0].stride(d))
            if order != list(range(args[0].dim())):
                with self:
                    args[0].permute(order).bernoulli_(*args[1:], **(kwargs or {}))
                    return args[0]
        if FunctionalTensor in types and _makes_new_values(func) and _is_called_plainly():
            try:
                values, named = _value(args), {name: _value(value) for name, value in (kwargs or {}).items()}
            except _NoPlainValue:
                pass
            else:
                return self._wrapped(func(*values, **named))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if _writes(func) and not _reshapes(func):
            self._lay_out_as_before(func, args, kwargs or {})
        if _reshapes(func) and isinstance(args[0], FunctionalTensor) and not args[0]._is_view():
            self._reshaped.setdefault(_memory(args[0]), []).append(args[0])
        elif self._reshaped and _is_view(func) and isinstance(args[0], FunctionalTensor):
            self._reshaped.get(_memory(args[0]), []).extend(tree_leaves(result))
        if _is_view(func) and (id(args[0]) in self._one_place or _repeats(func, result)):
            self._one_place |= {id(view): view for view in tree_leaves(result)}
        return self._still_nothing(result) if _keeps_nothing(func, args) else result

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return FunctionalTensor(torch._to_functional_tensor(value), self)
        return type(value)(map(self._wrapped, value)) if isinstance(value, (tuple, list)) else value

    def _batch_norm(
        self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
    ) -> Any:
        """In training it updates its statistics, which its schema keeps quiet about: the same by one that says so."""
        with self:
            if mean is None:
                made = aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
            else:
                made = aten._native_batch_norm_legit.default(x, weight, bias, mean, variance, training, momentum, eps)
            return (*made, torch.empty(0, dtype=torch.uint8, device=x.device))

    def _drop_all(self, x: Any) -> Any:
        """`dropout` multiplies by zero where nothing is kept, and keeps signs and NaNs. Traced with torch's dispatcher
        in Python it comes as this operator, whose kernel for GPUs writes zeros."""
        with self:
            return x * 0.0, torch.zeros_like(x, dtype=torch.bool)

    def _still_nothing(self, zeros: Any) -> Any:
        """As a tensor that is zero without memory, which forward mode makes for the tangent of what has none.

        Added to something it adds nothing, not 0.0: the sum keeps the sign of a zero. Eager makes another of it where
        its operators are taken apart; here that is below the place that knows of such tensors.
        """
        with self:
            return aten._efficientzerotensor.default(zeros.shape, dtype=zeros.dtype, device=zeros.device)

    def _as_it_lies(self, tensor: FunctionalTensor) -> torch.Tensor:
        """What was written to, with the gaps that its memory has."""
        if sizes(unwrap(tensor).stride()) == sizes(tensor.stride()):
            return tensor
        with self:
            lying = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            return lying.copy_(tensor)

    def _lay_out_as_before(self, func: Any, args: Any, kwargs: Any) -> None:
        """What was written to, and what it is a view of, where the new value lies otherwise than the tensor: what comes
        after asks the value whether a view can be had, and in which order numbers are drawn."""
        given = _by_name(func, args, kwargs)
        for spec in func._schema.arguments:
            written = given.get(spec.name)
            if spec.alias_info is None or not spec.alias_info.is_write or not isinstance(written, FunctionalTensor):
                continue
            for tensor in (written, written._base) if written._is_view() else (written,):
                if isinstance(tensor, FunctionalTensor) and _has_no_gaps(tensor):
                    lying = self._as_it_lies(tensor)
                    if lying is not tensor:
                        torch._functionalize_replace(tensor.elem, unwrap(lying))
                        torch._functionalize_commit_update(tensor.elem)
                        torch._functionalize_sync(tensor.elem)

    def _open_window(self, tensor: Any) -> None:
        """`as_strided` may look between the elements of a tensor, at memory that no write to the tensor is about."""
        if not isinstance(tensor, FunctionalTensor) or _has_no_gaps(tensor):
            return
        if unwrap(tensor).stride() != tensor.stride():
            self._refuse("as_strided looks between the elements of something that was written to")
        self._windows.add(_memory(tensor))

    def _refuse_writes(self, func: Any, args: Any) -> None:
        if not isinstance(func, torch._ops.OpOverload) or not func._schema.is_mutable:
            return
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, FunctionalTensor) and _memory(value) in self._windows:
                self._refuse("something is written to that as_strided looks at between its elements")

    def _refuse_overlaps(self, func: Any, args: Any, kwargs: Any) -> None:
        """Eager raises where a part of what is read is written to, and as a rule where what is written to lies in one
        place several times. Of values, none is a part of another, and what is put into an expanded one is lost; what is
        put into a part of it is not seen in its other parts, and in memory as a sum of differences, which rounds. And
        the gradient of what was reshaped in place does not know of writes through views from before."""
        given = _by_name(func, args, kwargs)
        tensors = {name: value for name, value in given.items() if isinstance(value, FunctionalTensor)}
        for spec in func._schema.arguments:
            if spec.alias_info is None or not spec.alias_info.is_write or spec.name not in tensors:
                continue
            written = tensors[spec.name]
            since = self._reshaped.get(_memory(written), ())
            if since and written.requires_grad and not any(written is one for one in since):
                self._refuse("something is written to of which a view was reshaped in place")
            if _lies_in_one_place(written) or id(written) in self._one_place:
                self._refuse("something is written to of which several elements are one")
            for name, value in tensors.items() if _minds_overlaps(func) else ():
                if name == spec.name or _memory(value) != _memory(written):
                    continue
                if _overlap_in_part(value, written) or (_puts(func) and _overlap(value, written)):
                    self._refuse("something is written to of which a part is read")

    def _refuse(self, why: str) -> NoReturn:
        self.refused = CaptureError(why, stage="trace")
        raise self.refused


def unwrap(value: Any) -> Any:
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


# -- what has nothing to make functional -----------------------------------------------------------
class _NoPlainValue(Exception):
    """Something among the arguments that is not just a functional tensor or a plain value."""


@lru_cache(maxsize=None)
def _makes_new_values(func: Any) -> bool:
    """Whether it is one operator that takes tensors and gives new ones, writes to none and gives views of none: it can
    be run on the values themselves, without all that PyTorch asks of operators first. Most calls are of such."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return False
    arguments, returns = func._schema.arguments, func._schema.returns
    if any(a.alias_info is not None for a in (*arguments, *returns)) or func._can_decompose():
        return False
    if func is aten._to_copy.default:
        return True  # PyTorch's own way with it is this one
    key = torch._C.DispatchKey.Functionalize
    own_way = key in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    return not own_way and any(isinstance(r.type, torch._C.TensorType) for r in returns)


def _is_called_plainly() -> bool:
    """Not within a transform, nor behind the dispatcher in Python: these have a say in what is called below."""
    if torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher):
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def _value(value: Any) -> Any:
    if type(value) is FunctionalTensor:
        found = unwrap(value)
        if found.is_conj() or found.is_neg() or found._is_zerotensor():
            raise _NoPlainValue  # what such a bit means is worked out by operators that know of it
        return found
    if isinstance(value, (tuple, list)):
        return type(value)(map(_value, value))
    if isinstance(value, torch.Tensor):
        raise _NoPlainValue
    return value


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    return is_dense(tensor, sorted(range(tensor.dim()), key=lambda d: (-likely(tensor.stride(d)), d)))


def _lies_in_one_place(tensor: torch.Tensor) -> bool:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(likely(step) == 0 and likely(size) > 1 for size, step in steps) and 0 not in map(likely, tensor.shape)


def _repeats(func: Any, view: Any) -> bool:
    """Whether a view has an element of memory in several places. (Of `unfold`, PyTorch refuses writes itself.)"""
    if func is aten.expand.default:
        return _lies_in_one_place(view)
    if func is not aten.as_strided.default or 0 in map(likely, view.shape):
        return False
    steps = [pair for pair in zip(map(likely, view.stride()), map(likely, view.shape), strict=True) if pair[1] > 1]
    reach = 0  # of the dimensions with smaller steps
    for step, size in sorted(steps):
        if step <= reach:
            return prod(size for _, size in steps) > _COUNTED or not _all_apart(steps)
        reach += (size - 1) * step
    return False


_COUNTED = 1 << 16  # elements that are looked at one by one


def _all_apart(steps: Sequence[tuple[int, int]]) -> bool:
    places = {0}
    for step, size in steps:
        places = {place + i * step for place in places for i in range(size)}
    return len(places) == prod(size for _, size in steps)


def _overlap_in_part(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of two that share memory, as far as eager looks: where one has gaps, it does not."""
    if not _has_no_gaps(a) or not _has_no_gaps(b):
        return False
    (first, end), (other_first, other_end) = _bytes(a), _bytes(b)
    if (first, end) == (other_first, other_end):
        return first < end and sizes(a.stride()) != sizes(b.stride())
    return max(first, other_first) < min(end, other_end)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (first, end), (other_first, other_end) = _bytes(a), _bytes(b)
    return _has_no_gaps(a) and _has_no_gaps(b) and max(first, other_first) < min(end, other_end)


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    first = likely(tensor.storage_offset())
    return first * tensor.element_size(), (first + likely(tensor.numel())) * tensor.element_size()


def _memory(tensor: FunctionalTensor) -> int:
    """What all views of one tensor have in common."""
    return tensor.elem.untyped_storage()._cdata


def _keeps_nothing(func: Any, args: Any) -> bool:
    """Whether eager gives a tensor without memory for one."""
    if func is not aten.mul.Scalar and not _is_view(func):
        return False
    if not isinstance(args[0], torch.Tensor) or not args[0]._is_zerotensor():
        return False
    return adds_nothing_of_varying_sizes() or all(isinstance(size, int) for size in args[0].shape)


def _is_one(number: Any) -> bool:
    return isinstance(number, (int, float)) and number == 1


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {spec.name: value for spec, value in zip(func._schema.arguments, args, strict=False)} | kwargs


def _is_view(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func.is_view


@lru_cache(maxsize=None)
def _writes(func: Any) -> bool:
    """To elements, and not to its shape."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or not func._schema.is_mutable:
        return False
    return torch.Tag.inplace_view not in func.tags


@lru_cache(maxsize=None)
def _reshapes(func: Any) -> bool:
    """In place."""
    return isinstance(func, torch._ops.OpOverload) and torch.Tag.inplace_view in func.tags


@lru_cache(maxsize=None)
def _minds_overlaps(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or func is aten.copy_.default or _puts(func)


@lru_cache(maxsize=None)
def _puts(func: Any) -> bool:
    """Whether it goes from place to place in what it writes to, and must not be given any of that to read."""
    names = ("index_", "_index_put_impl_", "scatter", "put_", "masked_scatter_")
    return func._schema.name.removeprefix("aten::").startswith(names)


@lru_cache(maxsize=None)
def _counts_in_memory(func: Any) -> bool:
    """Whether it takes offsets in memory, and gives back none of it."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    aliases = any(a.alias_info is not None for a in (*func._schema.arguments, *func._schema.returns))
    return not aliases and depends_on_memory(func) is not None


__all__ = ["Functional", "unwrap"]
