"""Update memory that other threads update at the same time: each element in one indivisible step, in any order.

In: an address, how what is there is combined with a value, and the value; two values of 16 bits, side by side in one
word, are one. Out: the instructions. Sums, and the extrema of integers, are single instructions of a GPU; all else
looks at what is there and puts what it makes of it, if nobody was there in between.
"""

from __future__ import annotations

from litz.codegen.llvm.reduction import combine_stored
from litz.codegen.llvm.writer import Operand, Writer
from litz.loop.dtype import DTYPES

_ORDER = 'syncscope("device") monotonic'  # kernels that come later see all of it
_OF_INTEGERS = {"sum": "add", "max": "max", "min": "min"}
_OF_BOOLS = {"max": "or", "min": "and"}
_HALF_BITS = {"f16": "half", "bf16": "bfloat"}
_MINUS_ZERO = 0x8000  # of 16 bits: what can be added to anything without a change
_PAIR = {"f16": "f16x2", "bf16": "bf16x2"}


def update(w: Writer, kind: str, address: str, value: Operand, pairs: tuple[str, ...] = ("f16", "bf16")) -> None:
    """`pairs`: types of which the GPU adds two at once."""
    number, floats = DTYPES[value.dtype], DTYPES[value.dtype].kind == "float"
    if kind == "sum" and floats:
        _add(w, address, value, value.dtype in pairs)
    elif value.dtype == "b1" and kind in _OF_BOOLS:
        byte = w.let(f"zext i1 {value.text} to i8")
        w.let(f"atomicrmw {_OF_BOOLS[kind]} ptr {address}, i8 {byte} {_ORDER}")
    elif not floats and kind in _OF_INTEGERS:
        unsigned = "u" if number.kind == "uint" and kind != "sum" else ""
        w.let(f"atomicrmw {unsigned}{_OF_INTEGERS[kind]} ptr {address}, {value.type} {value.text} {_ORDER}")
    else:
        _by_exchange(w, kind, address, value)


def update_before_sm_90(w: Writer, kind: str, address: str, value: Operand) -> None:
    update(w, kind, address, value, ("f16",))


# -- sums -----------------------------------------------------------------------------------------
def _add(w: Writer, address: str, value: Operand, pairs: bool) -> None:
    if value.dtype not in _HALF_BITS:
        bits = w.let(f"bitcast {value.type} {value.text} to i{DTYPES[value.dtype].bits}")
        # What changes nothing need not wait its turn: minus zero, which lowerings put where there is nothing to add.
        with w.when(w.let(f"icmp ne i{DTYPES[value.dtype].bits} {bits}, {_minus_zero(value.dtype)}")):
            w.let(f"atomicrmw fadd ptr {address}, {value.type} {value.text} {_ORDER}")
        return
    if value.lanes == 2:
        word = w.let(f"bitcast {value.type} {value.text} to i32")
    else:
        address, word = _as_pair(w, address, value)
    with w.when(w.let(f"icmp ne i32 {word}, {_MINUS_ZERO << 16 | _MINUS_ZERO}")):
        if pairs:
            place = w.let(f"addrspacecast ptr {address} to ptr addrspace(1)", "p")
            red = f"red.relaxed.gpu.global.add.noftz.{_PAIR[value.dtype]} [$0], $1;"
            w.emit(f'call void asm sideeffect "{red}", "l,r,~{{memory}}"(ptr addrspace(1) {place}, i32 {word})')
        else:
            two = f"<2 x {_HALF_BITS[value.dtype]}>"
            both = w.let(f"bitcast i32 {word} to {two}")
            w.let(f"atomicrmw fadd ptr {address}, {two} {both} {_ORDER}, align 4")


def _as_pair(w: Writer, address: str, value: Operand) -> tuple[str, str]:
    """The word that a number of 16 bits is half of, and the number in its place, beside what adds nothing. A word that
    hangs over the end of a buffer ends in what no buffer begins with: all lie at multiples of 16 bytes."""
    bits = value.text if value.type == "i16" else w.let(f"bitcast {value.type} {value.text} to i16")
    wide = w.let(f"zext i16 {bits} to i32")
    w.module.declare("declare ptr @llvm.ptrmask.p0.i64(ptr, i64)")
    place = w.let(f"call ptr @llvm.ptrmask.p0.i64(ptr {address}, i64 -4)", "p")
    offset = w.let(f"and i64 {w.let(f'ptrtoint ptr {address} to i64')}, 2")
    low = w.let(f"or disjoint i32 {wide}, {_MINUS_ZERO << 16}")
    high = w.let(f"or disjoint i32 {w.let(f'shl i32 {wide}, 16')}, {_MINUS_ZERO}")
    return place, w.let(f"select i1 {w.let(f'icmp eq i64 {offset}, 0')}, i32 {low}, i32 {high}")


def _minus_zero(dtype: str) -> int:
    return -(1 << (DTYPES[dtype].bits - 1))


# -- all else -------------------------------------------------------------------------------------
def _by_exchange(w: Writer, kind: str, address: str, value: Operand) -> None:
    """What others put there in between is combined anew; where the value changes nothing, nothing is put."""
    bits = DTYPES[value.dtype].bits
    word, seen = f"i{bits}", w.slot(f"i{bits}", 8)
    now = w.let(f"load atomic {word}, ptr {address} {_ORDER}, align {bits // 8}")
    w.emit(f"store {word} {now}, ptr {seen}")
    head, attempt, done = (w.label(prefix) for prefix in ("head", "attempt", "done"))
    w.emit(f"br label %{head}")
    with w.branch():
        w.place(head)
        old = w.let(f"load {word}, ptr {seen}")
        new = _word_of(w, combine_stored(w, kind, _value_of(w, old, value), value))
        w.emit(f"br i1 {w.let(f'icmp eq {word} {old}, {new}')}, label %{done}, label %{attempt}")
        w.place(attempt)
        found = w.let(f"cmpxchg ptr {address}, {word} {old}, {word} {new} {_ORDER} monotonic")
        w.emit(f"store {word} {w.let(f'extractvalue {{ {word}, i1 }} {found}, 0')}, ptr {seen}")
        w.emit(f"br i1 {w.let(f'extractvalue {{ {word}, i1 }} {found}, 1')}, label %{done}, label %{head}")
        w.place(done)


def _value_of(w: Writer, word: str, like: Operand) -> Operand:
    if like.dtype == "b1":
        return like._replace(text=w.let(f"icmp ne i8 {word}, 0"))
    same = like.type == f"i{DTYPES[like.dtype].bits}"
    return like._replace(text=word if same else w.let(f"bitcast i{DTYPES[like.dtype].bits} {word} to {like.type}"))


def _word_of(w: Writer, value: Operand) -> str:
    word = f"i{DTYPES[value.dtype].bits}"
    if value.dtype == "b1":
        return w.let(f"zext i1 {value.text} to i8")
    return value.text if value.type == word else w.let(f"bitcast {value.type} {value.text} to {word}")


__all__ = ["update", "update_before_sm_90"]
