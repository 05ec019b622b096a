"""Frozen data as JSON and blobs, and back. Reading runs no code: it makes the data types listed here, and nothing else.

In: a value made of the types below, of plain Python values, tensors and bytes. Out: `encode(value) -> (json, blobs)`, a
JSON value and the bytes it refers to; `decode(json, blobs)` gives an equal value, or raises `Unreadable`.

A tensor of a GPU is written as one of the CPU, and read as such: whoever uses it puts it in its place.

A JSON list is a value with its type in front: `["View", "b0", …]` is a `View` of those fields, `["tuple", 1, 2]` a
tuple. What has no spelling raises `Unwritable`, which names it.
"""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Union

import torch

from litz.codegen.gpu_code import GpuCode
from litz.codegen.plan import Dropped, HostPlan, Item, Native
from litz.errors import CacheError
from litz.graph.recipe import Argument, Computed, Constant, Recipe, Step
from litz.graph.signature import Base, Input, Output, Signature, Tangent, Training, ViewStep, Window
from litz.loop.expr import Atom, Expr, FloorDiv, Mod, Size, constant, expr
from litz.loop.formula import FUNCTIONS, Formula
from litz.loop.ir import Buffer, Call, Number, NumberSource, SizeSource, View
from litz.loop.operator import operator_named
from litz.loop.panels import Panels
from litz.ops.held import Held, InPanels
from litz.report import Built, Fallback, Firing, Freezing, Memory, NearMiss, Occasion, Stays, Told
from litz.runtime.artifact import Artifact, Compiled, Kept
from litz.runtime.layout import extent, on_device
from litz.schedule.memory import Apart
from litz.schedule.place import Span, Workspace
from litz.target import GpuTarget, Target

RECORDS: dict[str, Callable[..., Any]] = {
    record.__name__: record
    for record in (
        Apart, Argument, Artifact, Base, Buffer, Built, Call, Compiled, Computed, Constant, Dropped, Fallback, Firing,
        Freezing, GpuCode, GpuTarget, Held, HostPlan, InPanels, Input, Item, Kept, Memory, Native, NearMiss,
        Number, NumberSource, Occasion, Output, Panels, Recipe, Signature, SizeSource, Span, Stays, Step, Tangent,
        Target, Told, Training, View, ViewStep, Window, Workspace,
    )
}  # fmt: skip
Blob = Union[bytes, memoryview]
_PLAIN = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def register(*records: type) -> None:
    """More data types that may be written and read."""
    for record in records:
        known = RECORDS.setdefault(record.__name__, record)
        assert known is record, f"two records are called {record.__name__}, by which they are read"


class Unwritable(CacheError):
    """A value that has no spelling."""


class Unreadable(CacheError):
    """Something that `encode` does not write."""


