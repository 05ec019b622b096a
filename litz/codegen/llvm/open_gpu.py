"""A model on a GPU for callers without Python: its kernels at the driver, its constants and temporaries on the device.

In: kernels, and constants in a file. Out: `GpuMemory`, by which `entry.py` and `front.py` write their functions, and
two more: `NAME_prepare`, which opening a model calls, and `NAME_kernels`, which loads the kernels, once in a process.

Each kernel has several images: machine code of some GPUs, and PTX. The driver takes the first that the GPU can run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from litz.codegen.gpu_code import GpuCode
from litz.codegen.llvm.entry import MORE_AT, PACKAGE, Constant, Entry, Memory
from litz.codegen.llvm.gpu_kernels import FUNCTIONS
from litz.codegen.llvm.shim import DEVICE_SLOT, STREAM_SLOT
from litz.codegen.llvm.writer import Module, Writer
from litz.schedule.place import ALIGNMENT

IMAGES = "litz_images"  # the symbol that they lie behind
_CONSTANTS_AT, _CONTEXT_AT, STREAM_AT = MORE_AT, MORE_AT + 8, MORE_AT + 16
_ACCESS = 16  # bytes that kernels read at a time
_GUARD = "%guard"  # torch's, while a stream of the caller's is its current one


class Held(NamedTuple):
    """A constant: where it lies in the file, and its bytes."""

    offset: int
    bytes: int


class GpuMemory(Memory):
    more_bytes = 24  # the constants, the context they are in, the caller's stream

    def __init__(self, name: str, constants: Sequence[Held], calls_torch: bool):
        self.name, self.calls_torch = name, calls_torch
        self.places: dict[int, int] = {}  # in the file -> behind one another on the device
        self.rows: list[int] = []
        self.bytes = 0
        for offset, size in dict.fromkeys(constants):
            self.places[offset] = self.bytes
            self.rows += [offset, size, self.bytes]
            self.bytes += -(-size // ALIGNMENT) * ALIGNMENT

    # -- memory -----------------------------------------------------------------------------------
    def allocate(self, w: Writer, size: str) -> str:
        cell = w.slot("ptr", 8)
        whole = w.let(f"and i64 {w.add(size, str(2 * ALIGNMENT - 1))}, {-ALIGNMENT}")
        status = _call(w, "cuMemAlloc_v2", f"ptr {cell}", f"i64 {whole}")
        made = w.let(f"load ptr, ptr {cell}")
        return w.let(f"select i1 {w.let(f'icmp eq i32 {status}, 0')}, ptr {made}, ptr null")

    def release(self, w: Writer, pointer: str) -> None:
        with w.when(w.let(f"icmp ne ptr {pointer}, null")):
            _call(w, "cuMemFree_v2", f"ptr {pointer}")

    def constant(self, w: Writer, constant: Constant) -> str:
        return w.address("i8", self._field(w, "%model", _CONSTANTS_AT), self.places[constant.offset])

    def why_misplaced(self, w: Writer, data: str) -> tuple[str, str]:
        rest = w.let(f"and i64 {w.let(f'ptrtoint ptr {data} to i64')}, {_ACCESS - 1}")
        return w.let(f"icmp ne i64 {rest}, 0"), f"do not lie at a multiple of {_ACCESS} bytes"

    # -- a model ----------------------------------------------------------------------------------
    def open(self, w: Writer, model: str, failed: Callable[[], None]) -> None:
        status = w.let(f"call i32 @{self.name}_prepare(ptr {model})")
        with w.when(w.let(f"icmp ne i32 {status}, 0")):
            self.close(w, model)
            failed()

    def close(self, w: Writer, model: str) -> None:
        super().close(w, model)
        self.release(w, self._field(w, model, _CONSTANTS_AT))

    def ready(self, entry: Entry) -> None:
        """The thread may be another than the one that has opened the model."""
        w, cell = entry.w, entry.w.slot("ptr", 8)
        _call(w, "cuCtxGetCurrent", f"ptr {cell}")
        found, own = w.let(f"load ptr, ptr {cell}"), self._field(w, "%model", _CONTEXT_AT)
        is_none, is_own = w.let(f"icmp eq ptr {found}, null"), w.let(f"icmp eq ptr {found}, {own}")
        either = w.let(f"or i1 {is_none}, {is_own}")
        entry.refuse_unless(either, "the current device, or its context, is not the one that the model was opened on")
        with w.when(is_none):
            _call(w, "cuCtxSetCurrent", f"ptr {own}")

    def begin(self, entry: Entry) -> None:
        w, cell = entry.w, entry.w.slot("i32", 8)
        _call(w, "cuCtxGetDevice", f"ptr {cell}")
        device, stream = w.let(f"load i32, ptr {cell}"), self._field(w, "%model", STREAM_AT)
        entry.tell(DEVICE_SLOT, w.let(f"inttoptr i32 {device} to ptr"))
        entry.tell(STREAM_SLOT, stream)
        if self.calls_torch:
            w.entry.append(f"  {_GUARD} = alloca ptr, align 8")
            given = (f"ptr {stream}", f"i32 {device}", f"ptr {_GUARD}")
            status = _call(w, "aoti_torch_create_cuda_stream_guard", *given)
            entry.refuse_unless(w.let(f"icmp eq i32 {status}, 0"), "torch does not take the stream")

    def end(self, entry: Entry) -> None:
        if self.calls_torch:
            guard = entry.w.let(f"load ptr, ptr {_GUARD}")
            _call(entry.w, "aoti_torch_delete_cuda_stream_guard", f"ptr {guard}")

    @staticmethod
    def _field(w: Writer, model: str, at: int) -> str:
        return w.let(f"load ptr, ptr {w.address('i8', model, at)}")

    # -- what opening takes -----------------------------------------------------------------------
    def write_prepare(self, module: Module) -> None:
        """`NAME_prepare(model)`: a context, the kernels, the constants. 0, or what the driver says of it."""
        w = Writer(module)
        context, device = w.slot("ptr", 8), w.slot("i32", 8)
        _done(w, _call(w, "cuInit", "i32 0"))
        _done(w, _call(w, "cuCtxGetCurrent", f"ptr {context}"))
        with w.when(w.let(f"icmp eq ptr {w.let(f'load ptr, ptr {context}')}, null")):
            # Nobody has chosen a device: the first, in the context that others of the process will have too.
            _done(w, _call(w, "cuDeviceGet", f"ptr {device}", "i32 0"))
            first = w.let(f"load i32, ptr {device}")
            _done(w, _call(w, "cuDevicePrimaryCtxRetain", f"ptr {context}", f"i32 {first}"))
            _done(w, _call(w, "cuCtxSetCurrent", f"ptr {w.let(f'load ptr, ptr {context}')}"))
        chosen = w.let(f"load ptr, ptr {context}")
        w.emit(f"store ptr {chosen}, ptr {w.address('i8', '%model', _CONTEXT_AT)}")
        _done(w, w.let(f"call i32 @{self.name}_kernels(ptr {chosen})"))
        made = self.allocate(w, str(self.bytes))
        _done(w, w.let(f"select i1 {w.let(f'icmp eq ptr {made}, null')}, i32 2, i32 0"))
        w.emit(f"store ptr {made}, ptr {w.address('i8', '%model', _CONSTANTS_AT)}")
        if self.rows:
            self._copy_constants(w, made)
        w.emit("ret i32 0")
        w.define(f"{self.name}_prepare", "ptr %model", "hidden i32")

    def _copy_constants(self, w: Writer, to: str) -> None:
        w.module.declare(f"@{PACKAGE} = external hidden constant i8")
        table = w.module.constant_array(tuple(self.rows))
        with w.loop("0", str(len(self.rows)), 3) as row:
            offset, size, place = (
                w.let(f"load i64, ptr {w.address('i64', table, w.add(row, str(i)))}") for i in range(3)
            )
            source, target = w.address("i8", f"@{PACKAGE}", offset), w.address("i8", to, place)
            _done(w, _call(w, "cuMemcpyHtoD_v2", f"ptr {target}", f"ptr {source}", f"i64 {size}"))

    def write_set_stream(self, module: Module) -> None:
        w = Writer(module)
        with w.when(w.let("icmp ne ptr %model, null")):
            w.emit(f"store ptr %stream, ptr {w.address('i8', '%model', STREAM_AT)}")
        w.emit("ret void")
        w.define(f"{self.name}_set_stream", "ptr %model, ptr %stream")


_TAKES = {
    "cuInit": "i32", "cuCtxGetCurrent": "ptr", "cuCtxSetCurrent": "ptr", "cuCtxGetDevice": "ptr",
    "cuDeviceGet": "ptr, i32", "cuDevicePrimaryCtxRetain": "ptr, i32", "cuMemAlloc_v2": "ptr, i64",
    "cuMemFree_v2": "ptr", "cuMemcpyHtoD_v2": "ptr, ptr, i64", "aoti_torch_create_cuda_stream_guard": "ptr, i32, ptr",
    "aoti_torch_delete_cuda_stream_guard": "ptr",
}  # fmt: skip


def _call(w: Writer, function: str, *arguments: str) -> str:
    """A function of the driver's or of torch's; what it says of its success, 0."""
    w.module.declare(f"declare i32 @{function}({_TAKES[function]})")
    return w.let(f"call i32 @{function}({', '.join(arguments)})")


def _done(w: Writer, status: str) -> None:
    with w.when(w.let(f"icmp ne i32 {status}, 0")):
        w.emit(f"ret i32 {status}")
        w.place(w.label("unreached"))


def images_of(kernels: Sequence[GpuCode]) -> tuple[bytes, list[int]]:
    """All images in one run of bytes; and rows for `NAME_kernels`: a kernel's number, its name's place, an image's."""
    data, rows = bytearray(), []

    def put(part: bytes) -> int:
        data.extend(b"\0" * (-len(data) % ALIGNMENT))
        data.extend(part)
        return len(data) - len(part)

    for number, kernel in enumerate(kernels):
        name = put(kernel.name + b"\0")
        newest_first = [cubin for _, cubin in sorted(kernel.cubins, reverse=True)]
        for image in (*newest_first, kernel.ptx + b"\0"):
            rows += [number, name, put(image)]
    return bytes(data), rows


