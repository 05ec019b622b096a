"""Which statements may join a program: eager runs each as it is drawn, and the ones that say nothing are refused.

Refused is what eager refuses; what it leaves undefined (writes that overlap what they read, floats out of an
integer's range); results that outgrow their type; and decisions (comparisons, casts, `argmax`) about numbers that
carry a rounding, on which two right answers may part ways.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.fuzz.numbers import numbers
from tests.fuzz.program import FuzzProgram, Line

LARGEST = 2e4  # of what carries a rounding: below float16's largest number
ELEMENTS = 6000
RANK = 5
CASTABLE = 100.0
_MAY_COPY = (".contiguous(", ".reshape(", ".flatten(", ".ravel(")
_SCATTERS = (".scatter_add_(", ".index_put_(")  # they write elsewhere than they read


class Refused(Exception):
    pass


@dataclass
class Eager:
    """A program as far as it has been run. `rough`: memory that holds roundings, by the address of its storage."""

    values: dict[str, Any] = field(default_factory=dict)
    rough: set[int] = field(default_factory=set)
    # Views through an expansion. Functionalisation gives a write to one back as `base + (new - base)`, which rounds.
    expanded: set[str] = field(default_factory=set)

    # Memory with gaps that was written to. Functionalisation forgets its layout then, and with it whether
    # `contiguous` and `reshape` copy; see `tests/fuzz/test_fuzz.py` for the fault without Litz.
    forgotten: set[int] = field(default_factory=set)

    # In training, what no statement may write to: the memory of inputs that take gradients.
    kept: set[int] = field(default_factory=set)
    training: bool = False
    stopped: bool = False  # a statement has raised, as it was meant to

    @property
    def names(self) -> list[str]:
        return [name for name, value in self.values.items() if isinstance(value, torch.Tensor)]

    def tensor(self, name: str) -> torch.Tensor:
        return self.values[name]

    def is_rough(self, name: str) -> bool:
        tensor = self.tensor(name)
        return tensor.is_floating_point() and _storage(tensor) in self.rough

    def give(self, line: Line) -> None:
        """An input."""
        self.run(line)
        if self.training:
            self.kept.update(_storage(self.tensor(n)) for n in line.defines if self.tensor(n).is_floating_point())

    def run(self, line: Line) -> Callable[[], None]:
        """Runs the statement, or raises `Refused` and leaves everything as it was. Out: what undoes it."""
        if self.stopped:
            return lambda: None
        if any(name not in self.values for name in line.uses):
            raise Refused("a name is not defined")
        self._check_before(line)
        undo = self._undo(line)
        wild = line.wild or not line.uses or any(not _finite(self.tensor(name)) for name in line.uses)
        known = {_storage(self.tensor(name)) for name in self.names}
        rough = line.rounds or any(self.is_rough(name) for name in line.uses)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                exec(line.code, {"torch": torch, "numbers": numbers}, self.values)
            for name in line.touched:
                _check_result(self.values[name], wild)
        except Exception as error:
            undo()
            if not line.raises or isinstance(error, Refused):
                raise Refused(str(error)) from error
            self.stopped = True
            return undo
        if line.writes is not None and self._has_gaps(line.writes):
            self.forgotten.add(_storage(self.tensor(line.writes)))
        through = [_storage(self.tensor(name)) for name in line.uses if name in self.expanded]
        for name in line.defines:
            if ".expand(" in line.code or _storage(self.tensor(name)) in through:
                self.expanded.add(name)
        for name in line.touched:
            fresh = _storage(self.tensor(name)) not in known
            if rough and (fresh or line.writes is not None):
                self.rough.add(_storage(self.tensor(name)))
        return undo

    def _undo(self, line: Line) -> Callable[[], None]:
        before = dict(self.values)
        marks = [set(kind) for kind in (self.rough, self.expanded, self.forgotten)]
        target = None if line.writes is None else self.tensor(line.writes).untyped_storage()
        content = None if target is None else target.clone()

        def undo() -> None:
            for name in set(self.values) - set(before):
                del self.values[name]
            self.rough, self.expanded, self.forgotten = marks
            self.stopped = False
            if target is not None:
                target.copy_(content)

        return undo

    def _has_gaps(self, name: str) -> bool:
        """Whether the tensor's memory has more elements than the first tensor made on it."""
        storage = self.tensor(name).untyped_storage()
        first = next(t for t in map(self.tensor, self.names) if _storage(t) == _storage(self.tensor(name)))
        return storage.nbytes() > first.numel() * first.element_size()

    def _check_before(self, line: Line) -> None:
        if any(word in line.code for word in _MAY_COPY) and any(
            _storage(self.tensor(name)) in self.forgotten for name in line.uses
        ):
            raise Refused("whether it copies depends on a layout that is forgotten")
        for name in line.decides:
            value = self.tensor(name)
            if self.is_rough(name):
                raise Refused("it decides about a rounding")
            if line.lowest is not None and not (_finite(value) and _within(value, line.lowest, CASTABLE)):
                raise Refused("out of an integer's range")
        if "signbit(" in line.code and any(self.tensor(name).isnan().any() for name in line.uses):
            raise Refused("the sign of a NaN is anyone's")
        if "prod(" in line.code and _overflows(self.tensor(line.uses[0])):
            raise Refused("some products on the way are infinite, and which ones is the order's")
        if "addcdiv(" in line.code and self.is_rough(line.uses[2]):
            raise Refused("a divisor that rounds to nothing or to almost nothing")
        if line.rows is not None and "norm(" not in line.code and self.tensor(line.uses[0]).dtype is torch.float64:
            raise Refused("eager's variance of float64 rounds at every step, and no referee is more exact")
        if line.rows is not None and not _has(self.tensor(line.uses[0]), line.rows):
            raise Refused("it has fewer dimensions in this case than in the one that the statement was drawn for")
        if line.rows is not None and not _varies(self.tensor(line.uses[0]), line.rows):
            raise Refused("the spread of equal numbers is nothing but their rounding")
        if line.writes is None:
            return
        target = self.tensor(line.writes)
        if _storage(target) in self.kept:
            raise Refused("a write to what takes a gradient")
        if line.writes in self.expanded:
            raise Refused("a write through an expansion")
        if target.numel() != len(written := _cells(target)):
            raise Refused("several elements are one")
        scatters = any(word in line.code for word in _SCATTERS)
        for name in line.uses[1:]:
            other = self.tensor(name)
            if _storage(other) != _storage(target) or (_same_view(other, target) and not scatters):
                continue
            if not written.isdisjoint(_cells(other)):
                raise Refused("it writes what it reads")


