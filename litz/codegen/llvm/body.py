"""Emitting the operators of a kernel's body at one point of its loops.

A `Scope` is where the generator stands: which axis holds what, which values are known, and which lanes
are live. It turns index expressions into addresses and operators into instructions, scalar where a
value is the same in every lane, vectors (several side by side, if asked) where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import gcd

from litz.codegen.coarse import BITS, Coarse
from litz.codegen.far import AHEAD_BYTES, LINE_BYTES
from litz.codegen.llvm import math
from litz.codegen.llvm.divide import divided
from litz.codegen.llvm.draw import draw
from litz.codegen.llvm.functions import part_of
from litz.codegen.llvm.reduction import combine_stored
from litz.codegen.llvm.writer import Operand, Writer, literal, llvm_type
from litz.loop.dtype import DTYPES, is_float
from litz.loop.expr import ZERO, Atom, Axis, Expr, FloorDiv, Mod, Size, Value, is_positive
from litz.loop.fault import FAULTS
from litz.loop.ir import Apply, Buffer, Check, Const, Index, Load, Op, Store, operands
from litz.loop.scalar import SCALARS

_ZEROS = "litz.zeros"
_EVERY_LANE = "litz.every_lane"


@dataclass
class Scope:
    writer: Writer
    buffers: dict[str, Buffer]
    pointers: dict[str, str]  # buffer -> LLVM pointer
    lanes: int
    vector: Axis | None  # the axis that runs across lanes
    varies: dict[str, frozenset[Axis]]
    axes: dict[Axis, str] = field(default_factory=dict)  # value of each bound axis, copy 0, lane 0
    copies: int = 1  # vectors side by side
    apart: int = 0  # elements of the vector axis from one to the next, or as `shifts` says; 0: they touch
    shifts: tuple[Mapping[Axis, int], ...] = ()  # where each copy stands, from where its axes are bound
    spread: frozenset[Axis] = frozenset()  # axes along which copies stand apart, beside the vector axis
    masks: tuple[Operand | None, ...] = (None,)  # what is live of each copy, or of all: None is everything
    values: dict[str, list[Operand]] = field(default_factory=dict)
    indices: dict[str, Expr] = field(default_factory=dict)  # of the values that are index expressions, what they are
    error: str = "%error"
    sizes: dict[str, str] = field(default_factory=dict)  # sizes known only at run time
    coarse: Mapping[str, Coarse] = field(default_factory=dict)  # values that need not be good to their last place
    ahead: frozenset[str] = frozenset()  # buffers of which more is asked for than is read

    # -- values -------------------------------------------------------------------------------------
    def wide(self, name: str) -> bool:
        return self.lanes > 1 and self.along(name)

    def along(self, name: str) -> bool:
        """Whether the value varies along the vector axis, and so from copy to copy."""
        return self.vector is not None and self.vector in self.varies[name]

    def mask(self, copy: int) -> Operand | None:
        return self.masks[copy] if len(self.masks) > 1 else self.masks[0]

    def get(self, name: str, copy: int) -> Operand:
        """Of a value that fewer copies share, each has as many neighbours."""
        found = self.values[name]
        return found[copy * len(found) // self.copies] if len(found) > 1 else found[0]

    def _count(self, name: str) -> int:
        """How many of its copies differ."""
        return self.copies if self.along(name) or self.spread & self.varies[name] else 1

    def emit(self, op: Op) -> None:
        if isinstance(op, Store):
            along = self.vector is not None and (
                self.vector in op.index.axes() or any(self.along(n) for n in operands(op))
            )
            for copy in range(self.copies if along else 1):
                self._store(op, copy, along and self.lanes > 1, self.mask(copy) if along else None)
            return
        wide = self.wide(op.name)
        self.values[op.name] = [self._value(op, copy, wide) for copy in range(self._count(op.name))]

    def _value(self, op: Op, copy: int, wide: bool) -> Operand:
        lanes = self.lanes if wide else 1
        if isinstance(op, Const):
            return Operand(literal(op.value, op.dtype), op.dtype, 1)
        if isinstance(op, Load):
            return self._load(op, copy, wide)
        if isinstance(op, Index):
            self.indices[op.name] = op.expr
            index = self.index(op.expr, copy, lanes)
            return math.inline(self.writer, "cast", [index], op.dtype) if op.dtype != "i64" else index
        if isinstance(op, Apply):
            if (known := self.coarse.get(op.name)) is not None and known.difference is not None:
                return self._exp_of_difference([self.get(a, copy) for a in known.difference.args], lanes)
            if known is not None and (made := self._multiple(known, copy, lanes)) is not None:
                return made
            if op.op == "philox":
                return draw(self, op, copy, lanes)
            return self.apply(op, [self.get(a, copy) for a in op.args], lanes)
        assert isinstance(op, Check)
        return self._check(op, copy, lanes)

    def apply(self, op: Apply, args: list[Operand], lanes: int) -> Operand:
        row = SCALARS[op.op]
        if op.name in self.coarse and (made := self._coarsely(op, args, lanes)) is not None:
            return made
        args = [self.writer.splat(a, lanes) for a in args]
        kind = DTYPES[args[-1].dtype].kind
        spelling = row.llvm[kind]
        if spelling.startswith("inline "):
            return math.inline(self.writer, spelling[7:], args, op.dtype)
        if spelling.startswith("sleef "):
            _, name, accuracy = spelling.split()
            return math.sleef(self.writer, name, accuracy, args)
        t = args[-1].type
        if spelling.startswith("@"):
            name = spelling[1:]
            return Operand(self.writer.intrinsic(name, t, *(a.text for a in args)), op.dtype, lanes)
        names = dict(zip("abc", (a.text for a in args), strict=False))
        return Operand(self.writer.let(spelling.format(t=t, **names)), op.dtype, lanes)

    def _coarsely(self, op: Apply, args: list[Operand], lanes: int) -> Operand | None:
        """The operator in fewer instructions, where there is such a form."""
        w = self.writer
        spelling = SCALARS[op.op].llvm.get(DTYPES[op.dtype].kind, "")
        if spelling.startswith(("fadd ", "fsub ", "fmul ")) and w.module.dialect.coarse:
            # Multiplied and added at once, as eager's compiler has it too; constants that follow each other are one.
            names = dict(zip("ab", (w.splat(a, lanes).text for a in args), strict=True))
            flags = " reassoc contract {t}" if op.op == "mul" else " contract {t}"
            text = spelling.replace(" {t}", flags).format(t=llvm_type(op.dtype, lanes), **names)
            return Operand(w.let(text), op.dtype, lanes)
        function = w.module.dialect.coarse.get((op.op, self.coarse[op.name].bits))
        if function is None or any(a.dtype != op.dtype for a in args):
            return None
        arithmetic = math.Arithmetic(w, op.dtype, lanes)
        if op.op == "div" and lanes > 1 and args[1].lanes == 1:
            factors = math.Arithmetic(w, op.dtype, 1).dividing_by(args[1].text, self.coarse[op.name].least_one)
            text = w.splat(args[0], lanes).text
            for factor in factors:
                text = arithmetic.i("fmul", text, w.splat(Operand(factor, op.dtype, 1), lanes).text)
            return Operand(text, op.dtype, lanes)
        return Operand(function(arithmetic, [w.splat(a, lanes).text for a in args]), op.dtype, lanes)

    def _multiple(self, known: Coarse, copy: int, lanes: int) -> Operand | None:
        """A function times a constant, where that takes no more than the function."""
        if known.multiple is None:
            return None
        w, (of, factor) = self.writer, known.multiple
        function = w.module.dialect.coarse.get((f"{of.op} times", known.bits))
        if function is None:
            return None
        args = [self.get(of.args[0], copy), Operand(literal(1.0 / factor, "f32"), "f32", 1)]
        return Operand(function(math.Arithmetic(w, "f32", lanes), [w.splat(a, lanes).text for a in args]), "f32", lanes)

    def _exp_of_difference(self, args: list[Operand], lanes: int) -> Operand:
        w = self.writer
        function = w.module.dialect.coarse["exp of difference", BITS["f16"]]
        return Operand(function(math.Arithmetic(w, "f32", lanes), [w.splat(a, lanes).text for a in args]), "f32", lanes)

    def size(self, e: Expr) -> str:
        """An expression in sizes alone."""
        return str(e.int) if e.is_int else self._scalar_index(e, 0)

    # -- indices ------------------------------------------------------------------------------------
    def index(self, e: Expr, copy: int, lanes: int) -> Operand:
        """The expression as an i64 scalar or vector."""
        if lanes == 1:
            return Operand(self._scalar_index(e, copy), "i64", 1)
        assert self.vector is not None
        step = e.coefficient(self.vector)
        if step is not None and step.is_int and not any(self.wide(v.name) for v in e.values()):
            base = self.writer.splat(Operand(self._scalar_index(e, copy), "i64", 1), lanes)
            ramp = ", ".join(f"i64 {k * step.int}" for k in range(lanes))
            return Operand(self.writer.let(f"add <{lanes} x i64> {base.text}, <{ramp}>"), "i64", lanes)
        return self._vector_index(e, copy, lanes)

    def _scalar_index(self, e: Expr, copy: int) -> str:
        w = self.writer
        further = self._further(e, copy) if self.shifts else None
        total = "0"
        for monomial, coefficient in e.terms:
            product = str(coefficient)
            for atom in monomial:
                moved = isinstance(atom, Axis) and further is not None
                product = w.mul(product, self.axes[atom] if moved else self._atom(atom, copy))  # type: ignore[index]
            total = w.add(total, product)
        return total if further is None else w.add(total, str(further))

    def _further(self, e: Expr, copy: int) -> int | None:
        """How far the copy's element lies from that of the bound axes, where that is a number: two copies that mean
        the same element then say so in the same words."""
        total = 0
        for axis, shift in self.shifts[copy].items():
            step = e.coefficient(axis)
            if step is None or not step.is_int:
                return None
            total += step.int * shift
        return total

    def _atom(self, atom: Atom, copy: int) -> str:
        if isinstance(atom, Axis):
            if self.shifts:
                return self.writer.add(self.axes[atom], str(self.shifts[copy].get(atom, 0)))
            base = self.axes[atom]
            if atom is self.vector or atom == self.vector:
                return self.writer.add(base, str(copy * (self.apart or self.lanes)))
            return base
        if isinstance(atom, Value):
            return self.get(atom.name, copy).text
        if isinstance(atom, Size):
            return self.sizes[atom.name]
        assert isinstance(atom, (FloorDiv, Mod)), f"{atom} is not known at compile time"
        parts = self._scalar_index(atom.num, copy), self._scalar_index(atom.den, copy)
        return divided(self.writer, atom, 1, *parts)

    def _vector_index(self, e: Expr, copy: int, lanes: int) -> Operand:
        w = self.writer
        total: str | None = None
        t = f"<{lanes} x i64>"
        for monomial, coefficient in e.terms:
            product = f"splat (i64 {coefficient})"
            for atom in monomial:
                product = w.let(f"mul {t} {product}, {self._vector_atom(atom, copy, lanes)}")
            total = product if total is None else w.let(f"add {t} {total}, {product}")
        return Operand(total or "zeroinitializer", "i64", lanes)

    def _vector_atom(self, atom: Atom, copy: int, lanes: int) -> str:
        w = self.writer
        if isinstance(atom, Axis) and atom == self.vector:
            base = w.splat(Operand(self._atom(atom, copy), "i64", 1), lanes)
            ramp = ", ".join(f"i64 {k}" for k in range(lanes))
            return w.let(f"add <{lanes} x i64> {base.text}, <{ramp}>")
        if isinstance(atom, Value):
            return w.splat(self.get(atom.name, copy), lanes).text
        if isinstance(atom, (FloorDiv, Mod)):
            parts = (self._vector_index(e, copy, lanes).text for e in (atom.num, atom.den))
            return divided(w, atom, lanes, *parts)
        return w.splat(Operand(self._atom(atom, copy), "i64", 1), lanes).text

    # -- memory -------------------------------------------------------------------------------------
    def _memory_type(self, dtype: str) -> str:
        return "i8" if dtype == "b1" else llvm_type(dtype)

    def contiguous(self, index: Expr) -> bool:
        """Whether lane k is k elements after lane 0."""
        assert self.vector is not None
        step = index.coefficient(self.vector)
        return step is not None and step.is_int and step.int == 1 and not any(self.wide(v.name) for v in index.values())

    def _live(self, mask: Operand | None, copy: int, lanes: int) -> str | None:
        """The lanes that are live where only those of `mask` count."""
        w, here = self.writer, self.mask(copy)
        known = [w.splat(m, lanes).text for m in (mask, here) if m is not None]
        if len(known) < 2:
            return known[0] if known else None
        return w.let(f"and <{lanes} x i1> {known[0]}, {known[1]}")

    def _load(self, op: Load, copy: int, wide: bool) -> Operand:
        w = self.writer
        element = self._memory_type(op.dtype)
        size = DTYPES[op.dtype].bytes
        pointer = self.pointers[op.buffer]
        mask = None if op.mask is None else self.get(op.mask, copy)
        if not wide:
            here = self.mask(copy) if self.along(op.name) else None
            if mask is not None and here is not None:
                here = Operand(w.let(f"and i1 {mask.text}, {here.text}"), "b1", 1)
            return self._scalar_load(op, pointer, element, size, here or mask, copy)
        assert self.vector is not None
        lanes, t = self.lanes, f"<{self.lanes} x {element}>"
        if self.vector not in op.index.axes() and not any(self.wide(v.name) for v in op.index.values()):
            # The same element for all lanes, wide only through its mask.
            live = self._live(mask, copy, lanes)
            anyone = w.intrinsic("llvm.vector.reduce.or", f"<{lanes} x i1>", live or "splat (i1 true)", result="i1")
            one = self._scalar_load(op, pointer, element, size, Operand(anyone, "b1", 1), copy)
            value = w.splat(one, lanes)
            return Operand(
                w.let(f"select <{lanes} x i1> {live}, {value.type} {value.text}, {value.type} zeroinitializer"),
                op.dtype,
                lanes,
            )
        if mask is not None and mask.lanes == 1 and self.contiguous(op.index) and not w.module.dialect.branches:
            # All lanes or none: zeros are read from elsewhere. A masked load whose address no page stands behind,
            # as at the edge of an image, costs hundreds of cycles even when no lane is live.
            pointer, index = self._or_zeros(mask, op, pointer, element, copy), "0"
            mask = None
        else:
            index = self._scalar_index(op.index, copy) if self.contiguous(op.index) else ""
        live = self._live(mask, copy, lanes)
        if self.contiguous(op.index):
            address = w.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", "p")
            if live is None:
                if op.buffer in self.ahead and copy * lanes * size % LINE_BYTES == 0:
                    self._ask_ahead(address)
                text = w.let(f"load {t}, ptr {address}, align {self._alignment(op.index, size)}")
            elif (whole := self._all_or_none(mask, copy)) is not None:
                text = self._when_live(whole, t, address, self._alignment(op.index, size))
            elif w.module.dialect.branches:
                text = self._load_by_lanes(live, t, address, element, self._alignment(op.index, size))
            else:
                text = self._masked_load(live, t, address, element)
        else:
            addresses = self._addresses(op.index, copy, element, pointer, op.buffer)
            name = f"@llvm.masked.gather.v{lanes}{_suffix(element)}.v{lanes}p0"
            w.module.declare(f"declare {t} {name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {t})")
            lives = f"<{lanes} x i1> {live or 'splat (i1 true)'}"
            text = w.let(f"call {t} {name}(<{lanes} x ptr> {addresses}, i32 {size}, {lives}, {t} zeroinitializer)")
        if op.dtype == "b1":
            text = w.let(f"icmp ne {t} {text}, zeroinitializer")
        return Operand(text, op.dtype, lanes)

    def _ask_ahead(self, address: str) -> None:
        w = self.writer
        w.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        w.emit(f"call void @llvm.prefetch.p0(ptr {w.address('i8', address, AHEAD_BYTES)}, i32 0, i32 3, i32 1)")

    def _masked_load(self, live: str, t: str, address: str, element: str) -> str:
        w, lanes, size = self.writer, self.lanes, _BYTES[element]
        name = f"@llvm.masked.load.v{lanes}{_suffix(element)}.p0"
        w.module.declare(f"declare {t} {name}(ptr, i32, <{lanes} x i1>, {t})")
        return w.let(f"call {t} {name}(ptr {address}, i32 {size}, <{lanes} x i1> {live}, {t} zeroinitializer)")

    def _load_by_lanes(self, live: str, t: str, address: str, element: str, alignment: int) -> str:
        """One access where all lanes are live, as nearly all vectors are; else lane by lane."""
        w, cell = self.writer, self.writer.slot(t)
        every = w.intrinsic("llvm.vector.reduce.and", f"<{self.lanes} x i1>", live, result="i1")
        with w.when(every):
            w.emit(f"store {t} {w.let(f'load {t}, ptr {address}, align {alignment}')}, ptr {cell}")
        with w.when(w.let(f"xor i1 {every}, true")):
            w.emit(f"store {t} {self._masked_load(live, t, address, element)}, ptr {cell}")
        return w.let(f"load {t}, ptr {cell}")

    def _all_or_none(self, mask: Operand | None, copy: int) -> Operand | None:
        """Whether the whole vector is live, where its lanes do not differ in that."""
        known = [m for m in (mask, self.mask(copy)) if m is not None]
        if not known or any(m.lanes > 1 for m in known):
            return None
        if len(known) == 1:
            return known[0]
        return Operand(self.writer.let(f"and i1 {known[0].text}, {known[1].text}"), "b1", 1)

    def _alignment(self, index: Expr, size: int) -> int:
        """Of a vector's address: buffers are aligned, and vectors begin at multiples of their width."""
        factors = (factor for monomial, factor in index.terms if monomial != (self.vector,))
        return max(size, min(self.writer.module.dialect.aligned, size * gcd(self.lanes, *factors)))

    def _when_live(self, mask: Operand, t: str, address: str, alignment: int) -> str:
        """What is there, or zeros, which takes no reading."""
        w, cell = self.writer, self.writer.slot(t)
        w.emit(f"store {t} zeroinitializer, ptr {cell}")
        with w.when(mask.text):
            w.emit(f"store {t} {w.let(f'load {t}, ptr {address}, align {alignment}')}, ptr {cell}")
        return w.let(f"load {t}, ptr {cell}")

    def _or_zeros(self, mask: Operand, op: Load, pointer: str, element: str, copy: int) -> str:
        """The address of the first lane, or of zeros where the mask is false."""
        w = self.writer
        w.module.declare(f"@{_ZEROS} = private unnamed_addr constant [256 x i8] zeroinitializer, align 64")
        place = w.let(f"getelementptr {element}, ptr {pointer}, i64 {self._scalar_index(op.index, copy)}", "p")
        return w.let(f"select i1 {mask.text}, ptr {place}, ptr @{_ZEROS}", "p")

    def _scalar_load(self, op: Load, pointer: str, element: str, size: int, mask: Operand | None, copy: int) -> Operand:
        w = self.writer
        index = self._scalar_index(op.index, copy)
        if mask is not None and w.module.dialect.branches:
            address = w.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", "p")
            text = self._when_live(mask, element, address, size)
            return Operand(w.let(f"icmp ne i8 {text}, 0") if op.dtype == "b1" else text, op.dtype, 1)
        if mask is not None:
            # A masked scalar reads a harmless zero instead of branching.
            safe = w.slot(element)
            w.emit(f"store {element} zeroinitializer, ptr {safe}")
            place = w.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", "p")
            address = w.let(f"select i1 {mask.text}, ptr {place}, ptr {safe}")
        else:
            address = w.let(f"getelementptr {element}, ptr {pointer}, i64 {index}", "p")
        text = w.let(f"load {element}, ptr {address}, align {size}")
        if op.dtype == "b1":
            text = w.let(f"icmp ne i8 {text}, 0")
        return Operand(text, op.dtype, 1)

    def _addresses(self, index: Expr, copy: int, element: str, pointer: str, buffer: str) -> str:
        w, lanes = self.writer, self.lanes
        indices = self.index(index, copy, lanes).text
        extent = self.buffers[buffer].size
        low = index.bounds()[0]
        if extent.is_int and extent.int < 1 << 31 and low is not None and low >= 0:
            indices = w.let(f"trunc <{lanes} x i64> {indices} to <{lanes} x i32>")
            return w.let(f"getelementptr {element}, ptr {pointer}, <{lanes} x i32> {indices}", "p")
        return w.let(f"getelementptr {element}, ptr {pointer}, <{lanes} x i64> {indices}", "p")

    def _store(self, op: Store, copy: int, wide: bool, mask: Operand | None) -> None:
        w = self.writer
        value = self.get(op.value, copy)
        dtype = value.dtype
        element, size = self._memory_type(dtype), DTYPES[dtype].bytes
        pointer = self.pointers[op.buffer]
        lanes = self.lanes if wide else 1
        value = w.splat(value, lanes)
        if op.update not in (None, "put"):
            assert op.update is not None
            if w.module.dialect.update is not None:
                self._update(op.update, op, copy, value, mask)
                return
            # What is there is loaded as any value is; lanes and threads never mean one element.
            old = self._load(Load("", dtype, op.buffer, op.index), copy, wide)
            value = combine_stored(w, op.update, w.splat(old, lanes), value)
        text = value.text
        t = element if lanes == 1 else f"<{lanes} x {element}>"
        if dtype == "b1":
            text = w.let(f"zext {value.type} {text} to {t}")
        if not wide:
            address = w.let(f"getelementptr {element}, ptr {pointer}, i64 {self._scalar_index(op.index, copy)}", "p")
            with w.when(mask.text) if mask is not None else nullcontext():
                w.emit(f"store {t} {text}, ptr {address}, align {size}")
        elif self.contiguous(op.index):
            address = w.let(f"getelementptr {element}, ptr {pointer}, i64 {self._scalar_index(op.index, copy)}", "p")
            if mask is None:
                w.emit(f"store {t} {text}, ptr {address}, align {self._alignment(op.index, size)}")
            elif mask.lanes == 1:
                with w.when(mask.text):
                    w.emit(f"store {t} {text}, ptr {address}, align {self._alignment(op.index, size)}")
            elif w.module.dialect.branches:
                every = w.intrinsic("llvm.vector.reduce.and", f"<{lanes} x i1>", mask.text, result="i1")
                with w.when(every):
                    w.emit(f"store {t} {text}, ptr {address}, align {self._alignment(op.index, size)}")
                with w.when(w.let(f"xor i1 {every}, true")):
                    self._masked_store(mask.text, t, text, address, element)
            else:
                live = w.splat(mask, lanes).text
                live = self._unforeseen(live) if element.startswith("i") else live
                self._masked_store(live, t, text, address, element)
        else:
            addresses = self._addresses(op.index, copy, element, pointer, op.buffer)
            name = f"@llvm.masked.scatter.v{lanes}{_suffix(element)}.v{lanes}p0"
            w.module.declare(f"declare void {name}({t}, <{lanes} x ptr>, i32, <{lanes} x i1>)")
            lives = f"<{lanes} x i1> {'splat (i1 true)' if mask is None else w.splat(mask, lanes).text}"
            w.emit(f"call void {name}({t} {text}, <{lanes} x ptr> {addresses}, i32 {size}, {lives})")

    def _update(self, kind: str, op: Store, copy: int, value: Operand, mask: Operand | None) -> None:
        """Each element by itself, since other threads may mean it too; two that are one word, together."""
        w, lanes, update = self.writer, value.lanes, self.writer.module.dialect.update
        assert update is not None
        element, pointer = self._memory_type(value.dtype), self.pointers[op.buffer]
        side_by_side = lanes > 1 and self.contiguous(op.index)
        first = self._scalar_index(op.index, copy) if lanes == 1 or side_by_side else ""
        apart = "" if first else self._addresses(op.index, copy, element, pointer, op.buffer)
        width = 2 if side_by_side and DTYPES[value.dtype].bytes == 2 and is_float(value.dtype) else 1
        for lane in range(0, lanes, width):
            if first:
                address = w.let(f"getelementptr {element}, ptr {pointer}, i64 {w.add(first, str(lane))}", "p")
            else:
                address = w.let(f"extractelement <{lanes} x ptr> {apart}, i32 {lane}", "p")
            live = None if mask is None else part_of(w, mask, lane if mask.lanes > 1 else 0, 1)
            with w.when(live.text) if live is not None else nullcontext():
                update(w, kind, address, part_of(w, value, lane, width))

    def _masked_store(self, live: str, t: str, text: str, address: str, element: str) -> None:
        w, lanes = self.writer, self.lanes
        name = f"@llvm.masked.store.v{lanes}{_suffix(element)}.p0"
        w.module.declare(f"declare void {name}({t}, ptr, i32, <{lanes} x i1>)")
        w.emit(f"call void {name}({t} {text}, ptr {address}, i32 {_BYTES[element]}, <{lanes} x i1> {live})")

    def _unforeseen(self, mask: str) -> str:
        """The mask, in a way that LLVM cannot know its lanes: where it knows that only one is live and the value was
        cut to fewer bits, LLVM 22 stores all of the bits (on AVX-512), over what lies behind."""
        w, lanes = self.writer, self.lanes
        w.module.declare(f"@{_EVERY_LANE} = internal externally_initialized global i64 -1, align 8")
        bits = w.let(f"load i{lanes}, ptr @{_EVERY_LANE}, align 8")
        every = w.let(f"bitcast i{lanes} {bits} to <{lanes} x i1>")
        return w.let(f"and <{lanes} x i1> {mask}, {every}")

    def _check(self, op: Check, copy: int, lanes: int) -> Operand:
        w = self.writer
        value = w.splat(self.get(op.value, copy), lanes)
        t, bools = value.type, llvm_type("b1", lanes)
        limit = self.index(op.limit, copy, lanes).text if lanes > 1 else self._scalar_index(op.limit, copy)
        index = value.text
        if op.wrap:
            negative = w.let(f"icmp slt {t} {index}, zeroinitializer")
            index = w.let(f"select {bools} {negative}, {t} {w.let(f'add {t} {index}, {limit}')}, {t} {index}")
        bad = w.let(f"icmp uge {t} {index}, {limit}")
        live = self.mask(copy) if self.along(op.name) else None
        if live is not None:
            bad = w.let(f"and {bools} {bad}, {w.splat(live, lanes).text}")
        raised = bad if lanes == 1 else w.intrinsic("llvm.vector.reduce.or", bools, bad, result="i1")
        with w.when(raised):
            w.emit(w.module.dialect.fault.format(code=FAULTS[op.fault].code, cell=self.error))
            if not is_positive(op.limit):
                # There may be no place to read or write instead: the kernel ends here, since the call fails anyway.
                w.emit("ret void")
                w.place(w.label("unreached"))
        return Operand(w.let(f"select {bools} {bad}, {t} zeroinitializer, {t} {index}"), "i64", lanes)


_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}


def _suffix(element: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)


__all__ = ["ZERO", "Scope"]
