"""What stands in for a GPU in a kernel's text that `gpu_on_cpu.py` has rewritten: functions in LLVM's language.

In: what a kernel asks for. Out: text that goes behind it. Threads leave word on the `desk`: the line they wait at, who
takes part, how far away the partner is, and the value they give, in whose place they then find the partner's. The first
wrong thing that a thread does is kept in `failure`; it does so elsewhere, where no harm is done.
"""

from __future__ import annotations

import re

END = """over:
  call void @waits(ptr %desk, i32 %thread, i32 -1, i32 0, i32 0, i32 0)
  br label %free
free:
  %room = call ptr @llvm.coro.free(token %coroutine, ptr %handle)
  call void @free(ptr %room)
  br label %away
away:
  call void @llvm.coro.end(ptr %handle, i1 false, token none)
  ret ptr %handle
}"""

INTRINSICS = (
    "float @llvm.exp2.f32(float)", "float @llvm.sqrt.f32(float)", "float @llvm.fabs.f32(float)",
    "float @llvm.copysign.f32(float, float)",
)  # fmt: skip

# The GPU's reciprocal takes denormal numbers for zeros, and makes none.
HELPERS = """declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare void @llvm.coro.end(ptr, i1, token)
declare ptr @llvm.coro.free(token, ptr)
declare void @llvm.coro.resume(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
@failure = global [5 x i64] zeroinitializer
@elsewhere = internal global [128 x i8] zeroinitializer, align 64
%Place = type { i32, i32, i32, i32 }
define internal ptr @room(i64 %bytes) nounwind {
  %more = add i64 %bytes, 63
  %whole = and i64 %more, -64
  %room = call ptr @aligned_alloc(i64 64, i64 %whole)
  ret ptr %room
}
define internal void @waits(ptr %desk, i32 %thread, i32 %line, i32 %mask, i32 %step, i32 %value) nounwind {
  %place = getelementptr %Place, ptr %desk, i32 %thread
  store i32 %line, ptr %place
  %at.mask = getelementptr i32, ptr %place, i32 1
  store i32 %mask, ptr %at.mask
  %at.step = getelementptr i32, ptr %place, i32 2
  store i32 %step, ptr %at.step
  %at.value = getelementptr i32, ptr %place, i32 3
  store i32 %value, ptr %at.value
  ret void
}
define internal i32 @handed(ptr %desk, i32 %thread) nounwind {
  %place = getelementptr %Place, ptr %desk, i32 %thread, i32 3
  %value = load i32, ptr %place
  ret i32 %value
}
define internal void @report(i64 %what, i64 %offset, i32 %line, i32 %thread, i32 %block) noinline nounwind {
  %known = load i64, ptr @failure
  %first = icmp eq i64 %known, 0
  br i1 %first, label %note, label %done
note:
  store i64 %what, ptr @failure
  store i64 %offset, ptr getelementptr (i64, ptr @failure, i64 1)
  %l = sext i32 %line to i64
  store i64 %l, ptr getelementptr (i64, ptr @failure, i64 2)
  %t = sext i32 %thread to i64
  store i64 %t, ptr getelementptr (i64, ptr @failure, i64 3)
  %b = sext i32 %block to i64
  store i64 %b, ptr getelementptr (i64, ptr @failure, i64 4)
  br label %done
done:
  ret void
}
define internal ptr @checked(i1 %live, ptr %place, ptr %base, i64 %length, i64 %bytes, i64 %alignment, i32 %line,
                             i32 %thread, i32 %block) nounwind {
  br i1 %live, label %look, label %good
look:
  %a = ptrtoint ptr %place to i64
  %b = ptrtoint ptr %base to i64
  %offset = sub i64 %a, %b
  %end = add i64 %offset, %bytes
  %before = icmp slt i64 %offset, 0
  %behind = icmp sgt i64 %end, %length
  %outside = or i1 %before, %behind
  br i1 %outside, label %bad, label %inside
inside:
  %below = sub i64 %alignment, 1
  %rest = and i64 %a, %below
  %aligned = icmp eq i64 %rest, 0
  br i1 %aligned, label %good, label %bad
bad:
  %what = phi i64 [ 1, %look ], [ 2, %inside ]
  call void @report(i64 %what, i64 %offset, i32 %line, i32 %thread, i32 %block)
  ret ptr @elsewhere
good:
  ret ptr %place
}
define internal float @ex2.approx.f(float %x) nounwind {
  %y = call float @llvm.exp2.f32(float %x)
  ret float %y
}
define internal float @ex2.approx.ftz.f(float %x) nounwind {
  %power = call float @flushed(float %x)
  %y = call float @llvm.exp2.f32(float %power)
  %z = call float @flushed(float %y)
  ret float %z
}
define internal float @rsqrt.approx.f(float %x) nounwind {
  %root = call float @llvm.sqrt.f32(float %x)
  %y = fdiv float 1.0, %root
  ret float %y
}
define internal float @flushed(float %x) nounwind {
  %size = call float @llvm.fabs.f32(float %x)
  %tiny = fcmp olt float %size, 0x3810000000000000
  %zero = call float @llvm.copysign.f32(float 0.0, float %x)
  %y = select i1 %tiny, float %zero, float %x
  ret float %y
}
define internal float @rcp.approx.ftz.f(float %x) nounwind {
  %divisor = call float @flushed(float %x)
  %quotient = fdiv float 1.0, %divisor
  %y = call float @flushed(float %quotient)
  ret float %y
}"""


