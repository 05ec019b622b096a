"""Calls of library operators from native code, through PyTorch's stable C shim.

In: a `Call` whose operator the shim exports. Out: LLVM that makes tensor handles for its windows, calls,
copies what came back if it is not laid out as traced, and puts the result's address in its slot.

The shim's parameters follow from the operator's schema by fixed rules, so a row here is a name only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.writer import Module, Writer, literal
from litz.loop.dtype import DTYPES
from litz.loop.expr import ONE, ZERO, Expr, expr
from litz.loop.fault import LAST_FAULT
from litz.loop.ir import Call, Number, Program, View
from litz.loop.operator import operator_named
from litz.schedule.lifetimes import OUT_VARIANTS

_OF_ALL = {
    "aten::mm": "mm_out", "aten::addmm": "addmm_out", "aten::bmm": "bmm_out", "aten::baddbmm": "baddbmm_out",
    "aten::convolution": "convolution",
}  # fmt: skip
# The backward of the efficient one reads its random state off the host, where tensors of a device are not.
_OF_GPUS = ("_addmm_activation", "convolution_backward", *(f"_scaled_dot_product_{kind}" for kind in (
    "flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_backward", "cudnn_attention_backward",
)))  # fmt: skip


@dataclass(frozen=True)
class Device:
    """Where operators find their tensors: the shim's number of the kind, and what it calls its functions."""

    kind: int
    shims: Mapping[str, str]  # operator -> function
    slots: tuple[str, ...] = ()  # in which the caller says more of it
    hands_over: bool = False  # the caller takes what an operator called from native code has allocated


DEVICE_SLOT, STREAM_SLOT = "the device", "the stream"
DEVICES = {
    "cpu": Device(0, {name: f"aoti_torch_cpu_{function}" for name, function in _OF_ALL.items()} | {
        "aten::cumsum": "aoti_torch_cpu_cumsum",
        "aten::_scaled_dot_product_flash_attention_for_cpu":
            "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu",
    }),
    "cuda": Device(1, {name: f"aoti_torch_cuda_{function}" for name, function in _OF_ALL.items()} | {
        f"aten::{function}": f"aoti_torch_cuda_{function}" for function in _OF_GPUS
    }, (DEVICE_SLOT, STREAM_SLOT), hands_over=True),
}  # fmt: skip

# What host functions leave in the error cell.
OPERATOR_FAILED = LAST_FAULT + 1

SCALAR_TYPE = {"u8": 0, "i8": 1, "i16": 2, "i32": 3, "i64": 4, "f16": 5, "f32": 6, "f64": 7, "b1": 11, "bf16": 15,
               "torch.uint64": 29}  # fmt: skip


def native_calls(program: Program, device: Device) -> frozenset[str]:
    """Names of the calls made from native code: the shim has them, and no Python code needs their results, or it can
    be handed them."""
    native = {c.name: c for c in program.calls if c.target in device.shims and _describable(c)}
    if device.hands_over:
        return frozenset(native)
    makers: dict[str, list[Call]] = {}
    for call in native.values():
        if call.target not in OUT_VARIANTS:
            for name in call.writes:
                makers.setdefault(name, []).append(call)
    from_python = [v.buffer for v in program.outputs if isinstance(v, View)]
    from_python += [name for c in program.calls if c.name not in native for name in c.reads]
    while from_python:
        for call in makers.pop(from_python.pop(), ()):
            if native.pop(call.name, None) is not None:
                from_python += call.reads
    return frozenset(native)


def handed_over(program: Program, native: frozenset[str], device: Device) -> frozenset[str]:
    """Buffers that operators called from native code allocate, and that Python code needs."""
    if not device.hands_over:
        return frozenset()
    needed = {v.buffer for v in program.outputs if isinstance(v, View)}
    needed |= {name for call in program.calls if call.name not in native for name in call.reads}
    made = {name for c in program.calls if c.name in native and c.target not in OUT_VARIANTS for name in c.writes}
    return frozenset(made & needed)


