"""Conversions between types: what C's casts do on this hardware, and bfloat16, which is held as its bits."""

from __future__ import annotations

from litz.codegen.llvm.arithmetic import Arithmetic
from litz.codegen.llvm.writer import llvm_type
from litz.loop.dtype import DTYPES


def convert(m: Arithmetic, x: str, result: str) -> str:
    """The value as one of the type `result`, as eager's `to` makes it."""
    if m.dtype == result:
        return x
    if result == "b1":
        if m.dtype == "bf16":
            return Arithmetic(m.w, "f32", m.lanes).cmp("une", convert(m, x, "f32"), m.c(0.0, "f32"))
        return m.cmp("une" if m.kind == "float" else "ne", x, m.c(0))
    if m.dtype == "bf16":
        return convert(Arithmetic(m.w, "f32", m.lanes), _from_bfloat16(m, x), result)
    if result == "bf16":
        if m.dtype == "f32":
            return _to_bfloat16(m, x)
        return _to_bfloat16(Arithmetic(m.w, "f32", m.lanes), convert(m, x, "f32"))
    target, source = DTYPES[result], DTYPES[m.dtype]
    t = llvm_type(result, m.lanes)
    if target.kind == "float":
        if source.kind == "float":
            if m.dtype == "f64" and result == "f16":
                # Rounded twice, as in eager, which has halves made of nothing but float32.
                return convert(Arithmetic(m.w, "f32", m.lanes), convert(m, x, "f32"), "f16")
            made = m.cast("fpext" if target.bytes > source.bytes else "fptrunc", x, m.t, t)
            # LLVM would move the cast behind a choice such as `x < 0 ? 0 : x`, and lose the sign of x's zeros.
            return m.w.intrinsic("llvm.arithmetic.fence", t, made) if m.w.module.dialect.fences else made
        return m.cast("sitofp" if source.kind == "int" else "uitofp", x, m.t, t)
    if source.kind == "float":
        if target.bytes >= 4:
            return _truncated(m, x, result)
        # Through a wide integer, which then wraps, as the C conversion does on this hardware: 64 bits for a byte.
        wide = "i64" if result == "u8" and m.dtype == "f64" else "i32"
        return m.cast("trunc", _truncated(m, x, wide), llvm_type(wide, m.lanes), t)
    if source.kind == "bool":
        return m.cast("zext", x, m.t, t)
    if target.bytes < source.bytes:
        return m.cast("trunc", x, m.t, t)
    if target.bytes > source.bytes:
        return m.cast("sext" if source.kind == "int" else "zext", x, m.t, t)
    return x


def _truncated(m: Arithmetic, x: str, result: str) -> str:
    """The whole number towards zero. What no integer holds is the least one, by x86's instruction. To LLVM it is any:
    where it can tell that a value is NaN or infinite, it says what it likes, so that is chosen here."""
    made = m.cast("fptosi", x, m.t, llvm_type(result, m.lanes))
    if not m.w.module.dialect.fences:
        return made
    bits = DTYPES[result].bits
    held = m.cmp("olt", m.fabs(x), m.c(float("inf") if m.dtype == "f16" else 2.0 ** (bits - 1)))
    return m.select(held, made, m.c(-(2 ** (bits - 1)), result), llvm_type(result, m.lanes))


def _from_bfloat16(m: Arithmetic, x: str) -> str:
    if m.w.module.dialect.bfloat and m.lanes % 2 == 0:
        return _pairs_from_bfloat16(m, x)
    wide = llvm_type("i32", m.lanes)
    bits = m.w.let(f"shl {wide} {m.cast('zext', x, m.t, wide)}, {m.c(16, 'i32')}")
    return m.cast("bitcast", bits, wide, llvm_type("f32", m.lanes))


def _pairs_from_bfloat16(m: Arithmetic, x: str) -> str:
    """As the machine holds them, two in a word: one instruction for each, since the upper is in its place already."""
    half = m.lanes // 2
    words = llvm_type("i32", half)
    mask = "-65536" if half == 1 else "splat (i32 -65536)"
    bits = m.cast("bitcast", x, m.t, words)
    lower = m.i("shl", bits, "16" if half == 1 else "splat (i32 16)", words)
    parts = [m.cast("bitcast", part, words, f"<{half} x float>") for part in (lower, m.i("and", bits, mask, words))]
    order = ", ".join(f"i32 {lane // 2 + half * (lane % 2)}" for lane in range(m.lanes))
    return m.w.let(
        f"shufflevector <{half} x float> {parts[0]}, <{half} x float> {parts[1]}, <{m.lanes} x i32> <{order}>"
    )


def _to_bfloat16(m: Arithmetic, x: str) -> str:
    """Round to nearest, ties to even; NaN stays NaN."""
    if m.w.module.dialect.bfloat:
        short = "bfloat" if m.lanes == 1 else f"<{m.lanes} x bfloat>"
        return m.cast("bitcast", m.cast("fptrunc", x, m.t, short), short, llvm_type("bf16", m.lanes))
    bits = m.cast("bitcast", x, m.t, m.int_t)
    odd = m.i("and", m.i("lshr", bits, m.c(16, "i32"), m.int_t), m.c(1, "i32"), m.int_t)
    rounded = m.i("add", m.i("add", bits, odd, m.int_t), m.c(0x7FFF, "i32"), m.int_t)
    high = m.i("lshr", rounded, m.c(16, "i32"), m.int_t)
    high = m.select(m.cmp("uno", x, x), m.c(0x7FC0, "i32"), high, m.int_t)
    return m.cast("trunc", high, m.int_t, llvm_type("bf16", m.lanes))
