"""The rules of the loop IR, checked between stages so that the stage that broke one is the one that fails.

In: a `Program`. Out: nothing, or a `VerifyError` with the offending line and what was expected of it.

The one idea: one walk in program order. A value's record holds its type and the axes it depends on, as a
bit mask, so that every rule is a look-up and the walk is linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from litz.errors import VerifyError
from litz.loop.dtype import DTYPES, compute_type
from litz.loop.expr import ONE, Axis, Expr, Size, Value
from litz.loop.fault import FAULTS
from litz.loop.ir import (
    POSITIONS,
    REDUCTIONS,
    SCANS,
    UPDATES,
    Apply,
    Arg,
    Buffer,
    Call,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    NumberSource,
    Op,
    Program,
    Reduce,
    Scan,
    SizeSource,
    Store,
    View,
    numbers,
    views,
)  # fmt: skip
from litz.loop.reach import disjoint, leaves, outside
from litz.loop.scalar import BOOL, GIVEN, SCALARS
from litz.loop.text import BUFFER_KINDS, print_arg, print_call, print_op, program_exprs
from litz.loop.totals import parts_of

# What half precision may do without being widened: everything that moves a number and leaves it as it is.
MOVES = ("cast", "where")
INDEX_KINDS = ("int", "uint")
REDUCTION_KINDS = {
    **dict.fromkeys(("sum", "prod"), ("float", "int", "uint")),
    **dict.fromkeys(("max", "min", *POSITIONS), ("float", "int", "uint", "bool")),
    **dict.fromkeys(("any", "all"), ("bool",)),
}
assert set(REDUCTION_KINDS) == set(REDUCTIONS), "every reduction says what it reduces"
SCAN_KINDS = {**REDUCTION_KINDS, "logaddexp": ("float",)}
_GIVEN = ("input", "number")  # kinds of buffers that no step writes first
_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")
_TARGET = re.compile(r"\w+::[\w.]+\Z")


def verify(program: Program) -> None:
    """Raises `VerifyError` at the first rule that `program` breaks."""
    for key, buffer in program.buffers.items():
        _verify_buffer(key, buffer)
    for name in program.inputs:
        if name is not None and (name not in program.buffers or program.buffers[name].kind not in _GIVEN):
            _fail(f"input {name} of the program is not a buffer of kind input", "one, or None", f"program({name})")
    _verify_sizes(program)
    arguments = set(program.inputs)
    for buffer in program.buffers.values():
        if buffer.kind == "input" and buffer.name not in arguments:
            _fail(f"input buffer {buffer.name} is none of the program's inputs", "every input to be bound", buffer.name)
    # Nothing of an empty buffer is ever read, and nothing has to write it.
    written = {name for name, buffer in program.buffers.items() if buffer.kind in _GIVEN or buffer.size == 0}
    for step in program.steps:
        if isinstance(step, Kernel):
            _KernelRules(step, program.buffers, written).verify()
        else:
            _verify_call(step, program.buffers, written)
    for output in program.outputs:
        where = f"program(...) -> ({print_arg(output)})" if isinstance(output, View) else "program(...) -> (...)"
        for view in views(output):
            _verify_view(view, program.buffers, where)
            if view.buffer not in written and not _empty(view):
                _fail(f"output {view.buffer} is never written", "a kernel or a call that writes it", where)


def _fail(what: str, expected: str, excerpt: str) -> NoReturn:
    raise VerifyError(f"{what}; expected {expected}", excerpt=excerpt)


def _is_dtype(name: str) -> bool:
    """Of the loop IR, or one that only called operators know, such as `torch.complex64`."""
    return name in DTYPES or name.startswith("torch.")


def _verify_buffer(key: str, buffer: Buffer) -> None:
    where = f"buffer {buffer.name}: {buffer.dtype}[{buffer.size}] {buffer.kind}"
    if key != buffer.name:
        _fail(f"buffer {buffer.name} is filed under {key}", "its own name", where)
    if not _NAME.match(buffer.name):
        _fail(f"{buffer.name!r} is not a name", "letters, digits, `_` and `.`", where)
    if not _is_dtype(buffer.dtype):
        _fail(f"{buffer.dtype} is not a dtype", f"one of {', '.join(DTYPES)}", where)
    if buffer.kind not in BUFFER_KINDS:
        _fail(f"{buffer.kind} is not a kind of buffer", f"one of {', '.join(BUFFER_KINDS)}", where)
    if any(not isinstance(leaf, Size) for leaf in leaves(buffer.size)):
        _fail(f"the size of {buffer.name} varies", "numbers and declared sizes", where)


def _verify_sizes(program: Program) -> None:
    """A name means one number, and one that comes from an input comes from one there is."""
    known: dict[str, Size] = {}
    for atom in {leaf for e in program_exprs(program) for leaf in leaves(e)}:
        if not isinstance(atom, Size):
            continue
        other = known.setdefault(atom.name, atom)
        if other.hint != atom.hint:
            _fail(f"size {atom.name} is likely {atom.hint} and {other.hint}", "one likely value", atom.name)
        if other != atom:
            _fail(f"size {atom.name} has different bounds or formulas", "one of each", atom.name)
    for source in program.sizes:
        if source.input is None:
            _verify_formula(source, program)
            continue
        if not 0 <= source.input < len(program.inputs):
            _fail(f"size {source.name} comes from input {source.input}", "an input of the program", source.name)
        name = program.inputs[source.input]
        if source.dim is None and name is not None and program.buffers[name].size is ONE:
            continue  # the one number that a tensor holds
        if (source.dim is None) != (name is None):
            _fail(f"size {source.name} is dim {source.dim} of {program.inputs[source.input]}",
                  "a dimension of a tensor, or an input that is a number", source.name)  # fmt: skip
    for number in program.numbers:
        buffer = program.buffers.get(number.name)
        of_host = buffer is not None and buffer.kind == "number" and number.input is not None
        if buffer is not None and (buffer.size is not ONE or not (of_host or buffer.dtype == "f64")):
            _fail(f"number {number.name} is kept as {buffer.dtype}[{buffer.size}]", "one float64", number.name)
        if number.input is None:
            _verify_formula(number, program)
        elif not 0 <= number.input < len(program.inputs) or program.inputs[number.input] is None:
            _fail(f"number {number.name} comes from input {number.input}", "an input that is a tensor", number.name)
    computed = {number.name for number in program.numbers if number.input is None}
    for buffer in program.buffers.values():
        if buffer.kind == "number" and buffer.name not in computed and buffer.name not in program.inputs:
            _fail(f"nothing computes the number {buffer.name}", "a formula for it, or an input", buffer.name)


def _verify_formula(source: SizeSource | NumberSource, program: Program) -> None:
    told = {s.name for s in program.sizes if s.input is not None}
    told |= {n.name for n in program.numbers if n.input is not None}
    unknown = sorted(source.formula.symbols - told) if source.formula is not None else ["nothing"]
    if unknown:
        _fail(f"{source.name} is computed from {unknown[0]}", "numbers that an input tells", source.name)


def _empty(view: View) -> bool:
    return any(size == 0 for size in view.sizes)


def _verify_view(view: View, buffers: dict[str, Buffer], where: str) -> None:
    if view.buffer not in buffers:
        _fail(f"buffer {view.buffer} is not declared", "a declared buffer", where)
    if not _is_dtype(view.dtype):
        _fail(f"{view.dtype} is not a dtype", f"one of {', '.join(DTYPES)}", where)
    if len(view.sizes) != len(view.strides):
        _fail(f"{len(view.sizes)} sizes and {len(view.strides)} strides", "a stride for each size", where)
    buffer = buffers[view.buffer]
    if view.dtype != buffer.dtype or not buffer.size.is_int or _empty(view):
        return
    last = view.at(tuple(size - 1 for size in view.sizes))
    if last.is_int and last.int >= buffer.size.int:
        _fail(f"the window reaches element {last} of {view.buffer}", f"at most {buffer.size.int - 1}", where)


def _verify_call(call: Call, buffers: dict[str, Buffer], written: set[str]) -> None:
    if not _TARGET.match(call.target):
        _fail(f"{call.target!r} names no operator", "`namespace::name` or `namespace::name.overload`", print_call(call))
    made = set(call.writes)
    arguments: Arg = (call.args, call.kwargs)
    for view in (*views(arguments), *views(call.results)):
        _verify_view(view, buffers, print_call(call))
        # What it writes may be handed to it unwritten: the `out` of an operator.
        if view.buffer not in written and view.buffer not in made and not _empty(view):
            _fail(f"{view.buffer} is read before it is written", "an earlier step that writes it", print_call(call))
    for name in (*call.mutates, *(n.name for n in numbers(arguments))):
        if name not in buffers:
            _fail(f"buffer {name} is not declared", "a declared buffer", print_call(call))
    written |= made


class _Record(NamedTuple):
    """What is known of a value: its type, the axes it depends on as a mask, and the limit a `Check` gave it."""

    dtype: str
    axes: int
    limit: Expr | None = None


class _KernelRules:
    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer], written: set[str]):
        self.kernel, self.buffers, self.written = kernel, buffers, written
        self.values: dict[str, _Record] = {}
        every = (*kernel.axes, *kernel.reduced)
        self.names = {axis.name for axis in every}
        # An axis of size 1 is a constant: nothing depends on it.
        self.bits = {axis: 0 if axis.size == 1 else 1 << i for i, axis in enumerate(every)}
        self.parallel = sum(self.bits[axis] for axis in kernel.axes)
        self.reduced = sum(self.bits[axis] for axis in kernel.reduced)
        self.empty = any(axis.size == 0 for axis in every)

    def fail(self, what: str, expected: str, op: Op | None = None) -> NoReturn:
        lines = [f"kernel {self.kernel.name}", *([f"  {print_op(op)}"] if op is not None else [])]
        raise VerifyError(f"{what}; expected {expected}", excerpt="\n".join(lines))

    def verify(self) -> None:
        if not _NAME.match(self.kernel.name):
            self.fail(f"{self.kernel.name!r} is not a name", "letters, digits, `_` and `.`")
        if len(self.names) != len(self.kernel.axes) + len(self.kernel.reduced):
            self.fail("two axes have one name", "a name for each axis")
        for axis in (*self.kernel.axes, *self.kernel.reduced):
            if any(not isinstance(leaf, Size) or leaf.name in self.names for leaf in leaves(axis.size)):
                self.fail(f"the size of axis {axis.name} is {axis.size}", "numbers and sizes not named like an axis")
        for op in self.kernel.body:
            if isinstance(op, Store):
                self.store(op)
            else:
                self.define(op)
        self.no_races()

    def define(self, op: Op) -> None:
        assert not isinstance(op, Store)
        if op.dtype not in DTYPES:
            self.fail(f"{op.dtype} is not a dtype", f"one of {', '.join(DTYPES)}", op)
        if op.name in self.values or op.name in self.names:
            self.fail(f"{op.name} is defined twice", "a new name for each value", op)
        if not _NAME.match(op.name):
            self.fail(f"{op.name!r} is not a name", "letters, digits, `_` and `.`", op)
        if isinstance(op, Apply):
            axes = self.apply(op)
        elif isinstance(op, Load):
            axes = self.load(op)
        elif isinstance(op, Const):
            axes = self.const(op)
        elif isinstance(op, Index):
            axes = self.index(op.expr, op)
            if DTYPES[op.dtype].kind not in INDEX_KINDS:
                self.fail(f"an index of type {op.dtype}", "an integer type, and a cast after it", op)
        elif isinstance(op, Check):
            axes = self.check(op)
        elif isinstance(op, Scan):
            axes = self.scan(op)
        else:
            axes = self.reduce(op)
        self.values[op.name] = _Record(op.dtype, axes, op.limit if isinstance(op, Check) else None)

    def value(self, name: str, op: Op) -> _Record:
        found = self.values.get(name)
        if found is None:
            self.fail(f"{name} is not defined", "a value defined on an earlier line", op)
        return found

    def index(self, index: Expr, op: Op) -> int:
        """The axes it depends on, through values too."""
        axes = 0
        for leaf in leaves(index):
            if isinstance(leaf, Axis):
                bit = self.bits.get(leaf)
                if bit is None:
                    self.fail(f"axis {leaf.name} < {leaf.size} is not one of the kernel's", self.axes_text(), op)
                axes |= bit
            elif isinstance(leaf, Value):
                record = self.value(leaf.name, op)
                if DTYPES[record.dtype].kind not in INDEX_KINDS:
                    self.fail(f"{leaf.name} is {record.dtype}", "an integer in an index", op)
                # The text gives a value the limit of its check, and no other.
                if record.limit is not leaf.limit:
                    self.fail(f"{leaf.name} is used with limit {leaf.limit}", f"limit {record.limit}, as checked", op)
                axes |= record.axes
            elif isinstance(leaf, Size) and (leaf.name in self.names or leaf.name in self.values):
                self.fail(f"size {leaf.name} is named like an axis or a value", "a name of its own", op)
        return axes

    def axes_text(self) -> str:
        listed = ", ".join(f"{axis.name} < {axis.size}" for axis in self.bits)
        return f"one of {listed}" if listed else "no axis, as the kernel has none"

    def element(self, op: Load | Store) -> int:
        """The axes of `buffer[index]`, which must be a declared buffer and inside it."""
        buffer = self.buffers.get(op.buffer)
        if buffer is None:
            self.fail(f"buffer {op.buffer} is not declared", "a declared buffer", op)
        axes = self.index(op.index, op)
        masked = isinstance(op, Load) and op.mask is not None
        if buffer.size.is_int and not masked and not self.empty:
            # An input is the caller's memory from its first element on, which a view may start before.
            beyond = outside(op.index, buffer.size.int, below=buffer.kind != "input")
            if beyond is not None:
                self.fail(f"{op.buffer}[{beyond}] is out of bounds", f"an index in [0, {buffer.size})", op)
        return axes

    def load(self, op: Load) -> int:
        axes = self.element(op)
        if op.dtype != self.buffers[op.buffer].dtype:
            self.fail(f"{op.buffer} holds {self.buffers[op.buffer].dtype}", "a load of that, and a cast after it", op)
        if op.buffer not in self.written:
            self.fail(f"{op.buffer} is read before it is written", "an earlier store or call that writes it", op)
        if op.mask is not None:
            mask = self.value(op.mask, op)
            if mask.dtype != "b1":
                self.fail(f"the mask {op.mask} is {mask.dtype}", "b1", op)
            axes |= mask.axes
        return axes

    def store(self, op: Store) -> None:
        value = self.value(op.value, op)
        axes = self.element(op)
        if value.dtype != self.buffers[op.buffer].dtype:
            self.fail(f"{op.value} is {value.dtype}", f"{self.buffers[op.buffer].dtype}, as {op.buffer} is", op)
        if op.update == "total":
            self.total(op, value)
        elif op.update is not None:
            self.update(op, value.dtype)
        elif value.axes & ~axes:
            lost = [axis.name for axis, bit in self.bits.items() if bit & value.axes & ~axes]
            self.fail(f"{op.value} depends on {', '.join(lost)}", "an index that does too, or a reduction", op)
        self.written.add(op.buffer)

    def const(self, op: Const) -> int:
        kind, bits = DTYPES[op.dtype].kind, DTYPES[op.dtype].bits
        is_bool = isinstance(op.value, bool)
        fits = is_bool if kind == "bool" else not is_bool and isinstance(op.value, (int, float))
        if fits and kind in INDEX_KINDS:
            low, high = (0, 2**bits) if kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
            fits = isinstance(op.value, int) and low <= op.value < high
        if not fits:
            self.fail(f"{op.value!r} is not of type {op.dtype}", f"a {kind} that fits {op.dtype}", op)
        return 0

    def apply(self, op: Apply) -> int:
        row = SCALARS.get(op.op)
        if row is None:
            self.fail(f"{op.op} is not a scalar operator", "a row of loop/scalar.py", op)
        if len(op.args) != row.arity:
            self.fail(f"{op.op} has {len(op.args)} arguments", f"{row.arity}", op)
        axes = 0
        dtypes = []
        for name in op.args:
            record = self.value(name, op)
            axes |= record.axes
            dtypes.append(record.dtype)
        if op.op == "where":
            if dtypes[0] != "b1":
                self.fail(f"the condition {op.args[0]} is {dtypes[0]}", "b1", op)
            del dtypes[0]
        dtype = dtypes[0]
        if any(other != dtype for other in dtypes):
            self.fail(f"{op.op} of {', '.join(dtypes)}", "arguments of one type", op)
        self.computes(op.op, dtype, row.kinds, op)
        result = op.dtype if row.result == GIVEN else "b1" if row.result == BOOL else dtype
        if op.dtype != result:
            self.fail(f"{op.op} of {dtype} is said to be {op.dtype}", result, op)
        return axes

    def computes(self, what: str, dtype: str, kinds: Iterable[str], op: Op) -> None:
        if DTYPES[dtype].kind not in kinds:
            self.fail(f"{what} of {dtype}", f"a type of kind {' or '.join(kinds)}", op)
        if compute_type(dtype) != dtype and what not in MOVES:
            self.fail(f"{what} computes in {dtype}", f"a cast to {compute_type(dtype)} before it", op)

    def check(self, op: Check) -> int:
        record = self.value(op.value, op)
        if any(not isinstance(leaf, Size) for leaf in leaves(op.limit)):
            self.fail(f"the limit {op.limit} varies", "numbers and declared sizes", op)
        if DTYPES[record.dtype].kind not in INDEX_KINDS or op.dtype != record.dtype:
            self.fail(f"a check of {record.dtype} gives {op.dtype}", "one integer type for both", op)
        if op.fault not in FAULTS:
            self.fail(f"{op.fault} is not a fault", f"one of {', '.join(FAULTS)}", op)
        return record.axes

    def reduce(self, op: Reduce) -> int:
        if op.kind not in REDUCTIONS:
            self.fail(f"{op.kind} is not a reduction", f"one of {', '.join(REDUCTIONS)}", op)
        if not self.kernel.reduced:
            self.fail("there is nothing to reduce over", "a kernel with a reduced axis", op)
        record = self.value(op.value, op)
        self.computes(op.kind, record.dtype, REDUCTION_KINDS[op.kind], op)
        result = "i64" if op.kind in POSITIONS else record.dtype
        if op.dtype != result:
            self.fail(f"{op.kind} of {record.dtype} is said to be {op.dtype}", result, op)
        return record.axes & ~self.reduced

    def scan(self, op: Scan) -> int:
        if op.kind not in SCANS:
            self.fail(f"{op.kind} is not a scan", f"one of {', '.join(SCANS)}", op)
        if len(self.kernel.reduced) != 1:
            self.fail(f"{len(self.kernel.reduced)} reduced axes", "one, whose steps are scanned", op)
        record = self.value(op.value, op)
        self.computes(op.kind, record.dtype, SCAN_KINDS[op.kind], op)
        if op.dtype != record.dtype:
            self.fail(f"{op.kind} of {record.dtype} is said to be {op.dtype}", record.dtype, op)
        return record.axes | self.reduced

    def update(self, op: Store, dtype: str) -> None:
        assert op.update is not None
        if op.update not in UPDATES:
            self.fail(f"{op.update} is not an update", f"one of {', '.join(UPDATES)}", op)
        if op.update != "put":
            self.computes(op.update, compute_type(dtype), SCAN_KINDS[op.update], op)  # memory may be of any type
        # Places taken from data may be equal: what keeps parallel steps apart must be in the index itself.
        if self.parallel & ~sum(self.bits[axis] for axis in op.index.axes()):
            self.fail(f"{op.buffer} is updated once in each of several iterations", "one update", op)
        if any(load.buffer == op.buffer for load in self.kernel.loads):
            self.fail(f"{op.buffer} is loaded where it is updated", "the update alone", op)

    def total(self, op: Store, value: _Record) -> None:
        self.computes("sum", value.dtype, ("float",), op)
        if parts_of(self.kernel) is None or self.reduced & ~self.index(op.index, op):
            self.fail(f"a total at [{op.index}]", "the remainder of the row's number, and a place for each column", op)
        if any(load.buffer == op.buffer for load in self.kernel.loads):
            self.fail(f"{op.buffer} is loaded where it is added up", "the total alone", op)

    def no_races(self) -> None:
        """A buffer that is both read and written is read where it is written, or where it never is.

        Iterations run in any order: an element read by one and written by another has no certain value.
        """
        stored: dict[str, dict[Expr, Store]] = {}
        for store in self.kernel.stores:
            stored.setdefault(store.buffer, {})[store.index] = store
        for load in self.kernel.loads:
            for index, store in stored.get(load.buffer, {}).items():
                if index is load.index:
                    if self.parallel & ~self.index(index, store):
                        self.fail(f"{store.buffer} is updated once in each of several iterations", "one update", store)
                elif not disjoint(index, load.index):
                    self.fail(f"{load.buffer} is also stored at [{index}]", "a load and a store of one element", load)


__all__ = ["verify"]
