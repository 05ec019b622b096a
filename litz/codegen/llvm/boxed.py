"""A program as a kernel of torch's dispatcher: LLVM that takes an operator's arguments as the C interface boxes them.

In: a `HostPlan` of fixed sizes whose items are all native, and the arguments it is for. Out: `i32 @attempt(ptr)`, of a
stack, which returns 0 when it has put the results in place of the arguments, 1 when the arguments are not its own, and
2 when native code failed; in the last two cases the arguments are as they were. `write_door` has what the dispatcher
calls: it asks one attempt after the other, and last of all Python.

On the stack each argument is 64 bits: a number, a handle that the kernel owns, and for what may be absent a pointer to
such 64 bits, or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from litz.codegen.llvm.record import PROFILER_SLOT
from litz.codegen.llvm.shim import SCALAR_TYPE
from litz.codegen.llvm.writer import Module, Writer
from litz.codegen.plan import HostPlan, Native
from litz.loop.ir import View
from litz.schedule.place import ALIGNMENT, place

ATTEMPT, DOOR, CONSTANTS, TABLE, MISSED = "attempt", "door", "constants", "table", "missed"
MOST = 64  # attempts that a door has room for
_ON_STACK = 1 << 14  # bytes of temporaries
_AT_ONCE = "nonlazybind"  # what lies outside is called by its address in a table, and not by a jump to a jump


@dataclass(frozen=True)
class TensorForm:
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """An argument: what its type is, whether it may be absent, and which one this program is for. `value` is None for
    what is absent; a dtype is its number."""

    kind: str  # one of KINDS
    optional: bool
    value: Union[TensorForm, bool, int, float, str, tuple[int, ...], None]


KINDS = ("tensor", "int", "bool", "float", "str", "ints", "dtype")


def why_not_boxed(plan: HostPlan) -> str | None:
    """What of a program the dispatcher cannot be given."""
    if plan.sizes or plan.numbers:
        return "its sizes vary"
    if plan.apart:
        return "it takes memory of its own for a large temporary"
    return plan.why_not_native()


def write_attempt(module: Module, plan: HostPlan, given: Sequence[Given], constants: int) -> None:
    attempt = _Attempt(module, plan)
    boxes = [attempt.unbox(position, argument) for position, argument in enumerate(given)]
    for argument, box in zip(given, boxes, strict=True):
        attempt.check(argument, box)
    data = [attempt.data(box) for argument, box in zip(given, boxes, strict=True) if _is_tensor(argument)]
    attempt.take_inputs(data, constants)
    attempt.make_outputs()
    attempt.run()
    for position, (argument, box) in enumerate(zip(given, boxes, strict=True)):
        attempt.let_go(position, argument, box)
    attempt.finish()


def _is_tensor(argument: Given) -> bool:
    return isinstance(argument.value, TensorForm)


class _Attempt:
    def __init__(self, module: Module, plan: HostPlan):
        self.w, self.plan = Writer(module), plan
        self.cell = self.w.slot("i64", 8)  # what shim functions answer by
        self.slots = self.w.slot(f"[{max(1, len(plan.slots))} x ptr]", 8)
        self.error = self.w.slot("i32", 4)
        self.outputs: list[str] = []

    # -- what is given ----------------------------------------------------------------------------
    def unbox(self, position: int, argument: Given) -> str:
        """The 64 bits of the argument, where it is there as expected."""
        box = self.w.let(f"load i64, ptr {self.w.address('i64', '%stack', position)}")
        if not argument.optional:
            return box
        absent = self.w.let(f"icmp eq i64 {box}, 0")
        if argument.value is None:
            self._return_unless(absent, 1)
            return box
        self._return_unless(self.w.let(f"xor i1 {absent}, true"), 1)
        return self.w.let(f"load i64, ptr {self._pointer(box)}")

    def check(self, argument: Given, box: str) -> None:
        value, w = argument.value, self.w
        if value is None:
            return
        if isinstance(value, TensorForm):
            self._check_tensor(value, box)
        elif isinstance(value, str):
            self._check_text(value, box)
        elif isinstance(value, tuple):
            self._check_list(value, box)
        elif isinstance(value, float):
            (bits,) = struct.unpack("<q", struct.pack("<d", value))
            self._return_unless(w.let(f"icmp eq i64 {box}, {bits}"), 1)
        else:
            kind = {"bool": "i8", "dtype": "i32"}.get(argument.kind, "i64")
            found = box if kind == "i64" else w.let(f"trunc i64 {box} to {kind}")
            self._return_unless(w.let(f"icmp eq {kind} {found}, {int(value)}"), 1)

    def _check_tensor(self, form: TensorForm, box: str) -> None:
        # The device needs no look: with a tensor of another one the dispatcher would not be here.
        w, handle = self.w, self._pointer(box)
        for function, kind, expected in (
            ("get_dtype", "i32", SCALAR_TYPE[form.dtype]),
            ("get_dim", "i64", len(form.sizes)),
        ):
            found = self._ask(f"aoti_torch_{function}", handle, kind)
            self._return_unless(w.let(f"icmp eq {kind} {found}, {expected}"), 1)
        for function, numbers in (("get_sizes", form.sizes), ("get_strides", form.strides)):
            if not numbers:
                continue
            table = self._ask(f"aoti_torch_{function}", handle, "ptr")
            for dim, number in enumerate(numbers):
                found = w.let(f"load i64, ptr {w.address('i64', table, dim)}")
                if function == "get_sizes" or form.sizes[dim] != 1:
                    self._return_unless(w.let(f"icmp eq i64 {found}, {number}"), 1)

    def _check_text(self, text: str, box: str) -> None:
        w, handle, data = self.w, self._pointer(box), text.encode()
        length = self._ask("torch_string_length", handle, "i64")
        self._return_unless(w.let(f"icmp eq i64 {length}, {len(data)}"), 1)
        characters = self._ask("torch_string_c_str", handle, "ptr")
        w.module.declare(f"declare i32 @memcmp(ptr, ptr, i64) {_AT_ONCE}")
        expected = w.module.constant_string(text)
        order = w.let(f"call i32 @memcmp(ptr {characters}, ptr {expected}, i64 {len(data)})")
        self._return_unless(w.let(f"icmp eq i32 {order}, 0"), 1)

    def _check_list(self, values: Sequence[int], box: str) -> None:
        w, handle = self.w, self._pointer(box)
        length = self._ask("torch_list_size", handle, "i64")
        self._return_unless(w.let(f"icmp eq i64 {length}, {len(values)}"), 1)
        w.module.declare(f"declare i32 @torch_list_get_item(ptr, i64, ptr) {_AT_ONCE}")
        for position, value in enumerate(values):
            w.emit(f"call i32 @torch_list_get_item(ptr {handle}, i64 {position}, ptr {self.cell})")
            found = w.let(f"load i64, ptr {self.cell}")
            self._return_unless(w.let(f"icmp eq i64 {found}, {value}"), 1)

    def data(self, box: str) -> str:
        return self._ask("aoti_torch_get_data_ptr", self._pointer(box), "ptr")

    # -- memory -----------------------------------------------------------------------------------
    def take_inputs(self, data: Sequence[str], constants: int) -> None:
        w = self.w
        given = [*data]
        if constants:
            w.module.declare(f"@{CONSTANTS} = dso_local global [{constants} x ptr] zeroinitializer")
            given += [w.let(f"load ptr, ptr {w.address('ptr', f'@{CONSTANTS}', i)}") for i in range(constants)]
        for name, pointer in zip(self.plan.inputs, given, strict=True):
            if name is not None:
                w.emit(f"store ptr {pointer}, ptr {self._slot(name)}")

    def make_outputs(self) -> None:
        w = self.w
        w.module.declare(f"declare i32 @aoti_torch_empty_strided(i64, ptr, ptr, i32, i32, i32, ptr) {_AT_ONCE}")
        for view in self.plan.outputs:
            assert isinstance(view, View)
            sizes = w.module.constant_array(tuple(s.int for s in view.sizes) or (0,))
            strides = w.module.constant_array(tuple(s.int for s in view.strides) or (0,))
            rank, dtype = len(view.sizes), SCALAR_TYPE[view.dtype]
            code = w.let(
                f"call i32 @aoti_torch_empty_strided(i64 {rank}, ptr {sizes}, ptr {strides}, i32 {dtype}, i32 0, i32 0,"
                f" ptr {self.cell})"
            )
            self._return_unless(w.let(f"icmp eq i32 {code}, 0"), 2)
            handle = w.let(f"load ptr, ptr {self.cell}")
            self.outputs.append(handle)
            w.emit(f"store ptr {self.data(w.let(f'ptrtoint ptr {handle} to i64'))}, ptr {self._slot(view.buffer)}")

    def run(self) -> None:
        w, plan = self.w, self.plan
        placement = place(plan.buffers, plan.shared, workspace=plan.workspace)
        size = placement.size
        arena = w.slot(f"[{max(1, size)} x i8]") if size <= _ON_STACK else self._allocated(size)
        for name, offset in placement.offsets.items():
            w.emit(f"store ptr {w.address('i8', arena, offset)}, ptr {self._slot(name)}")
        workspace = w.address("i8", arena, placement.workspace)
        w.emit(f"store i32 0, ptr {self.error}")
        w.emit(f"store ptr null, ptr {self._slot(PROFILER_SLOT)}")  # torch tells its profiler of operators itself
        for item in plan.items:
            assert isinstance(item.run, Native)
            w.module.declare(f"declare void @{item.run.function}(ptr, ptr, ptr, ptr)")
            w.emit(
                f"call void @{item.run.function}(ptr {self.slots}, ptr {workspace}, ptr {self.cell}, ptr {self.error})"
            )
        if size > _ON_STACK:
            w.module.declare(f"declare void @free(ptr) {_AT_ONCE}")
            w.emit(f"call void @free(ptr {arena})")
        failed = w.let(f"icmp ne i32 {w.let(f'load i32, ptr {self.error}')}, 0")
        with w.when(failed):
            for handle in self.outputs:
                self._delete("aoti_torch_delete_tensor_object", handle)
            w.emit("ret i32 2")
            w.place(w.label("unreached"))

    def _allocated(self, size: int) -> str:
        self.w.module.declare(f"declare ptr @aligned_alloc(i64, i64) {_AT_ONCE}")
        whole = size + -size % ALIGNMENT
        made = self.w.let(f"call ptr @aligned_alloc(i64 {ALIGNMENT}, i64 {whole})")
        self._return_unless(self.w.let(f"icmp ne ptr {made}, null"), 2)
        return made

    # -- the end ----------------------------------------------------------------------------------
    def let_go(self, position: int, argument: Given, box: str) -> None:
        """The kernel owns what it was given."""
        delete = {
            "tensor": "aoti_torch_delete_tensor_object", "str": "torch_delete_string", "ints": "torch_delete_list",
        }.get(argument.kind)  # fmt: skip
        if argument.value is None:
            return
        if delete is not None:
            self._delete(delete, self._pointer(box))
        if argument.optional:
            outer = self.w.let(f"load i64, ptr {self.w.address('i64', '%stack', position)}")
            self.w.module.declare(f"declare void @_ZdlPv(ptr) {_AT_ONCE}")  # what C++ calls `delete`
            self.w.emit(f"call void @_ZdlPv(ptr {self._pointer(outer)})")

    def finish(self) -> None:
        for position, handle in enumerate(self.outputs):
            self.w.emit(f"store ptr {handle}, ptr {self.w.address('i64', '%stack', position)}")
        self.w.emit("ret i32 0")
        self.w.define(ATTEMPT, "ptr %stack", "i32")

    # -- small things -----------------------------------------------------------------------------
    def _ask(self, function: str, handle: str, kind: str) -> str:
        self.w.module.declare(f"declare i32 @{function}(ptr, ptr) {_AT_ONCE}")
        if kind == "i32":  # a function of the table of types gives less than a cell
            self.w.emit(f"store i64 0, ptr {self.cell}")
        self.w.emit(f"call i32 @{function}(ptr {handle}, ptr {self.cell})")
        return self.w.let(f"load {kind}, ptr {self.cell}")

    def _delete(self, function: str, handle: str) -> None:
        self.w.module.declare(f"declare i32 @{function}(ptr) {_AT_ONCE}")
        self.w.emit(f"call i32 @{function}(ptr {handle})")

    def _pointer(self, box: str) -> str:
        return self.w.let(f"inttoptr i64 {box} to ptr")

    def _slot(self, buffer: str) -> str:
        return self.w.address("ptr", self.slots, self.plan.slots[buffer])

    def _return_unless(self, condition: str, code: int) -> None:
        with self.w.when(self.w.let(f"xor i1 {condition}, true")):
            if code == 2:
                for handle in self.outputs:
                    self._delete("aoti_torch_delete_tensor_object", handle)
            self.w.emit(f"ret i32 {code}")
            self.w.place(self.w.label("unreached"))


def write_door(module: Module) -> None:
    """`void @door(ptr %stack, i64 %arguments, i64 %results)`, which is registered. The table of attempts, which a null
    ends, and what is asked last, `i64 @missed(ptr, i64, i64)`, are filled in by the process; that one returns the text
    of an error, which is thrown, or nothing."""
    w = Writer(module)
    module.declare(f"@{TABLE} = dso_local global [{MOST + 1} x ptr] zeroinitializer")
    module.declare(f"@{MISSED} = dso_local global ptr null")
    module.declare("declare void @aoti_torch_check(i1, ptr, ptr, i32, ptr)")
    # A loop and not one after the other: so little code is soon fetched again after all that a program does in between.
    place = w.slot("ptr", 8)
    w.emit(f"store ptr @{TABLE}, ptr {place}")
    w.emit("br label %next")
    w.place("next")
    entry = w.let(f"load ptr, ptr {place}")
    found = w.let(f"load ptr, ptr {entry}")
    with w.when(w.let(f"icmp eq ptr {found}, null")):
        w.emit("br label %ask")
        w.place(w.label("unreached"))
    code = w.let(f"call i32 {found}(ptr %stack)")
    with w.when(w.let(f"icmp eq i32 {code}, 0")):
        w.emit("ret void")
        w.place(w.label("unreached"))
    w.emit(f"store ptr {w.address('ptr', entry, 1)}, ptr {place}")
    w.emit("br label %next")
    w.place("ask")
    missed = w.let(f"load ptr, ptr @{MISSED}")
    text = w.let(f"call ptr {missed}(ptr %stack, i64 %arguments, i64 %results)")
    with w.when(w.let(f"icmp ne ptr {text}, null")):
        name = module.constant_string("litz.eager")
        w.emit(f"call void @aoti_torch_check(i1 false, ptr {name}, ptr {name}, i32 0, ptr {text})")
    w.emit("ret void")
    w.define(DOOR, "ptr %stack, i64 %arguments, i64 %results", attributes="uwtable")


__all__ = [
    "ATTEMPT", "CONSTANTS", "DOOR", "KINDS", "MISSED", "MOST", "TABLE", "Given", "TensorForm", "why_not_boxed",
    "write_attempt", "write_door",
]  # fmt: skip
