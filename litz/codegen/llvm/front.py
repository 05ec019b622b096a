"""What C sees of a model: four functions, named after it, and the header that declares them.

In: the entry of each level (`entry.py`): the same program for another instruction set. Out: `NAME_open`, which looks at
the processor and chooses a level, `NAME_run`, `NAME_error`, `NAME_close`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litz.codegen.llvm.cpuid import has_all
from litz.codegen.llvm.entry import LEVEL_AT, PARAMETERS, Argument, Memory, Messages, free
from litz.codegen.llvm.shim import SCALAR_TYPE
from litz.codegen.llvm.writer import Module, Writer
from litz.codegen.plan import HostPlan
from litz.loop.ir import View


@dataclass(frozen=True)
class Level:
    """A program for processors with these features; `function` runs it, on a model of so many bytes."""

    name: str
    function: str
    bytes: int
    features: frozenset[str]


def write_front(
    module: Module, name: str, levels: Sequence[Level], messages: Messages, arch: str, memory: Memory
) -> None:
    """`levels`: the widest first."""
    _write_open(module, name, levels, arch, memory)
    _write_run(module, name, levels, messages)
    _write_close(module, name, memory)
    _write_error(module, name, messages)


def _write_open(module: Module, name: str, levels: Sequence[Level], arch: str, memory: Memory) -> None:
    w = Writer(module)

    def failed() -> None:
        free(w, model)
        w.emit("ret ptr null")
        w.place(w.label("unreached"))

    module.declare("declare ptr @calloc(i64, i64)")
    fits = [has_all(w, level.features) if arch == "x86_64" else "true" for level in levels]
    for number, (level, fit) in enumerate(zip(levels, fits, strict=True)):
        with w.when(fit):
            model = w.let(f"call ptr @calloc(i64 1, i64 {level.bytes})")
            with w.when(w.let(f"icmp ne ptr {model}, null")):
                w.emit(f"store i32 {number}, ptr {w.address('i8', model, LEVEL_AT)}")
                memory.open(w, model, failed)
            w.emit(f"ret ptr {model}")
            w.place(w.label("unreached"))
    w.emit("ret ptr null")
    w.define(f"{name}_open", "", "ptr")


def _write_run(module: Module, name: str, levels: Sequence[Level], messages: Messages) -> None:
    w = Writer(module)
    none = messages.add("there is no model: it could not be opened")
    with w.when(w.let("icmp eq ptr %model, null")):
        w.emit(f"ret i32 {none}")
        w.place(w.label("unreached"))
    chosen = w.let(f"load i32, ptr {w.address('i8', '%model', LEVEL_AT)}")
    for number, level in enumerate(levels):
        module.declare(f"declare hidden i32 @{level.function}(ptr, ptr, i64, ptr, i64)")
        with w.when(w.let(f"icmp eq i32 {chosen}, {number}")):
            w.emit(f"ret i32 {w.let(f'call i32 @{level.function}({PARAMETERS})')}")
            w.place(w.label("unreached"))
    w.emit(f"ret i32 {none}")
    w.define(f"{name}_run", PARAMETERS, "i32")


def _write_close(module: Module, name: str, memory: Memory) -> None:
    w = Writer(module)
    with w.when(w.let("icmp ne ptr %model, null")):
        memory.close(w, "%model")
        free(w, "%model")
    w.emit("ret void")
    w.define(f"{name}_close", "ptr %model")


def _write_error(module: Module, name: str, messages: Messages) -> None:
    """`NAME_error(code)`: what a code that `NAME_run` has returned means."""
    w = Writer(module)
    texts = [module.constant_string(text) for text in (*messages.texts, "an error that this model does not have")]
    table = module.constant(f"[{len(texts)} x ptr] [{', '.join(f'ptr {text}' for text in texts)}]")
    row = w.intrinsic("llvm.umin", "i32", "%code", str(len(texts) - 1))
    at = w.address("ptr", table, w.let(f"zext i32 {row} to i64"))
    w.emit(f"ret ptr {w.let(f'load ptr, ptr {at}')}")
    w.define(f"{name}_error", "i32 %code", "ptr")


HEADER = """/* {title}: written by Litz. {about} */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#ifndef LITZ_TENSOR
#define LITZ_TENSOR
/* A tensor in {where}. `strides` count elements; NULL means that it lies in rows. */
typedef struct {{
  void *data;
  int64_t *sizes;
  int64_t *strides;
  int32_t rank;
  int32_t type; /* as in torch: {types} */
}} litz_tensor;
#endif

/* A model serves one call at a time: open one for each thread. NULL where this processor has none of what the code was
   made for ({levels}), or memory is short{or_else}. */
void *{name}_open(void);
void {name}_close(void *model);
{more}
/* Inputs:
{inputs}
   Outputs:
{outputs}
   Where an output's `data` is NULL, memory is allocated for it, which the caller frees (`{frees}`). Where its `sizes`
   and `strides` are not, they have room for its dimensions, and are filled in.
   Returns 0, or what `{name}_error` explains. */
int32_t {name}_run(void *model, const litz_tensor *inputs, int64_t input_count, litz_tensor *outputs,
                   int64_t output_count);
const char *{name}_error(int32_t code);

#ifdef __cplusplus
}}
#endif
#endif
"""


@dataclass(frozen=True)
class Words:
    """What the header says of the device."""

    where: str = "the caller's memory"
    or_else: str = ""
    frees: str = "free"
    more: str = ""


ON_GPU = Words(
    "the memory of the GPU; `sizes` and `strides` are in the caller's",
    ";\n   or there is no GPU, it is older than the code, or the current context is not that of the first model opened",
    "cuMemFree",
    """
/* Runs go to this stream (a CUstream or cudaStream_t; at first, the default one), and are over when it is: a run
   returns before. The current context must be that of the model, or none. */
void {name}_set_stream(void *model, void *stream);
""",
)


def header(
    name: str, plan: HostPlan, arguments: Sequence[Argument], levels: Sequence[Level], about: str,
    words: Words = Words(),  # noqa: B008
) -> str:  # fmt: skip
    types = ", ".join(f"{code} {dtype}" for dtype, code in SCALAR_TYPE.items())
    inputs = [f"   {i}. {a.name}: {a.dtype}{list(a.sizes)}, strides {list(a.strides)}" for i, a in enumerate(arguments)]
    outputs = [
        f"   {i}. {v.dtype}{list(v.sizes)}, strides {list(v.strides)}"
        for i, v in enumerate(plan.outputs)
        if isinstance(v, View)
    ]
    return HEADER.format(
        title=name, about=about, guard=f"LITZ_{name.upper()}_H", types=types, name=name,
        inputs="\n".join(inputs), outputs="\n".join(outputs), levels=", ".join(level.name for level in levels),
        where=words.where, or_else=words.or_else, frees=words.frees, more=words.more.format(name=name),
    )  # fmt: skip


__all__ = ["ON_GPU", "Level", "Words", "header", "write_front"]
