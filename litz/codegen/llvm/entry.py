"""The entry of a program for callers without Python: LLVM that does what `runtime/executable.py` does around code.

In: a `HostPlan` whose items are all native, the specs of its arguments, and where its constants lie. Out: a function
in a module, which checks arguments, finds memory and runs the native code. `front.py` has what C sees of it.

A model that was opened is a block of memory: the table of pointers, the sizes, the error cell, and the arena, which
grows where sizes do. It serves one call at a time; whoever calls from several threads opens several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from litz.codegen.llvm.host import size_text
from litz.codegen.llvm.question import ask, compute, is_computed
from litz.codegen.llvm.shim import SCALAR_TYPE
from litz.codegen.llvm.writer import Module, Writer
from litz.codegen.plan import IN_TIME, HostPlan, Native
from litz.errors import CompileError
from litz.loop.dtype import DTYPES
from litz.loop.expr import Expr, Size, expr
from litz.loop.fault import FAULTS
from litz.loop.formula import Formula
from litz.loop.ir import View, contiguous
from litz.schedule.place import ALIGNMENT, place

_TENSOR = "{ ptr, ptr, ptr, i32, i32 }"  # data, sizes, strides, rank, type: as in the header
PARAMETERS = "ptr %model, ptr %inputs, i64 %input_count, ptr %outputs, i64 %output_count"
PACKAGE = "litz_package"  # the symbol that constants lie behind
# A model: the arena (a pointer), its bytes (64 bits), the code of the last error, the level that was chosen (32 bits
# each); then what its device adds; then the sizes, then the pointers.
ERROR_AT, LEVEL_AT, MORE_AT = 16, 20, 24


@dataclass(frozen=True)
class Argument:
    """An input of the plan that the caller gives: how it must lie. Sizes that vary are expressions."""

    name: str
    input: int
    dtype: str
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class Constant:
    """An input of the plan that lies in the file, so many bytes behind its symbol."""

    input: int
    offset: int


class Memory:
    """Where tensors lie, and what is done about that: here, in the memory of the process."""

    more_bytes = 0  # of a model, for what else is kept of it

    def allocate(self, w: Writer, size: str) -> str:
        """So many bytes; null where there are not as many."""
        w.module.declare("declare ptr @aligned_alloc(i64, i64)")
        whole = w.let(f"and i64 {w.add(size, str(2 * ALIGNMENT - 1))}, {-ALIGNMENT}")  # of nothing, something to free
        return w.let(f"call ptr @aligned_alloc(i64 {ALIGNMENT}, i64 {whole})")

    def release(self, w: Writer, pointer: str) -> None:
        free(w, pointer)

    def constant(self, w: Writer, constant: Constant) -> str:
        w.module.declare(f"@{PACKAGE} = external hidden constant i8")
        return w.address("i8", f"@{PACKAGE}", constant.offset)

    def why_misplaced(self, w: Writer, data: str) -> tuple[str, str] | None:
        """Whether an argument lies where code cannot take it, and what is then said of it."""
        return None

    def open(self, w: Writer, model: str, failed: Callable[[], None]) -> None:
        """What it takes besides the model's own bytes."""

    def close(self, w: Writer, model: str) -> None:
        self.release(w, w.let(f"load ptr, ptr {model}"))

    def ready(self, entry: Entry) -> None:
        """Before memory is asked for."""

    def begin(self, entry: Entry) -> None:
        """Before native code runs: what it is told of the device."""

    def end(self, entry: Entry) -> None:
        """After it has run, or failed."""


