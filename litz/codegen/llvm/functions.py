"""Calls of mathematical functions: SLEEF's for vectors, which libtorch carries, and the C library's for scalars.

In: a writer and operands of one type and width. Out: the operand that holds the result. A vector is cut into pieces of
a width that SLEEF has functions for on the target, or into lanes where it has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.codegen.llvm.arithmetic import Arithmetic
from litz.codegen.llvm.writer import Operand, Writer, llvm_type
from litz.loop.dtype import DTYPES


def sleef(writer: Writer, name: str, accuracy: str, args: Sequence[Operand]) -> Operand:
    """`accuracy` is how SLEEF's name ends; `-`: it does not. A machine may have a function of its own instead."""
    dtype, lanes = args[0].dtype, args[0].lanes
    own = writer.module.dialect.own.get((name, dtype))
    if own is not None:
        return Operand(own(Arithmetic(writer, dtype, lanes), [a.text for a in args]), dtype, lanes)
    widths = (size // DTYPES[dtype].bytes for size in writer.module.dialect.function_bytes)
    width = next((width for width in widths if width <= lanes), 1)
    letter = "f" if dtype == "f32" else ""
    function = f"{name}{letter}"
    if width > 1:
        function = f"Sleef_{name}{letter or 'd'}{width}" + ("" if accuracy == "-" else f"_{accuracy}")
    t = llvm_type(dtype, width)
    writer.module.declare(f"declare {t} @{function}({', '.join([t] * len(args))}) nounwind memory(none)")
    parts = []
    for first in range(0, lanes, width):
        values = ", ".join(f"{t} {part_of(writer, a, first, width).text}" for a in args)
        parts.append(writer.let(f"call {t} @{function}({values})"))
    return joined(writer, [Operand(part, dtype, width) for part in parts])


def part_of(writer: Writer, value: Operand, first: int, width: int) -> Operand:
    """As many lanes, from the first on."""
    if width == value.lanes:
        return value
    if width == 1:
        return Operand(writer.let(f"extractelement {value.type} {value.text}, i32 {first}"), value.dtype, 1)
    order = ", ".join(f"i32 {first + k}" for k in range(width))
    text = writer.let(f"shufflevector {value.type} {value.text}, {value.type} poison, <{width} x i32> <{order}>")
    return Operand(text, value.dtype, width)


def joined(writer: Writer, parts: Sequence[Operand]) -> Operand:
    """One vector of as many as a power of two, side by side."""
    dtype, width, count = parts[0].dtype, parts[0].lanes, len(parts)
    if width == 1 and count > 1:
        t, whole = llvm_type(dtype, count), "poison"
        for lane, part in enumerate(parts):
            whole = writer.let(f"insertelement {t} {whole}, {part.type} {part.text}, i32 {lane}")
        return Operand(whole, dtype, count)
    texts = [part.text for part in parts]
    while len(texts) > 1:
        half = llvm_type(dtype, width)
        order = ", ".join(f"i32 {k}" for k in range(2 * width))
        texts = [
            writer.let(f"shufflevector {half} {a}, {half} {b}, <{2 * width} x i32> <{order}>")
            for a, b in zip(texts[::2], texts[1::2], strict=True)
        ]
        width *= 2
    return Operand(texts[0], dtype, width)