def _describable(call: Call) -> bool:
    def known(arg: Any) -> bool:
        if isinstance(arg, View):
            return arg.dtype in SCALAR_TYPE and all(s is not ZERO for s in arg.sizes)
        if isinstance(arg, (tuple, list)):
            return all(isinstance(a, (int, Expr)) for a in arg)
        return arg is None or isinstance(arg, (bool, int, float, Expr, Number, torch.dtype))

    if call.target == "aten::convolution_backward" and _in_schema_order(operator_named(call.target)._schema, call)[3]:
        return False  # the sizes of a bias: torch 2.11's shim has forgotten them when the operator looks at them
    return all(known(a) for a in (*call.args, *(v for _, v in call.kwargs))) and all(
        r is None or known(r) for r in call.results
    )


def write_call(
    w: Writer, call: Call, slots: dict[str, int], module: Module, sizes: tuple[str, ...], device: Device
) -> list[str]:
    """Emit the call; the names of the buffers whose handles the caller must release after their last use."""
    schema = operator_named(call.target)._schema
    emitter = _CallWriter(w, call, slots, module, sizes, device)
    values = _in_schema_order(schema, call)
    parameters: list[str] = []
    if call.target in OUT_VARIANTS:
        (result,) = call.results
        assert result is not None
        parameters.append(f"ptr {emitter.tensor(result)}")
    for spec, value in zip(schema.arguments, values, strict=True):
        parameters += emitter.argument(str(spec.type), value)
    returned: list[tuple[View | None, str]] = []
    if call.target not in OUT_VARIANTS:
        for spec, result in zip(schema.returns, call.results, strict=True):
            cell = w.slot("ptr", 8)
            parameters.append(f"ptr {cell}")
            if str(spec.type) == "Tensor":  # of a number, the cell is all there is
                returned.append((result, cell))
    function = device.shims[call.target]
    types = ", ".join(p.rsplit(" ", 1)[0] for p in parameters)
    module.declare(f"declare i32 @{function}({types})")
    status = w.let(f"call i32 @{function}({', '.join(parameters)})")
    emitter.stop_if(w.let(f"icmp ne i32 {status}, 0"), OPERATOR_FAILED)
    emitter.release_arguments()
    owned = []
    for result, cell in returned:
        handle = w.let(f"load ptr, ptr {cell}")
        if result is None:
            release(w, module, handle)
            continue
        emitter.take(result, handle)
        owned.append(result.buffer)
    return owned


def release(w: Writer, module: Module, handle: str) -> None:
    module.declare("declare i32 @aoti_torch_delete_tensor_object(ptr)")
    w.emit(f"call i32 @aoti_torch_delete_tensor_object(ptr {handle})")


def stop_if(w: Writer, condition: str, code: int | None = None) -> None:
    """Return from the host function, with that error unless there is one already."""
    with w.when(condition):
        if code is not None:
            w.emit(f"store i32 {code}, ptr %error")
        w.emit("ret void")
        # What follows is never reached, but the block must be closed as any other.
        w.place(w.label("unreached"))


def handle_slot(buffer: str) -> str:
    """The slot that keeps the handle of a buffer an operator allocated."""
    return f"handle of {buffer}"


def _in_schema_order(schema: Any, call: Call) -> list[Any]:
    given = dict(call.kwargs)
    values = []
    for position, spec in enumerate(schema.arguments):
        if position < len(call.args):
            values.append(call.args[position])
        elif spec.name in given:
            values.append(given[spec.name])
        else:
            values.append(spec.default_value)
    return values