class Messages:
    """What may be wrong with a call, by number. Those of native code come first."""

    def __init__(self) -> None:
        self.texts = ["no error", *(fault.message for fault in FAULTS.values()), "an operator of the library failed"]

    def add(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


def write_entry(
    module: Module, function: str, plan: HostPlan, arguments: Sequence[Argument], constants: Sequence[Constant],
    ranges: Sequence[tuple[str, int | None, int | None]], answers: Mapping[Formula, str], messages: Messages,
    memory: Memory,
) -> int:  # fmt: skip
    """The function, and the bytes that an open model takes. `ranges`: the least and the greatest value of sizes that
    vary; `answers`: what else must hold of them, and in words."""
    why = why_not(plan)
    if why is not None:
        raise CompileError(f"there is no way to call this program from C: {why}", stage="render")
    entry = Entry(module, plan, messages, memory)
    entry.check_count("%input_count", len(arguments), "inputs")
    entry.check_count("%output_count", len(plan.outputs), "outputs")
    for position, argument in enumerate(arguments):
        entry.take(position, argument)
    entry.compute_sizes()
    entry.check_ranges(ranges)
    entry.check_answers(answers)
    for position, argument in enumerate(arguments):
        entry.check_form(position, argument)
    memory.ready(entry)
    entry.place_constants(constants)
    entry.place_temporaries()
    for position, output in enumerate(plan.outputs):
        assert isinstance(output, View)
        entry.make_output(position, output)
    memory.begin(entry)
    for item in plan.items:
        assert isinstance(item.run, Native)
        entry.run(item.run.function)
    memory.end(entry)
    entry.w.emit("ret i32 0")
    entry.w.define(function, PARAMETERS, "hidden i32")
    return _slots_at(plan, memory) + 8 * max(1, len(plan.slots))


def why_not(plan: HostPlan) -> str | None:
    """What of a program only Python can do."""
    if plan.numbers:
        return "it takes a float that changes"
    for size in plan.sizes:
        if size.formula is not None and is_computed(size.formula):
            continue
        if size.formula is not None or size.dim is None:
            return f"the size {size.name} is no dimension of an input"
    return plan.why_not_native()


class Entry:
    """The body of `NAME_run`, step by step."""

    def __init__(self, module: Module, plan: HostPlan, messages: Messages, memory: Memory):
        self.w, self.plan, self.messages, self.memory = Writer(module), plan, messages, memory
        self.names = tuple(size.name for size in plan.sizes)
        self.w.lines.append(f"  %sizes = getelementptr i8, ptr %model, i64 {MORE_AT + memory.more_bytes}")
        self.w.lines.append(f"  %slots = getelementptr i8, ptr %model, i64 {_slots_at(plan, memory)}")
        self.w.lines.append(f"  %error = getelementptr i8, ptr %model, i64 {ERROR_AT}")
        self.w.emit("store i32 0, ptr %error")

    # -- what the caller gives --------------------------------------------------------------------
    def check_count(self, given: str, expected: int, what: str) -> None:
        self.refuse_unless(self.w.let(f"icmp eq i64 {given}, {expected}"), f"{expected} {what} were expected")

    def take(self, position: int, argument: Argument) -> None:
        """Type and rank first, so that what is read from here on is there."""
        data, sizes, _, rank, kind = self._fields("%inputs", position)
        has_type = self.w.let(f"icmp eq i32 {kind}, {SCALAR_TYPE[argument.dtype]}")
        self.refuse_unless(has_type, f"{argument.name} is not of type {argument.dtype}")
        has_rank = self.w.let(f"icmp eq i32 {rank}, {len(argument.sizes)}")
        self.refuse_unless(has_rank, f"{argument.name} does not have {len(argument.sizes)} dimensions")
        if argument.sizes:
            self.refuse_unless(self.w.let(f"icmp ne ptr {sizes}, null"), f"the sizes of {argument.name} are missing")
        name = self.plan.inputs[argument.input]
        if name is not None:
            self.w.emit(f"store ptr {data}, ptr {self._slot(name)}")
        for number, source in enumerate(self.plan.sizes):
            if source.input == argument.input:
                found = self.w.let(f"load i64, ptr {self.w.address('i64', sizes, source.dim or 0)}")
                self.w.emit(f"store i64 {found}, ptr {self.w.address('i64', '%sizes', number)}")

    def compute_sizes(self) -> None:
        """Those that are no dimension of an input, from those that are."""
        for number, source in enumerate(self.plan.sizes):
            if source.formula is not None:
                value = compute(self.w, source.formula, lambda name: self._number(expr(Size(name))))
                self.w.emit(f"store i64 {value}, ptr {self.w.address('i64', '%sizes', number)}")

    def check_ranges(self, ranges: Sequence[tuple[str, int | None, int | None]]) -> None:
        for name, least, most in ranges:
            if name not in self.names:
                continue
            value = self._number(expr(Size(name)))
            for bound, relation, word in ((least, "sge", "least"), (most, "sle", "most")):
                if bound is not None:
                    holds = self.w.let(f"icmp {relation} i64 {value}, {bound}")
                    self.refuse_unless(holds, f"the size {name} must be at {word} {bound}")

    def check_answers(self, answers: Mapping[Formula, str]) -> None:
        for answer, told in answers.items():
            holds = ask(self.w, answer, lambda name: self._number(expr(Size(name))))
            self.refuse_unless(holds, f"sizes do not keep {told}")

    def check_form(self, position: int, argument: Argument) -> None:
        data, sizes, strides, _, _ = self._fields("%inputs", position)
        elements = "1"
        for dim, size in enumerate(argument.sizes):
            found = self.w.let(f"load i64, ptr {self.w.address('i64', sizes, dim)}")
            same = self.w.let(f"icmp eq i64 {found}, {self._number(size)}")
            self.refuse_unless(same, f"{argument.name}, dimension {dim}: its size is not {size}")
            elements = self.w.mul(elements, found)
        is_there = self.w.let(f"icmp ne ptr {data}, null")
        is_there = self.w.let(f"or i1 {is_there}, {self.w.let(f'icmp eq i64 {elements}, 0')}")
        self.refuse_unless(is_there, f"the data of {argument.name} are missing")
        misplaced = self.memory.why_misplaced(self.w, data)
        if misplaced is not None:
            is_misplaced, why = misplaced
            self.refuse_unless(self.w.let(f"xor i1 {is_misplaced}, true"), f"the data of {argument.name} {why}")
        in_rows = argument.strides == contiguous(argument.sizes)
        given = self.w.let(f"icmp ne ptr {strides}, null")
        if not in_rows:
            self.refuse_unless(given, f"{argument.name} does not lie in rows: its strides must be given")
        with self.w.when(given):
            for dim, (size, stride) in enumerate(zip(argument.sizes, argument.strides, strict=True)):
                found = self.w.let(f"load i64, ptr {self.w.address('i64', strides, dim)}")
                same = self.w.let(f"icmp eq i64 {found}, {self._number(stride)}")
                alone = self.w.let(f"icmp sle i64 {self._number(size)}, 1")
                either = self.w.let(f"or i1 {same}, {alone}")
                self.refuse_unless(either, f"{argument.name}, dimension {dim}: its stride is not {stride}")

    # -- memory -----------------------------------------------------------------------------------
    def place_constants(self, constants: Sequence[Constant]) -> None:
        for constant in constants:
            name = self.plan.inputs[constant.input]
            if name is not None:
                data = self.memory.constant(self.w, constant)
                self.w.emit(f"store ptr {data}, ptr {self._slot(name)}")

    def place_temporaries(self) -> None:
        """In the arena: where sizes vary one behind the other, since their places are planned for fixed sizes only."""
        plan, w = self.plan, self.w
        offsets: dict[str, str] = {}
        if plan.sizes:
            total = begins = "0"
            for span in plan.shared:
                offsets.update(dict.fromkeys(span.members, total))
                total = w.add(total, self._bytes(span.members))
            begins, total = total, w.add(total, str(plan.workspace.bytes))
        else:
            placement = place(plan.buffers, plan.shared, workspace=plan.workspace)
            offsets = {name: str(offset) for name, offset in placement.offsets.items()}
            total, begins = str(placement.size), str(placement.workspace)
        arena = self._arena(total)
        for name, offset in offsets.items():
            w.emit(f"store ptr {w.address('i8', arena, offset)}, ptr {self._slot(name)}")
        w.lines.append(f"  %workspace = getelementptr i8, ptr {arena}, i64 {begins}")

    def _arena(self, size: str) -> str:
        w = self.w
        held = w.let(f"load i64, ptr {w.address('i8', '%model', 8)}")
        with w.when(w.let(f"icmp slt i64 {held}, {size}")):
            old = w.let("load ptr, ptr %model")
            self.memory.release(w, old)
            w.emit("store ptr null, ptr %model")
            w.emit(f"store i64 0, ptr {w.address('i8', '%model', 8)}")
            made = self.memory.allocate(w, size)
            self.refuse_unless(w.let(f"icmp ne ptr {made}, null"), "there is not enough memory for temporaries")
            w.emit(f"store ptr {made}, ptr %model")
            w.emit(f"store i64 {size}, ptr {w.address('i8', '%model', 8)}")
        return w.let("load ptr, ptr %model")

    def _bytes(self, members: Sequence[str]) -> str:
        found = "0"
        for name in members:
            buffer = self.plan.buffers[name]
            size = self.w.mul(self._number(buffer.size), str(DTYPES[buffer.dtype].bytes))
            found = size if found == "0" else self.w.intrinsic("llvm.smax", "i64", found, size)
        return self.w.let(f"and i64 {self.w.add(found, str(ALIGNMENT - 1))}, {-ALIGNMENT}")

    def make_output(self, position: int, view: View) -> None:
        """In the caller's memory, or in memory that the caller is to free; its form is told where there is room."""
        w = self.w
        data, sizes, strides, _, _ = self._fields("%outputs", position)
        at = w.address(_TENSOR, "%outputs", position)
        w.emit(f"store i32 {len(view.sizes)}, ptr {w.let(f'getelementptr {_TENSOR}, ptr {at}, i64 0, i32 3')}")
        w.emit(f"store i32 {SCALAR_TYPE[view.dtype]}, ptr {w.let(f'getelementptr {_TENSOR}, ptr {at}, i64 0, i32 4')}")
        for pointer, numbers in ((sizes, view.sizes), (strides, view.strides)):
            with w.when(w.let(f"icmp ne ptr {pointer}, null")):
                for dim, number in enumerate(numbers):
                    w.emit(f"store i64 {self._number(number)}, ptr {w.address('i64', pointer, dim)}")
        with w.when(w.let(f"icmp eq ptr {data}, null")):
            made = self.memory.allocate(w, self._bytes([view.buffer]))
            self.refuse_unless(w.let(f"icmp ne ptr {made}, null"), f"there is not enough memory for output {position}")
            w.emit(f"store ptr {made}, ptr {at}")
        w.emit(f"store ptr {w.let(f'load ptr, ptr {at}')}, ptr {self._slot(view.buffer)}")

    # -- running ----------------------------------------------------------------------------------
    def run(self, function: str) -> None:
        w = self.w
        w.module.declare(f"declare void @{function}(ptr, ptr, ptr, ptr)")
        w.emit(f"call void @{function}(ptr %slots, ptr %workspace, ptr %sizes, ptr %error)")
        code = w.let("load i32, ptr %error")
        with w.when(w.let(f"icmp ne i32 {code}, 0")):
            self.memory.end(self)
            w.emit(f"ret i32 {w.let(f'and i32 {code}, {IN_TIME - 1}')}")
            w.place(w.label("unreached"))

    def tell(self, slot: str, pointer: str) -> None:
        """What native code finds in a slot that is no buffer's."""
        self.w.emit(f"store ptr {pointer}, ptr {self._slot(slot)}")

    def refuse_unless(self, condition: str, message: str) -> None:
        code = self.messages.add(message)
        with self.w.when(self.w.let(f"xor i1 {condition}, true")):
            self.w.emit(f"store i32 {code}, ptr %error")
            self.w.emit(f"ret i32 {code}")
            self.w.place(self.w.label("unreached"))

    def _fields(self, table: str, position: int) -> list[str]:
        """Of the tensor at that position: data, sizes, strides, rank, type."""
        at = self.w.address(_TENSOR, table, position)
        kinds = ("ptr", "ptr", "ptr", "i32", "i32")
        places = [self.w.let(f"getelementptr {_TENSOR}, ptr {at}, i64 0, i32 {i}", "p") for i in range(len(kinds))]
        return [self.w.let(f"load {kind}, ptr {place}") for kind, place in zip(kinds, places, strict=True)]

    def _slot(self, buffer: str) -> str:
        return self.w.address("ptr", "%slots", self.plan.slots[buffer])

    def _number(self, e: Expr) -> str:
        return size_text(self.w, e, self.names)


def _slots_at(plan: HostPlan, memory: Memory) -> int:
    return MORE_AT + memory.more_bytes + 8 * max(1, len(plan.sizes))


def free(w: Writer, pointer: str) -> None:
    w.module.declare("declare void @free(ptr)")
    w.emit(f"call void @free(ptr {pointer})")


__all__ = [
    "LEVEL_AT", "MORE_AT", "PACKAGE", "PARAMETERS", "Argument", "Constant", "Entry", "Memory", "Messages", "free",
    "why_not", "write_entry",
]  # fmt: skip
