"""What a file of `litz.aot_compile` holds: a compiled model as data, and how to call it.

A `Package` is all that Python needs; `shared_library.py` puts the same program behind a C interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.errors import CallError
from litz.graph.signature import Number, number, numbers
from litz.loop.exact import exact
from litz.loop.formula import Formula
from litz.runtime.artifact import Compiled
from litz.runtime.encode import register


@dataclass(frozen=True)
class TensorSpec:
    """An argument that is a tensor: what it must be. Sizes that vary are expressions."""

    name: str
    dtype: torch.dtype
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} of {list(self.sizes)}, strides {list(self.strides)}"


@dataclass(frozen=True)
class PlainSpec:
    """An argument that is no tensor: the code was made for this value of it."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.value!r}, fixed when it was compiled"


@dataclass(frozen=True)
class Range:
    """A size that varies, and its bounds."""

    name: str
    least: int | None
    most: int | None


@dataclass(frozen=True)
class Package:
    levels: tuple[Compiled, ...]  # the same program for several instruction sets, the widest first
    arguments: tuple[TensorSpec | PlainSpec, ...]  # of the caller's, flat
    places: tuple[int | None, ...]  # input of the program -> the argument it is; None: the next constant
    constants: tuple[torch.Tensor, ...]  # parameters and buffers
    constant_names: tuple[str, ...]
    arguments_form: str  # how they come: positional and by name, in containers (torch's own spelling)
    outputs_form: str | None  # None: a flat tuple
    ranges: tuple[Range, ...] = ()
    answers: tuple[Formula, ...] = ()  # what else must hold of sizes

    @property
    def compiled(self) -> Compiled:
        """Of any level, where it is no matter which."""
        return self.levels[0]

    @property
    def asked(self) -> tuple[Formula, ...]:
        """Of the answers, those about sizes that arguments tell. Others are about symbols that turned out to be one of
        these: what arguments must be is written with that one."""
        told = {source.name for source in self.compiled.signature.sizes}
        return tuple(answer for answer in self.answers if answer.symbols <= told)

    def inputs_for(self, flat: Sequence[Any]) -> list[Any]:
        """The program's inputs, from the caller's arguments, once they are found to be as specified."""
        self.check(flat)
        waiting = iter(self.constants)
        inputs = [next(waiting) if place is None else flat[place] for place in self.places]
        signature = self.compiled.signature
        specs = [signature.inputs[place] for place in signature.places] or signature.inputs
        return [
            _without_bits(given) if isinstance(given, torch.Tensor) and not spec.lazy and not spec.mutated else given
            for given, spec in zip(inputs, specs, strict=True)
        ]

    def check(self, flat: Sequence[Any]) -> None:
        if len(flat) != len(self.arguments):
            raise CallError(f"{len(flat)} arguments were given, and {len(self.arguments)} are expected")
        measured = self._measured(flat)
        for spec, given in zip(self.arguments, flat, strict=True):
            if isinstance(spec, PlainSpec):
                if exact(given) != exact(spec.value):
                    raise CallError(f"{spec.name} is {given!r}, and the model was compiled for {spec.value!r}")
            else:
                _check_tensor(spec, given, measured)

    def _measured(self, flat: Sequence[Any]) -> Mapping[str, int]:
        """The sizes that vary, and whether they are within their bounds."""
        found: dict[str, int] = {}
        where: dict[str, str] = {}
        for source in self.compiled.signature.sizes:
            place = None if source.input is None else self.places[source.input]
            if place is None or source.dim is None:
                continue
            given = flat[place]
            if isinstance(given, torch.Tensor) and given.dim() > source.dim:
                found[source.name] = given.shape[source.dim]
                where[source.name] = f"dimension {source.dim} of {self.arguments[place].name}"
        for bounds in self.ranges:
            size = found.get(bounds.name)
            if size is None:
                continue
            if bounds.least is not None and size < bounds.least:
                raise CallError(f"{where[bounds.name]} is {size}, and must be at least {bounds.least}")
            if bounds.most is not None and size > bounds.most:
                raise CallError(f"{where[bounds.name]} is {size}, and must be at most {bounds.most}")
        for answer in self.asked:
            if answer.symbols <= found.keys() and not answer.at(found):
                raise CallError(f"sizes {found} break what the model was compiled for: {answer.text}")
        return found


def _without_bits(tensor: torch.Tensor) -> torch.Tensor:
    """As generated code sees it: conjugated and negated in memory, not by a bit."""
    return tensor.resolve_conj().resolve_neg()


def _check_tensor(spec: TensorSpec, given: Any, measured: Mapping[str, int]) -> None:
    if not isinstance(given, torch.Tensor):
        raise CallError(f"{spec.name} is a {type(given).__name__}, and a tensor is expected")
    if type(given) not in _WITH_MEMORY or given.layout is not torch.strided or _is_traced(given):
        what = f"{type(given).__name__} of layout {given.layout}"
        if _is_traced(given):
            what = "tensor of a transform of torch.func's"
        raise CallError(f"{spec.name} is a {what}, and a plain dense tensor is expected")
    if given.dim() != len(spec.sizes):
        raise CallError(f"{spec.name}: it has {given.dim()} dimensions, and {len(spec.sizes)} are expected")
    sizes = numbers(spec.sizes, measured)
    wrong = [
        f"its {what} is {found}, and {expected} is expected"
        for what, found, expected in (
            ("type", given.dtype, spec.dtype),
            ("device", given.device.type, spec.device),
            ("shape", tuple(given.shape), sizes),
        )
        if found != expected
    ]
    if not wrong:
        strides = tuple(number(s, measured) for s in spec.strides)
        if any(n > 1 and a != b for n, a, b in zip(sizes, given.stride(), strides, strict=True)):
            wrong = [f"its strides are {given.stride()}, and {strides} are expected"]
    if wrong:
        raise CallError(f"{spec.name}: {wrong[0]}")


def _is_traced(tensor: torch.Tensor) -> bool:
    """Whether it stands for others, and has no memory of its own."""
    return torch._is_functional_tensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


_WITH_MEMORY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
register(Package, PlainSpec, Range, TensorSpec)


__all__ = ["Package", "PlainSpec", "Range", "TensorSpec"]