PAIRS = {
    "f16x2": """define internal void @add.f16x2(ptr %place, i32 %word) nounwind {
  %old = load <2 x half>, ptr %place, align 4
  %value = bitcast i32 %word to <2 x half>
  %sum = fadd <2 x half> %old, %value
  store <2 x half> %sum, ptr %place, align 4
  ret void
}""",
    "bf16x2": """define internal void @add.bf16x2(ptr %place, i32 %word) nounwind {
  %old = load <2 x i16>, ptr %place, align 4
  %given = bitcast i32 %word to <2 x i16>
  %old.wide = zext <2 x i16> %old to <2 x i32>
  %old.bits = shl <2 x i32> %old.wide, splat (i32 16)
  %given.wide = zext <2 x i16> %given to <2 x i32>
  %given.bits = shl <2 x i32> %given.wide, splat (i32 16)
  %a = bitcast <2 x i32> %old.bits to <2 x float>
  %b = bitcast <2 x i32> %given.bits to <2 x float>
  %sum = fadd <2 x float> %a, %b
  %rounded = call <2 x i16> @bfloat.2(<2 x float> %sum)
  store <2 x i16> %rounded, ptr %place, align 4
  ret void
}""",
}


def pairs(text: str) -> list[str]:
    """Functions that add two halves of a word at once, those that are called."""
    return [function for form, function in PAIRS.items() if f"@add.{form}(" in text]


def roundings(text: str) -> list[str]:
    """Functions that round to bfloat16, for the widths that are called."""
    made = []
    for lanes in sorted({int(n) for n in re.findall(r"@bfloat\.(\d+)\(", text)}):
        f, i, s, b = (t if lanes == 1 else f"<{lanes} x {t}>" for t in ("float", "i32", "i16", "i1"))
        c = lambda n, lanes=lanes: str(n) if lanes == 1 else f"splat (i32 {n})"  # noqa: E731
        made.append(f"""define internal {s} @bfloat.{lanes}({f} %x) nounwind {{
  %bits = bitcast {f} %x to {i}
  %high = lshr {i} %bits, {c(16)}
  %odd = and {i} %high, {c(1)}
  %more = add {i} %odd, {c(32767)}
  %sum = add {i} %bits, %more
  %rounded = lshr {i} %sum, {c(16)}
  %nan = fcmp uno {f} %x, %x
  %chosen = select {b} %nan, {i} {c(0x7FFF)}, {i} %rounded
  %y = trunc {i} %chosen to {s}
  ret {s} %y
}}""")
    return made


def driver(fills: str) -> str:
    """Runs some threads of a block, in the order given, each until it waits or ends."""
    return f"""define void @begin() {{
{fills}
  ret void
}}
define void @run(ptr %arguments, ptr %lengths, ptr %desk, ptr %handles, i32 %block, i1 %starts, ptr %order,
                 i64 %count) {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %next, %done ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %end
body:
  %at = getelementptr i32, ptr %order, i64 %k
  %thread = load i32, ptr %at
  %place = getelementptr ptr, ptr %handles, i32 %thread
  br i1 %starts, label %start, label %resume
start:
  %made = call ptr @kernel(ptr %arguments, ptr %lengths, ptr %desk, i32 %thread, i32 %block)
  store ptr %made, ptr %place
  br label %done
resume:
  %handle = load ptr, ptr %place
  call void @llvm.coro.resume(ptr %handle)
  br label %done
done:
  %next = add i64 %k, 1
  br label %head
end:
  ret void
}}"""


__all__ = ["END", "HELPERS", "INTRINSICS", "driver", "pairs", "roundings"]
