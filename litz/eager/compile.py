"""`compile_op`: one operator, for one combination of arguments, as code that the dispatcher can call.

In: the operator, a function that does the same, and arguments of a call. Out: a file, listed in the operator's
description. Shapes are fixed: another shape is another entry.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from litz.capture.key import Uncacheable, digest, refuse_changes_of_torch, versions
from litz.codegen.llvm.boxed import Given, TensorForm, why_not_boxed, write_attempt
from litz.codegen.llvm.build import build
from litz.codegen.llvm.writer import Module
from litz.context import Context
from litz.eager.description import Description, Entry
from litz.eager.schema import NotGiven, called, find, given, in_order
from litz.errors import CompileError, OptionError
from litz.loop.ir import View
from litz.options import Options
from litz.runtime.artifact import Artifact
from litz.runtime.cache import cache_of, note_use, write_whole
from litz.runtime.container import pack, unpack
from litz.runtime.encode import Unreadable, register
from litz.target import Target, detect


@dataclass(frozen=True)
class Boxed:
    """A program as a kernel of the dispatcher: its `objects` have the function that `boxed.py` writes among them."""

    given: tuple[Given, ...]
    results: tuple[TensorForm, ...]
    objects: tuple[bytes, ...]
    constants: tuple[torch.Tensor, ...]
    target: Target


register(Boxed, Given, TensorForm)


def compile_op(
    namespace: str, op_overload: str | torch._ops.OpOverload, device: str, fn: Callable[..., Any], args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """`op_overload` is such as "gelu" or "mul.Tensor". Where there is code for such arguments, nothing is compiled. A
    function of the caller's in the operator's place is compiled whenever it is given; `enable` does not use it."""
    if torch.device(device).type != "cpu":
        raise OptionError(f"operators are compiled for the CPU, not for {device}")
    op = op_overload if isinstance(op_overload, torch._ops.OpOverload) else find(f"{namespace}::{op_overload}")
    chosen = Options.from_environment(options)
    arguments = in_order(op, args, kwargs or {})
    form = _form(op, arguments)
    own = fn is op or fn is op.overloadpacket
    description, made_for = described(op), key_of(chosen, "" if own else f"{fn.__module__}.{fn.__qualname__}")
    for entry in description.entries() if own else ():
        if (entry.given, entry.made_for) == (form, made_for) and read(description, entry) is not None:
            return description.folder / entry.file
    boxed = _compiled(op, fn, arguments, form, chosen)
    data = pack(boxed)
    file = f"{digest({'arguments': repr(form), 'operator': op.name(), 'for': made_for})}.litz"
    description.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(description.folder / file, data)
    description.add(Entry(form, made_for, file))
    return description.folder / file


def described(op: torch._ops.OpOverload) -> Description:
    return Description(folder(), op.name())


def folder() -> Path:
    """Where operators are kept: in the cache; where there is none, for as long as the process lives."""
    cache = cache_of(os.environ)
    return _own_folder() if cache is None else cache.operators


@lru_cache(maxsize=1)
def _own_folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="litz-eager-")
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory] = []


def key_of(options: Options, function: str = "") -> str:
    """`function`: what was given in the operator's place, if anything."""
    if not options.cacheable:
        raise OptionError("operators are kept for other processes, and functions of the caller's cannot be")
    try:
        refuse_changes_of_torch()
    except Uncacheable as why:
        raise OptionError(f"operators are kept for other processes, and {why}") from why
    entries = {**options.cache_key_entries(), **detect(options.threads).cache_key_entries(), **versions()}
    return digest({**entries, "function": function})


def read(description: Description, entry: Entry) -> Boxed | None:
    """The code of an entry; None where its file is gone, or not what was written."""
    try:
        found = unpack((description.folder / entry.file).read_bytes())
    except (OSError, Unreadable):
        return None
    note_use(description.folder / entry.file)
    return found if isinstance(found, Boxed) and found.given == entry.given else None


def _form(op: torch._ops.OpOverload, arguments: Sequence[Any]) -> tuple[Given, ...]:
    try:
        return given(op, arguments)
    except NotGiven as why:
        raise CompileError(f"{op.name()} is not compiled for {why}") from why


def _compiled(
    op: torch._ops.OpOverload, fn: Callable[..., Any], arguments: Sequence[Any], form: tuple[Given, ...],
    options: Options,
) -> Boxed:  # fmt: skip
    artifact = _artifact(op, fn, arguments, options)
    why = why_not_boxed(artifact.plan)
    if why is not None:
        raise CompileError(f"{op.name()} is not compiled: {why}")
    module = Module()
    write_attempt(module, artifact.plan, form, len(artifact.constants))
    (attempt,) = build([module.text()], artifact.target.host)
    return Boxed(form, _results(artifact), (*artifact.objects, attempt), artifact.constants, artifact.target.host)


def _results(artifact: Artifact) -> tuple[TensorForm, ...]:
    views = [v for v in artifact.plan.outputs if isinstance(v, View)]
    return tuple(TensorForm(v.dtype, *(tuple(n.int for n in ns) for ns in (v.sizes, v.strides))) for v in views)


def _artifact(
    op: torch._ops.OpOverload, fn: Callable[..., Any], arguments: Sequence[Any], options: Options
) -> Artifact:
    from litz.pipeline import compile_to_data

    holes = [isinstance(value, torch.Tensor) for value in arguments]

    def flat(*tensors: torch.Tensor) -> list[Any]:
        waiting = iter(tensors)
        filled = [next(waiting) if hole else value for value, hole in zip(arguments, holes, strict=True)]
        positional, named = called(op, filled)
        found = fn(*positional, **named)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    tensors = [value.detach() for value, hole in zip(arguments, holes, strict=True) if hole]
    with torch.no_grad():
        compiled, _ = compile_to_data(flat, tensors, None, Context(options, detect(options.threads)))
    outputs = compiled.signature.outputs
    if compiled.signature.mutated:
        raise CompileError(f"{op.name()} is not compiled: it writes to an argument")
    if len(outputs) != len(op._schema.returns):
        told = f"{len(outputs)} results are computed, and its schema has {len(op._schema.returns)}"
        raise CompileError(f"{op.name()} is not compiled: {told}")
    if any(output.kind != "fresh" for output in outputs):
        raise CompileError(f"{op.name()} is not compiled: a result is an argument, or shares memory with one")
    return compiled.forward


__all__ = ["Boxed", "compile_op", "described", "key_of", "read"]
