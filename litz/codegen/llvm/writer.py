"""Writing LLVM IR: names, types, constants and the few idioms every generator here shares.

A value in flight is an `Operand`: its text, its loop-IR type and how many lanes it has (1 is a scalar).
Loop counters and accumulators live in stack slots; LLVM's SROA pass turns them into registers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from litz.loop.dtype import DTYPES


class Operand(NamedTuple):
    text: str
    dtype: str
    lanes: int

    @property
    def type(self) -> str:
        return llvm_type(self.dtype, self.lanes)


def llvm_type(dtype: str, lanes: int = 1) -> str:
    scalar = DTYPES[dtype].llvm
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def overload(type_text: str) -> str:
    """How an intrinsic's name spells a type: `<16 x float>` is `v16f32`."""
    if type_text.startswith("<"):
        lanes, scalar = type_text[1:-1].split(" x ")
        return f"v{lanes}{_SUFFIX.get(scalar, scalar)}"
    return _SUFFIX.get(type_text, type_text)


def literal(value: float | int | bool, dtype: str) -> str:
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("int", "uint"):
        return str(int(value))
    if dtype != "f64":
        value = _rounded(float(value), "<f")  # first of all, as in eager
    if dtype == "f16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', _rounded(value, '<e')))[0]:04X}"
    if dtype == "bf16":
        return str(_bfloat16_bits(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"


def is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _rounded(value: float, form: str) -> float:
    """The nearest number of the type that `struct` calls `form`."""
    try:
        return struct.unpack(form, struct.pack(form, value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _bfloat16_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return 0x7FC0
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


@dataclass(frozen=True)
class Dialect:
    """What of LLVM a machine's code is written in."""

    function_bytes: tuple[int, ...] = ()  # as of the target
    bfloat: bool = False  # rounding to bfloat16 is an instruction
    fences: bool = True  # there are fences, over which no arithmetic is moved
    aligned: int = 0  # bytes to which buffers are: the access of a vector is one where it is known to be aligned
    branches: bool = False  # what is not live is branched around
    together: int = 1  # steps of a simple loop that are written side by side, so that they wait for memory together
    own: Mapping[tuple[str, str], Callable[..., str]] = field(default_factory=dict)  # of a type, for those of `math.py`
    # Of float32, for what is rounded anyway: by how many bits of the result are seen.
    coarse: Mapping[tuple[str, int], Callable[..., str]] = field(default_factory=dict)
    sums_from_first: bool = False  # a sum begins with its first number, whatever the sign of nothing, not with zero
    upper_product: str | None = None  # the function that multiplies two words for the upper half of the product
    fault: str = "store i32 {code}, ptr {cell}"  # how a kernel says that it has failed
    # Combines a value with what is at an address, where other threads may do so too. None: no other thread ever does.
    update: Callable[[Writer, str, str, Operand], None] | None = None


class Module:
    """Functions, and what they need declared."""

    def __init__(self, dialect: Dialect = Dialect()) -> None:  # noqa: B008
        self.dialect = dialect
        self.functions: list[str] = []
        self.declarations: dict[str, None] = {}
        self.globals: dict[str, str] = {}
        self.defined: set[str] = set()  # functions of its own that kernels call
        self.loops = 0  # of which something is said

    def declare(self, text: str) -> None:
        self.declarations[text] = None

    def constant_array(self, values: tuple[int, ...]) -> str:
        """A global array of i64, shared by all who need the same one."""
        text = ", ".join(f"i64 {v}" for v in values)
        definition = f"constant [{len(values)} x i64] [{text}]" if values else "constant [1 x i64] [i64 0]"
        return self.globals.setdefault(definition, f"@array{len(self.globals)}")

    def constant(self, value: str) -> str:
        """A global of this type and value."""
        return self.globals.setdefault(f"constant {value}", f"@constant{len(self.globals)}")

    def constant_string(self, value: str) -> str:
        data = value.encode() + b"\0"
        text = "".join(f"\\{byte:02X}" for byte in data)
        return self.globals.setdefault(f'constant [{len(data)} x i8] c"{text}"', f"@text{len(self.globals)}")

    def written_together(self) -> str:
        """What stands behind a loop's last branch, if several of its steps are to be written side by side."""
        steps = self.dialect.together
        if steps == 1:
            return ""
        self.loops += 1
        loop = 2 * self.loops
        self.declare(f'!{loop + 1} = !{{!"llvm.loop.unroll.count", i32 {steps}}}')
        self.declare(f"!{loop} = distinct !{{!{loop}, !{loop + 1}}}")
        return f", !llvm.loop !{loop}"

    def text(self) -> str:
        globals_ = [f"{name} = private unnamed_addr {definition}" for definition, name in self.globals.items()]
        return "\n".join([*globals_, *self.declarations, *self.functions, ""])


class Writer:
    """One function's text."""

    def __init__(self, module: Module):
        self.module = module
        self.lines: list[str] = []
        self.entry: list[str] = []  # what the entry block begins with, whatever loop asks for it
        self._count = 0
        self._known: dict[str, str] | None = None  # what a stretch of shared code has computed

    def fresh(self, prefix: str = "x") -> str:
        self._count += 1
        return f"%{prefix}{self._count}"

    def emit(self, text: str) -> None:
        self.lines.append("  " + text)

    def let(self, text: str, prefix: str = "x") -> str:
        if self._known is not None and text in self._known:
            return self._known[text]
        name = self.fresh(prefix)
        self.lines.append(f"  {name} = {text}")
        if self._known is not None:
            self._known[text] = name
        return name

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Code that writes nothing it reads: the same instruction on the same operands is written once. What only a
        branch of it computes is known to that branch alone, and is not shared."""
        self._known = {}
        yield
        self._known = None

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Code that is run or not."""
        known, self._known = self._known, None
        yield
        self._known = known

    def label(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def place(self, label: str) -> None:
        assert self._known is None, "what is known to shared code is known in all of it"
        self.lines.append(f"{label}:")

    def slot(self, type_text: str, align: int = 64) -> str:
        name = self.fresh("slot")
        self.entry.append(f"  {name} = alloca {type_text}, align {align}")
        return name

    def first(self, text: str) -> str:
        """An instruction on the parameters alone, run when the function is entered."""
        name = self.fresh()
        self.entry.append(f"  {name} = {text}")
        return name

    # -- integers ---------------------------------------------------------------------------------
    def add(self, a: str, b: str) -> str:
        if a == "0":
            return b
        if b == "0":
            return a
        if is_number(a) and is_number(b):
            return str(int(a) + int(b))
        return self.let(f"add nsw i64 {a}, {b}", "i")

    def mul(self, a: str, b: str) -> str:
        if a == "1":
            return b
        if b == "1":
            return a
        if "0" in (a, b):
            return "0"
        if is_number(a) and is_number(b):
            return str(int(a) * int(b))
        return self.let(f"mul nsw i64 {a}, {b}", "i")

    def minimum(self, a: str, b: str) -> str:
        return self.intrinsic("llvm.smin", "i64", a, b)

    def address(self, element: str, pointer: str, index: str | int) -> str:
        return self.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", "p")

    # -- vectors ----------------------------------------------------------------------------------
    def splat(self, value: Operand, lanes: int) -> Operand:
        if value.lanes == lanes:
            return value
        assert value.lanes == 1
        scalar, vector = llvm_type(value.dtype), llvm_type(value.dtype, lanes)
        if not value.text.startswith("%"):
            return Operand(f"splat ({scalar} {value.text})", value.dtype, lanes)
        one = self.let(f"insertelement {vector} poison, {scalar} {value.text}, i32 0")
        return Operand(
            self.let(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer"),
            value.dtype,
            lanes,
        )

    def lanes_below(self, start: str, stop: str, lanes: int) -> Operand:
        """The mask of lanes `k` with `start + k < stop`."""
        ramp = ", ".join(f"i64 {k}" for k in range(lanes))
        t = f"<{lanes} x i64>"
        here = self.let(f"add {t} {self.splat(Operand(start, 'i64', 1), lanes).text}, <{ramp}>")
        below = self.let(f"icmp slt {t} {here}, {self.splat(Operand(stop, 'i64', 1), lanes).text}")
        return Operand(below, "b1", lanes)

    def intrinsic(self, name: str, type_text: str, *args: str, result: str | None = None) -> str:
        """A call of an intrinsic overloaded on one type, all arguments of that type."""
        full = f"@{name}.{overload(type_text)}"
        types = ", ".join([type_text] * len(args))
        self.module.declare(f"declare {result or type_text} {full}({types})")
        values = ", ".join(f"{type_text} {a}" for a in args)
        return self.let(f"call {result or type_text} {full}({values})")

    def load_sizes(self, names: Iterable[str]) -> dict[str, str]:
        """The sizes a program is called with, from the table `%sizes`, in its order."""
        return {n: self.let(f"load i64, ptr {self.address('i64', '%sizes', i)}", "s") for i, n in enumerate(names)}

    # -- control ----------------------------------------------------------------------------------
    @contextmanager
    def loop(
        self, start: str, stop: str, step: str | int = 1, prefix: str = "l", together: bool = False
    ) -> Iterator[str]:
        """`for (i = start; i < stop; i += step)`; yields `i`. A loop that provably runs once has no branch. `together`:
        its steps may be written side by side."""
        if start.isdigit() and stop.isdigit() and int(start) < int(stop) <= int(start) + int(step):
            yield start
            return
        counter = self.slot("i64", 8)
        self.emit(f"store i64 {start}, ptr {counter}")
        head, body, done = self.label("head"), self.label("body"), self.label("done")
        self.emit(f"br label %{head}")
        with self.branch():
            self.place(head)
            i = self.let(f"load i64, ptr {counter}", prefix)
            self.emit(f"br i1 {self.let(f'icmp slt i64 {i}, {stop}')}, label %{body}, label %{done}")
            self.place(body)
            yield i
            self.emit(f"store i64 {self.let(f'add nsw i64 {i}, {step}')}, ptr {counter}")
            self.emit(f"br label %{head}{self.module.written_together() if together else ''}")
            self.place(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        body, done = self.label("then"), self.label("done")
        self.emit(f"br i1 {condition}, label %{body}, label %{done}")
        with self.branch():
            self.place(body)
            yield
            self.emit(f"br label %{done}")
            self.place(done)

    def define(self, name: str, parameters: str, result: str = "void", attributes: str = "nounwind") -> None:
        """Close the function and hand it to the module."""
        body = "\n".join([*self.entry, *self.lines])
        self.module.functions.append(f"define {result} @{name}({parameters}) {attributes} {{\nentry:\n{body}\n}}")