class _CallWriter:
    def __init__(
        self, w: Writer, call: Call, slots: dict[str, int], module: Module, sizes: tuple[str, ...], device: Device
    ):
        self.w, self.call, self.slots, self.module, self.device = w, call, slots, module, device
        self.handles: list[str] = []
        self.frame = Scope(w, {}, {}, 1, None, {}, sizes=w.load_sizes(sizes))

    def array(self, values: Sequence[Expr | int]) -> str:
        """Numbers in memory: a constant where all are known, else filled in on the stack."""
        known = [expr(v) for v in values]
        if all(v.is_int for v in known):
            return self.module.constant_array(tuple(v.int for v in known))
        cells = self.w.slot(f"[{len(known)} x i64]", 8)
        for position, value in enumerate(known):
            self.w.emit(f"store i64 {self.frame.size(value)}, ptr {self.w.address('i64', cells, position)}")
        return cells

    def _flags(self, values: Sequence[bool]) -> str:
        items = ", ".join(f"i32 {int(value)}" for value in values)
        return self.module.constant(f"[{len(values)} x i32] [{items}]")

    def stop_if(self, condition: str, code: int) -> None:
        stop_if(self.w, condition, code)

    def no_tensor(self) -> str:
        """A handle on none, which an operator takes that was traced with None for a tensor; released after the call."""
        cell = self.w.slot("ptr", 8)
        self.module.declare("declare i32 @aoti_torch_new_uninitialized_tensor(ptr)")
        status = self.w.let(f"call i32 @aoti_torch_new_uninitialized_tensor(ptr {cell})")
        self.stop_if(self.w.let(f"icmp ne i32 {status}, 0"), OPERATOR_FAILED)
        handle = self.w.let(f"load ptr, ptr {cell}")
        self.handles.append(handle)
        return handle

    def tensor(self, view: View) -> str:
        """A handle on the window, released after the call."""
        w = self.w
        data = self._slot(view.buffer)
        if view.offset is not ZERO:
            data = w.address("i8", data, self.frame.size(view.offset * DTYPES[view.dtype].bytes))
        sizes, strides = self.array(view.sizes), self.array(view.strides)
        cell = w.slot("ptr", 8)
        name = "@aoti_torch_create_tensor_from_blob_v2"
        self.module.declare(f"declare i32 {name}(ptr, i64, ptr, ptr, i64, i32, i32, i32, ptr, i32, ptr, i64)")
        status = w.let(
            f"call i32 {name}(ptr {data}, i64 {len(view.sizes)}, ptr {sizes}, ptr {strides}, i64 0, "
            f"i32 {SCALAR_TYPE[view.dtype]}, {self._place()}, ptr {cell}, i32 0, ptr null, i64 0)"
        )
        self.stop_if(w.let(f"icmp ne i32 {status}, 0"), OPERATOR_FAILED)
        handle = w.let(f"load ptr, ptr {cell}")
        self.handles.append(handle)
        return handle

    def _place(self) -> str:
        """The kind of device, and which one of it."""
        if DEVICE_SLOT not in self.slots:
            return f"i32 {self.device.kind}, i32 0"
        index = self.w.let(f"ptrtoint ptr {self._slot(DEVICE_SLOT)} to i32")
        return f"i32 {self.device.kind}, i32 {index}"

    def argument(self, kind: str, value: Any) -> list[str]:
        """The C parameters that stand for one argument of the schema."""
        optional = kind.startswith("Optional[")
        inner = kind[len("Optional[") : -1] if optional else kind
        if inner.startswith("List["):
            if value is None:
                return ["ptr null", "i64 0"]
            assert not optional, f"the shim has no rule for {kind}"
            numbers = self._flags(value) if inner == "List[bool]" else self.array(value)
            return [f"ptr {numbers}", f"i64 {len(value)}"]
        if optional and value is None:
            return ["ptr null"]
        if inner == "Tensor" and value is None:
            return [f"ptr {self.no_tensor()}"]
        text = self._plain(inner, value)
        if not optional:
            return [text]
        type_text = text.rsplit(" ", 1)[0]
        cell = self.w.slot(type_text, 8)
        self.w.emit(f"store {text}, ptr {cell}")
        return [f"ptr {cell}"]

    def _plain(self, kind: str, value: Any) -> str:
        if isinstance(value, View):
            return f"ptr {self.tensor(value)}"
        if isinstance(value, torch.dtype):
            from litz.loop.dtype import from_torch

            return f"i32 {SCALAR_TYPE[str(from_torch(value))]}"
        if kind == "bool":
            return f"i32 {int(value)}"
        if kind in ("float", "number"):
            return f"double {self._float(value)}"
        assert kind in ("int", "SymInt"), f"the shim has no rule for {kind}"
        return f"i64 {self.frame.size(expr(value))}"

    def _float(self, value: Any) -> str:
        w = self.w
        if isinstance(value, Number):
            return w.let(f"load double, ptr {self._slot(value.name)}")
        if isinstance(value, Expr) and not value.is_int:
            return w.let(f"sitofp i64 {self.frame.size(value)} to double")
        return literal(float(value.int if isinstance(value, Expr) else value), "f64")

    def _slot(self, buffer: str) -> str:
        """Where a buffer begins."""
        address = self.w.let(f"getelementptr ptr, ptr %slots, i64 {self.slots[buffer]}", "p")
        return self.w.let(f"load ptr, ptr {address}")

    def release_arguments(self) -> None:
        for handle in self.handles:
            release(self.w, self.module, handle)

    def take(self, result: View, handle: str) -> None:
        """Put the address and the handle in their slots: of a copy, if the result lies otherwise than it was traced."""
        w = self.w
        cell = w.slot("ptr", 8)
        w.emit(f"store ptr {handle}, ptr {cell}")
        strides = self._get("strides", handle)
        differs = "false"
        for dim, (size, step) in enumerate(zip(result.sizes, result.strides, strict=True)):
            if size is not ONE:
                actual = w.let(f"load i64, ptr {w.address('i64', strides, dim)}")
                other = w.let(f"icmp ne i64 {actual}, {self.frame.size(step)}")
                differs = w.let(f"or i1 {differs}, {other}")
        with w.when(differs):
            self._copy(result, handle, cell)
        kept = w.let(f"load ptr, ptr {cell}")
        self._store_slot(result.buffer, self._get("data_ptr", kept))
        self._store_slot(handle_slot(result.buffer), kept)

    def _get(self, what: str, handle: str) -> str:
        cell = self.w.slot("ptr", 8)
        self.module.declare(f"declare i32 @aoti_torch_get_{what}(ptr, ptr)")
        self.w.emit(f"call i32 @aoti_torch_get_{what}(ptr {handle}, ptr {cell})")
        return self.w.let(f"load ptr, ptr {cell}")

    def _copy(self, result: View, handle: str, cell: str) -> None:
        """A copy with the traced strides takes the place of the handle, and of what the cell holds."""
        w, module = self.w, self.module
        sizes, strides = self.array(result.sizes), self.array(result.strides)
        module.declare("declare i32 @aoti_torch_empty_strided(i64, ptr, ptr, i32, i32, i32, ptr)")
        module.declare("declare i32 @aoti_torch_copy_(ptr, ptr, i32)")
        form = f"i64 {len(result.sizes)}, ptr {sizes}, ptr {strides}, i32 {SCALAR_TYPE[result.dtype]}"
        made = w.let(f"call i32 @aoti_torch_empty_strided({form}, {self._place()}, ptr {cell})")
        self.stop_if(w.let(f"icmp ne i32 {made}, 0"), OPERATOR_FAILED)
        copied = w.let(f"call i32 @aoti_torch_copy_(ptr {w.let(f'load ptr, ptr {cell}')}, ptr {handle}, i32 0)")
        self.stop_if(w.let(f"icmp ne i32 {copied}, 0"), OPERATOR_FAILED)
        release(w, module, handle)

    def _store_slot(self, name: str, value: str) -> None:
        address = self.w.let(f"getelementptr ptr, ptr %slots, i64 {self.slots[name]}", "p")
        self.w.emit(f"store ptr {value}, ptr {address}")
