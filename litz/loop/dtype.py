"""Element types of the loop IR: one row each, with what every later stage needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    name: str
    torch_name: str
    kind: str  # "float", "int", "uint" or "bool"
    bytes: int
    llvm: str  # how a value of it is held in a register
    numpy: str  # what the interpreter computes it in

    @property
    def bits(self) -> int:
        return 8 * self.bytes


# bfloat16 has no NumPy type: the interpreter holds it as float32, rounded after each operator.
_ROWS = (
    DType("f64", "float64", "float", 8, "double", "float64"),
    DType("f32", "float32", "float", 4, "float", "float32"),
    DType("f16", "float16", "float", 2, "half", "float16"),
    DType("bf16", "bfloat16", "float", 2, "i16", "float32"),
    DType("i64", "int64", "int", 8, "i64", "int64"),
    DType("i32", "int32", "int", 4, "i32", "int32"),
    DType("i16", "int16", "int", 2, "i16", "int16"),
    DType("i8", "int8", "int", 1, "i8", "int8"),
    DType("u8", "uint8", "uint", 1, "i8", "uint8"),
    DType("b1", "bool", "bool", 1, "i1", "bool"),
)
DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
_BY_TORCH_NAME = {row.torch_name: row.name for row in _ROWS}


def from_torch(dtype: torch.dtype) -> str | None:
    """The IR's name of a torch dtype; None where the IR has none (complex, quantised, float8...)."""
    return _BY_TORCH_NAME.get(str(dtype).removeprefix("torch."))


def to_torch(name: str) -> torch.dtype:
    import torch

    return getattr(torch, DTYPES[name].torch_name)


def is_float(name: str) -> bool:
    return DTYPES[name].kind == "float"


def compute_type(name: str) -> str:
    """The type in which arithmetic on `name` is done: half precisions compute in float32, as eager does."""
    return "f32" if name in ("f16", "bf16") else name
