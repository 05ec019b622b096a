"""What the packing of matrix products is made of: loops over the outer axes of the depth, and squares turned."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.writer import Operand, Writer
from litz.loop.expr import Axis


class Renderer(Protocol):
    w: Writer
    frame: Scope


class Nest:
    """Nested loops over axes, yielding the flat count of the point they stand at."""

    def __init__(self, renderer: Renderer, axes: tuple[Axis, ...]):
        self.r, self.axes = renderer, axes
        self.open: list = []

    def __enter__(self) -> str:
        w = self.r.w
        self.saved = self.r.frame
        self.r.frame = replace(self.saved, axes=dict(self.saved.axes), values=dict(self.saved.values))
        flat = "0"
        for axis in self.axes:
            loop = w.loop("0", str(axis.size.int))
            i = loop.__enter__()
            self.open.append(loop)
            self.r.frame.axes[axis] = i
            flat = w.add(w.mul(flat, str(axis.size.int)), i)
        return flat

    def __exit__(self, *error: object) -> None:
        for loop in reversed(self.open):
            loop.__exit__(*error)
        self.r.frame = self.saved


def transpose(w: Writer, rows: list[str], lanes: int) -> list[str]:
    """A square of registers turned by interleaving rows a half apart, as often as lanes can be halved."""
    vector = f"<{lanes} x float>"
    low = ", ".join(f"i32 {i // 2 + (i % 2) * lanes}" for i in range(lanes))
    high = ", ".join(f"i32 {lanes // 2 + i // 2 + (i % 2) * lanes}" for i in range(lanes))
    half = lanes // 2
    for _ in range(lanes.bit_length() - 1):
        turned = []
        for i in range(half):
            for order in (low, high):
                turned.append(
                    w.let(f"shufflevector {vector} {rows[i]}, {vector} {rows[i + half]}, <{lanes} x i32> <{order}>")
                )
        rows = turned
    return rows


def interleaved(w: Writer, vectors: list[Operand]) -> Operand:
    """One vector, in which the first lanes of all come first, then their second ones, and so on."""
    while len(vectors) > 1:
        half, lanes = len(vectors) // 2, vectors[0].lanes
        order = ", ".join(f"i32 {i // 2 + (i % 2) * lanes}" for i in range(2 * lanes))
        vectors = [
            Operand(
                w.let(f"shufflevector {a.type} {a.text}, {b.type} {b.text}, <{2 * lanes} x i32> <{order}>"),
                a.dtype, 2 * lanes,
            )
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
        ]  # fmt: skip
    return vectors[0]


__all__ = ["Nest", "interleaved", "transpose"]