def admitted(program: FuzzProgram) -> bool:
    """Whether every statement of a program is one that could have been drawn, in each of its cases."""
    return all(_admitted(program, case) for case in program.cases or ((),))


def _admitted(program: FuzzProgram, case: tuple[Any, ...]) -> bool:
    state = Eager(dict(zip(program.parameters, case, strict=True)), training=program.training)
    try:
        for line in program.inputs:
            state.give(line)
        for line in program.lines:
            state.run(line)
    except Refused:
        return False
    return state.stopped or all(name in state.values for name in program.outputs)


def _check_result(value: torch.Tensor, wild: bool) -> None:
    if value.numel() > ELEMENTS or value.dim() > RANK:
        raise Refused("too large")
    if value.is_floating_point() and not wild and not (_finite(value) and _within(value, -LARGEST, LARGEST)):
        raise Refused("it outgrows its type")


def _finite(value: torch.Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())


def _within(value: torch.Tensor, low: float, high: float) -> bool:
    return not value.numel() or (float(value.min()) >= low and float(value.max()) <= high)


def _overflows(factors: torch.Tensor) -> bool:
    return factors.is_floating_point() and bool(factors.double().abs().clamp(min=1).prod() > 1e30)


def _has(tensor: torch.Tensor, dims: tuple[int, ...]) -> bool:
    rank = max(tensor.dim(), 1)  # a number may be counted as one row
    return all(-rank <= dim < rank for dim in dims)


def _varies(tensor: torch.Tensor, dims: tuple[int, ...]) -> bool:
    if not tensor.numel():
        return True
    wide = tensor.to(torch.float64)
    return bool((wide.var(dims, correction=0) > 1e-4 * wide.square().mean(dims)).all())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def _cells(tensor: torch.Tensor) -> set[int]:
    """The offsets of the elements in their storage."""
    if not tensor.numel():
        return set()
    offsets = {tensor.storage_offset()}
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = {offset + stride * i for offset in offsets for i in range(size)}
    assert len(offsets) <= math.prod(tensor.shape)
    return offsets


__all__ = ["Eager", "Refused", "admitted"]