class Blobs(list[bytes]):
    """What is not written as JSON. A tensor that occurs twice is one blob."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, int] = {}  # by `id`

    def add(self, data: bytes) -> int:
        self.append(data)
        return len(self) - 1

    def add_tensor(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self.tensors:
            self.tensors[id(tensor)] = self.add(memory_of(tensor))
        return self.tensors[id(tensor)]


def encode(value: Any) -> tuple[Any, Blobs]:
    blobs = Blobs()
    return _written(value, blobs), blobs


class _Reading(list[Blob]):
    """Blobs, and the tensors that were made of them: what was one tensor is one again."""

    def __init__(self, blobs: Sequence[Blob]):
        super().__init__(blobs)
        self.tensors: dict[Any, torch.Tensor] = {}


def decode(written: Any, blobs: Sequence[Blob]) -> Any:
    try:
        return _read(written, _Reading(blobs))
    except Unreadable:
        raise
    except Exception as error:  # whatever a constructor makes of fields that are not its own
        raise Unreadable(f"{type(error).__name__}: {error}") from error


# -- writing ---------------------------------------------------------------------------------------
def _written(value: Any, blobs: Blobs) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return ["float", _bits(value)]
    if isinstance(value, complex):
        return ["complex", _bits(value.real), _bits(value.imag)]
    if isinstance(value, Expr):
        return ["expr", *(_term(coefficient, atoms, blobs) for atoms, coefficient in value.terms)]
    if isinstance(value, Formula):
        return ["formula", value.text]
    if type(value).__name__ in RECORDS and type(value) is RECORDS[type(value).__name__]:
        return [type(value).__name__, *(_written(field, blobs) for field in _fields(value))]
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list, torch.Size):
        return ["list" if type(value) is list else "tuple", *(_written(item, blobs) for item in value)]
    if isinstance(value, (dict, frozenset)):
        return _container(value, blobs)
    if isinstance(value, bytes):
        return ["bytes", blobs.add(value)]
    return _of_torch(value, blobs)


def _bits(value: float) -> str:
    """All of them: the sign of a zero, and of a NaN."""
    return struct.pack(">d", value).hex()


def _container(value: dict | frozenset, blobs: Blobs) -> Any:
    if isinstance(value, frozenset):
        return ["frozenset", *(_written(item, blobs) for item in sorted(value))]
    return ["dict", *([_written(k, blobs), _written(v, blobs)] for k, v in value.items())]


def _of_torch(value: Any, blobs: Blobs) -> Any:
    for name, kind in _PLAIN.items():
        if isinstance(value, kind):
            return [name, str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if isinstance(value, torch._ops.OpOverload):
        return ["operator", value.name()]
    if type(value) is torch.Tensor and value.layout is torch.strided and value.device.type in ("cpu", "cuda"):
        return ["tensor", blobs.add_tensor(value), str(value.dtype), list(value.shape), list(value.stride())]
    raise Unwritable(f"a {type(value).__module__}.{type(value).__qualname__} cannot be written to disk: {value!r:.100}")


def memory_of(tensor: torch.Tensor) -> bytes:
    """The memory from its first element to its last."""
    there = on_device(tensor, torch.device("cpu"))
    return ctypes.string_at(there.data_ptr(), extent(there.shape, there.stride()) * there.element_size())


def _fields(record: Any) -> list[Any]:
    if isinstance(record, tuple):
        return list(record)
    return [getattr(record, field.name) for field in dataclasses.fields(record)]


def _term(coefficient: int, atoms: Sequence[Atom], blobs: Blobs) -> list[Any]:
    return [coefficient, *(_atom(atom, blobs) for atom in atoms)]


def _atom(atom: Atom, blobs: Blobs) -> list[Any]:
    if isinstance(atom, Size):
        return ["size", atom.name, atom.hint, atom.least, _written(atom.formula, blobs)]
    if isinstance(atom, (FloorDiv, Mod)):
        kind = "//" if isinstance(atom, FloorDiv) else "%"
        return [kind, _written(atom.num, blobs), _written(atom.den, blobs)]
    raise Unwritable(f"{atom} means something inside a kernel only")


# -- reading ---------------------------------------------------------------------------------------
def _read(written: Any, blobs: _Reading) -> Any:
    if not isinstance(written, list):
        if written is None or isinstance(written, (bool, str)) or type(written) is int:
            return written
        raise Unreadable(f"{written!r:.60} stands for nothing")
    kind, *fields = written
    if kind in RECORDS:
        return RECORDS[kind](*(_read(field, blobs) for field in fields))
    if kind not in _READERS:
        raise Unreadable(f"there is no type {kind!r}")
    return _READERS[kind](fields, blobs)


def _number(bits: str) -> float:
    return struct.unpack(">d", bytes.fromhex(bits))[0]


def _read_dict(fields: list[Any], blobs: _Reading) -> dict[Any, Any]:
    return {_read(key, blobs): _read(value, blobs) for key, value in fields}


def _read_expr(fields: list[Any], blobs: _Reading) -> Expr:
    total = constant(0)
    for coefficient, *atoms in fields:
        product = constant(coefficient)
        for atom in atoms:
            product = product * _read_atom(atom, blobs)
        total = total + product
    return total


def _read_atom(written: list[Any], blobs: _Reading) -> Expr:
    kind, *fields = written
    if kind == "size":
        name, hint, least, formula = fields
        return expr(Size(name, hint, least, _read(formula, blobs)))
    num, den = (_read(field, blobs) for field in fields)
    if kind not in ("//", "%"):
        raise Unreadable(f"there is no operator {kind!r}")
    return num // den if kind == "//" else num % den


_IN_FORMULAS = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Call, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def _read_formula(fields: list[Any], _: _Reading) -> Formula:
    """Arithmetic alone: a formula is computed by Python, later."""
    (text,) = fields
    for node in ast.walk(ast.parse(text, mode="eval")):
        called = node.func if isinstance(node, ast.Call) else None
        is_known = called is None or (isinstance(called, ast.Name) and called.id in FUNCTIONS)
        if not isinstance(node, _IN_FORMULAS) or not is_known or "__" in getattr(node, "id", ""):
            raise Unreadable(f"{text!r:.60} is no formula")
    return Formula(text)


def _read_tensor(fields: list[Any], blobs: _Reading) -> torch.Tensor:
    form = repr(fields)
    if form not in blobs.tensors:
        blobs.tensors[form] = _new_tensor(fields, blobs)
    return blobs.tensors[form]


def _new_tensor(fields: list[Any], blobs: _Reading) -> torch.Tensor:
    blob, dtype, sizes, strides = fields
    kind = _torch_value("dtype", dtype.removeprefix("torch."))
    data = blobs[blob]
    count = extent(sizes, strides)
    if count * kind.itemsize != len(data) or min([*sizes, *strides, 0]) < 0:
        raise Unreadable(f"a tensor of {sizes} by {strides} is not {len(data)} bytes")
    memory = torch.empty(count, dtype=kind, device="cpu")
    if data:
        memoryview((ctypes.c_ubyte * len(data)).from_address(memory.data_ptr())).cast("B")[:] = data
    return memory.as_strided(sizes, strides)


def _torch_value(kind: str, name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, _PLAIN[kind]):
        raise Unreadable(f"torch has no {kind} {name!r}")
    return found


def _read_torch_value(kind: str, fields: list[Any], _: _Reading) -> Any:
    return _torch_value(kind, fields[0])


_READERS: dict[str, Callable[[list[Any], _Reading], Any]] = {
    "tuple": lambda fields, blobs: tuple(_read(item, blobs) for item in fields),
    "list": lambda fields, blobs: [_read(item, blobs) for item in fields],
    "frozenset": lambda fields, blobs: frozenset(_read(item, blobs) for item in fields),
    "dict": _read_dict,
    "float": lambda fields, _: _number(fields[0]),
    "complex": lambda fields, _: complex(_number(fields[0]), _number(fields[1])),
    "expr": _read_expr,
    "formula": _read_formula,
    "bytes": lambda fields, blobs: bytes(blobs[fields[0]]),
    "tensor": _read_tensor,
    "device": lambda fields, _: torch.device(fields[0]),
    "operator": lambda fields, _: operator_named(fields[0]),
    **{kind: partial(_read_torch_value, kind) for kind in _PLAIN},
}


__all__ = ["Unreadable", "Unwritable", "decode", "encode", "memory_of", "register"]
