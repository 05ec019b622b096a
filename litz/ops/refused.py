"""What eager refuses: types that an operator has no kernel for, and numbers that a type does not hold.

In: a call of an operator, with fake tensors. Out: whether eager raises on such types and numbers. A lowering would
often compute something all the same, and so the operator is called as it is instead, and raises eager's own error.

The one idea: eager is asked. The operator runs on small tensors of the same types; if it raises, and does not on
float32, it is the types that it refuses. A process asks once for an operator and its types, and never about what takes
and gives float32 alone, or float64 alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from litz.loop.exact import exact

_ORDINARY: tuple[set[torch.dtype], ...] = ({torch.float32}, {torch.float64}, set())
_HALF = frozenset((torch.float16, torch.bfloat16))
_TRUTH = frozenset((torch.bool,))
_WHOLE = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_LARGEST = 8  # of a dimension in a question: equal sizes stay equal
_MOST = 1 << 12  # elements in a question whose sizes are kept


class Form(NamedTuple):
    """A tensor in a question."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Question:
    """A call of an operator on tensors of these types; with the same `target`, `types` and `numbers` it is the same."""

    target: torch._ops.OpOverload
    types: tuple[torch.dtype, ...]
    numbers: tuple  # those that some integer type among them does not hold
    args: tuple = field(compare=False)
    kwargs: dict[str, Any] = field(compare=False)


def is_refused(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether eager raises on the types or the numbers of this call, whose result looks like `result`."""
    given = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    tensors = [*given, *_tensors((result,))]
    types = tuple(t.dtype for t in tensors)
    if set(types) in _ORDINARY or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    if target._schema.name.endswith("_backward"):
        return False  # its forward was asked; and fakes of what a forward saves do not always have the types of eager's
    if any(t.device.type != "cpu" for t in tensors):
        return False
    if not given and _shape_argument(target) is None and not _few(tensors):
        return False  # its size is in its arguments: to ask would take as long as to run it
    limits = [torch.iinfo(t) for t in _WHOLE.intersection(types)]
    odd = [exact(n) for n in _numbers(target, args, kwargs) if not all(_holds(limit, n) for limit in limits)]
    # Cut down, if need be. Sizes among the other arguments then fit no more, and the question may find out nothing.
    most = _MOST if _few(given) else _LARGEST
    forms = pytree.tree_map(lambda value: _form(value, most), (tuple(args), dict(kwargs)))
    return _refuses(Question(target, types, tuple(odd), *forms))


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _few(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether they are known to have few elements."""
    if not all(isinstance(size, int) for t in tensors for size in t.shape):
        return False
    return sum(t.numel() for t in tensors) <= _MOST


def _shape_argument(target: torch._ops.OpOverload) -> int | None:
    """The position of the shape in the arguments of an operator that makes a tensor of any shape, such as `full`."""
    names = [a.name for a in target._schema.arguments]
    return names.index("size") if "size" in names and "dtype" in names else None


def _numbers(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[float]:
    """Numbers that stand for elements: given as a scalar, or in a tensor's place."""
    for position, parameter in enumerate(target._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(parameter.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            kind = str(parameter.type).removeprefix("Optional[").removesuffix("]")
            if kind in ("number", "Scalar", "Tensor"):
                yield value


def _holds(limit: torch.iinfo, number: float) -> bool:
    return math.isfinite(number) and limit.min <= number <= limit.max


def _form(value: Any, most: int) -> Any:
    if isinstance(value, torch.Tensor):
        return Form(tuple(min(s, most) if isinstance(s, int) else _LARGEST for s in value.shape), value.dtype)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _LARGEST if isinstance(value, torch.SymInt) else 1.0 if isinstance(value, torch.SymFloat) else True
    return value


# -- asking ---------------------------------------------------------------------------------------
@lru_cache(maxsize=None)
def _refuses(question: Question) -> bool:
    with _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = pytree.tree_leaves((question.args, question.kwargs), is_leaf=_is_form)
        own = [form.dtype for form in given if _is_form(form)]
        if _runs(question, own):
            return False
        # It is the numbers, or the types if it runs with others; if with none, it is what the question left out.
        return bool(question.numbers) or any(_runs(question, types) for types in _others(own) if types != own)


def _others(own: list[torch.dtype]) -> Iterator[list[torch.dtype]]:
    """Types that an operator may take sooner: floats for all of a kind, floats for one tensor, the first's for it."""
    for kinds in (_HALF, _WHOLE, _TRUTH, _HALF | _WHOLE | _TRUTH):
        yield [torch.float32 if t in kinds else t for t in own]
    for position in range(len(own)):
        for instead in (torch.float32, own[0]):
            yield [*own[:position], instead, *own[position + 1 :]]


def _runs(question: Question, types: list[torch.dtype]) -> bool:
    """Whether eager runs the operator on tensors of these types: zeros, or ones, since zeros are no divisors."""
    args, shape = list(question.args), _shape_argument(question.target)
    if shape is not None and shape < len(args):
        args[shape] = [1] * len(args[shape])
    for fill in (0, 1):
        waiting = iter(types)

        def made(value: Any, fill: int = fill, waiting: Iterator[torch.dtype] = waiting) -> Any:
            return torch.full(value.shape, fill, dtype=next(waiting)) if _is_form(value) else value

        try:
            given, named = pytree.tree_map(made, (args, question.kwargs), is_leaf=_is_form)
            question.target(*given, **named)
            return True
        except Exception:
            continue  # that it raises is the answer
    return False


def _is_form(value: Any) -> bool:
    return isinstance(value, Form)


__all__ = ["is_refused"]