def write_kernels(module: Module, name: str, count: int, rows: Sequence[int]) -> None:
    """`NAME_kernels(context)`: fills the table of kernels. Whoever comes while another thread does waits for it."""
    module.declare(f"@{FUNCTIONS} = hidden global [{count} x ptr] zeroinitializer")
    module.declare(f"@{name}_state = internal global i32 0")  # 1: some thread is at it, 2: done
    module.declare(f"@{name}_context = internal global ptr null")
    module.declare(f"@{IMAGES} = external hidden constant i8")
    module.declare("declare i32 @sched_yield()")
    module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    module.declare("declare i32 @cuModuleLoadData(ptr, ptr)")
    module.declare("declare i32 @cuModuleGetFunction(ptr, ptr, ptr)")
    table = module.constant_array(tuple(rows))
    module.functions.append(
        _KERNELS.format(
            name=name, count=count, rows=len(rows), table=table, functions=FUNCTIONS, images=IMAGES,
            bytes=8 * count, other_context=201, no_image=209,
        )
    )  # fmt: skip


_KERNELS = """define hidden i32 @{name}_kernels(ptr %context) nounwind {{
entry:
  %module = alloca ptr, align 8
  %loaded = alloca i64, align 8
  store i64 0, ptr %loaded
  br label %ask
ask:
  %seen = cmpxchg ptr @{name}_state, i32 0, i32 1 acq_rel acquire
  %state = extractvalue {{ i32, i1 }} %seen, 0
  switch i32 %state, label %wait [ i32 0, label %head i32 2, label %there ]
wait:
  %yielded = call i32 @sched_yield()
  br label %ask
there:
  %own = load ptr, ptr @{name}_context
  %same = icmp eq ptr %own, %context
  %told = select i1 %same, i32 0, i32 {other_context}
  ret i32 %told
head:
  %row = phi i64 [ 0, %ask ], [ %following, %next ]
  %more = icmp slt i64 %row, {rows}
  br i1 %more, label %look, label %done
look:
  %at.number = getelementptr i64, ptr {table}, i64 %row
  %number = load i64, ptr %at.number
  %at.name = getelementptr i64, ptr %at.number, i64 1
  %name.offset = load i64, ptr %at.name
  %at.image = getelementptr i64, ptr %at.number, i64 2
  %image.offset = load i64, ptr %at.image
  %cell = getelementptr ptr, ptr @{functions}, i64 %number
  %there.already = load ptr, ptr %cell
  %missing = icmp eq ptr %there.already, null
  br i1 %missing, label %load, label %next
load:
  %image = getelementptr i8, ptr @{images}, i64 %image.offset
  %status = call i32 @cuModuleLoadData(ptr %module, ptr %image)
  %fits = icmp eq i32 %status, 0
  br i1 %fits, label %find, label %next
find:
  %held = load ptr, ptr %module
  %kernel = getelementptr i8, ptr @{images}, i64 %name.offset
  %status.2 = call i32 @cuModuleGetFunction(ptr %cell, ptr %held, ptr %kernel)
  %found = icmp eq i32 %status.2, 0
  %one = zext i1 %found to i64
  %before = load i64, ptr %loaded
  %after = add i64 %before, %one
  store i64 %after, ptr %loaded
  br label %next
next:
  %following = add i64 %row, 3
  br label %head
done:
  %count = load i64, ptr %loaded
  %all = icmp eq i64 %count, {count}
  br i1 %all, label %good, label %bad
good:
  store ptr %context, ptr @{name}_context
  store atomic i32 2, ptr @{name}_state release, align 4
  ret i32 0
bad:
  call void @llvm.memset.p0.i64(ptr @{functions}, i8 0, i64 {bytes}, i1 false)
  store atomic i32 0, ptr @{name}_state release, align 4
  ret i32 {no_image}
}}"""


__all__ = ["IMAGES", "GpuMemory", "Held", "images_of", "write_kernels"]
