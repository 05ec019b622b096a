"""Compile, or recall what another process, or an earlier compile, has made.

In: a captured graph, its inputs, and how to compile it. Out: a callable in its place. What code depends on is the key
(`capture/key.py`), asked of the cache before anything is traced: a hit does no tracing, no rewriting, no splitting and
no code generation, for the forward or for the backward, whether sizes are fixed or vary.

Where sizes vary, stages ask questions of them, and Dynamo makes guards of the answers. The questions are kept with the
code, and asked again before it is used: that gives this process the same guards; another answer is a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from torch import fx

from litz.capture.autograd import Absent
from litz.capture.key import Uncacheable, digest, key_entries, shape_environment
from litz.capture.modes import modes_now
from litz.capture.stand_ins import stand_ins
from litz.context import Context
from litz.errors import CacheError
from litz.loop.formula import Formula
from litz.runtime.artifact import Artifact, Compiled, Kept
from litz.runtime.bind import Backward, bind
from litz.runtime.container import pack
from litz.runtime.encode import Unwritable
from litz.stages import keeping, loader

_LOG = logging.getLogger(__name__)  # with TORCH_LOGS="litz", or "litz.recall" alone
Made = tuple[Compiled, "Backward | None"]
Compile = Callable[[Sequence[Any]], Made]  # for inputs such as these


def compile_or_recall(
    function: Callable[..., Any], inputs: Sequence[Any], strides: Any, ctx: Context, compile: Compile
) -> Callable[..., Any]:
    entry = _entry(function, inputs, strides, ctx)
    if entry is not None and ctx.watcher is not None:
        entry.tell()  # who looks on wants to see it compiled, and what he has done to it must not be kept
        entry = None
    if entry is None:
        return bind(*compile(inputs), function, loader(ctx), keeping(ctx))
    recalled = _recalled(entry, function, inputs, compile)
    if recalled is not None:
        _LOG.info("%s: from the cache", ctx.occasion.place)
        return recalled
    ctx.recalling += entry.differences()
    _LOG.info("%s: %s", ctx.occasion.place, "; ".join(ctx.recalling) or "not in the cache")
    answered = _answers(inputs)
    compiled, backward = compile(inputs)

    def keep() -> None:
        answers = _answers(inputs)[len(answered) :]
        entry.store("function", lambda: Kept(compiled, _formulas(answers), ctx.told()))

    if backward is None:
        keep()
        return bind(compiled, None, function, loader(ctx), keeping(ctx))

    name_of = entry.backward_names(compiled)

    def kept_backward(absent: Absent) -> Artifact:
        made = backward(absent)
        entry.store("backward", lambda: made, name_of(absent))
        return made

    if compiled.signature.sizes:
        kept_backward(())  # made already, while Dynamo could still make guards
    keep()
    return bind(compiled, kept_backward, function, loader(ctx), keeping(ctx))


def _recalled(
    entry: _Entry, function: Callable[..., Any], inputs: Sequence[Any], compile: Compile
) -> Callable[..., Any] | None:
    """What the cache has, ready to be called. Whatever is wrong with it, the function can still be compiled."""
    ctx, kept = entry.ctx, entry.load("function")
    try:
        if not isinstance(kept, Kept):
            return None
        if not _answers_hold(kept.answers, inputs):
            ctx.recalling.append("in the cache, for sizes that answer otherwise what was asked of them")
            return None
        backward = _recalled_backward(entry, kept.compiled, inputs, compile)
        ready = bind(kept.compiled, backward, function, loader(ctx), keeping(ctx))
    except Exception as error:
        ctx.recalling.append(f"what the cache has is of no use: {type(error).__name__}: {error}")
        return None
    ctx.recalled(kept.told, kept.compiled.forward.built)
    if kept.compiled.training is not None and ctx.options.backward == "eager":
        backward(())
    return ready


def _entry(function: Callable[..., Any], inputs: Sequence[Any], strides: Any, ctx: Context) -> _Entry | None:
    graph_module = getattr(function, "__self__", None)
    if ctx.cache is None or not isinstance(graph_module, fx.GraphModule):
        return None
    if ctx.options.snapshots or ctx.options.verify or ctx.options.dump is not None:
        ctx.recalling.append("not asked: snapshots and checks are of stages that run")
        return None
    try:
        entries = key_entries(graph_module, inputs, strides, ctx.options, ctx.target, ctx.state, ctx.zeros)
        ctx.key = digest(entries)
        return _Entry(ctx, ctx.key, entries)
    except Uncacheable as why:
        ctx.recalling.append(f"not kept for other processes: {why}")
    except Exception as error:  # an object that does not like to be looked at: it can be compiled all the same
        ctx.recalling.append(f"not kept for other processes: {type(error).__name__}: {error}")
    return None


class _Entry:
    """What the cache has under one key."""

    def __init__(self, ctx: Context, key: str, entries: dict[str, str]):
        self.ctx, self.key, self.entries = ctx, key, entries

    def differences(self) -> list[str]:
        """How it differs from what is kept."""
        assert self.ctx.cache is not None
        found = self.ctx.cache.differences("function", self.entries)
        return [f"not in the cache; of the nearest that is, another {difference}" for difference in found]

    def tell(self) -> None:
        """What would have come of asking for it."""
        if isinstance(self.load("function"), Kept):
            self.ctx.recalling.append("in the cache; compiled all the same, to be looked at")
        else:
            self.ctx.recalling += self.differences() or ["not in the cache, nor anything like it"]

    def load(self, kind: str, name: str | None = None) -> Any:
        assert self.ctx.cache is not None
        return self.ctx.cache.load(kind, name or self.key)

    def store(self, kind: str, value: Callable[[], Any], name: str | None = None) -> None:
        assert self.ctx.cache is not None
        try:
            self.ctx.cache.store(kind, name or self.key, value(), self.entries)
        except Unwritable as why:
            self.ctx.recalling.append(f"not kept for other processes: {why}")
            self.ctx.publish()

    def backward_names(self, compiled: Compiled) -> Callable[[Absent], str]:
        """A backward goes with one forward. Programs whose sizes answer otherwise have the same key, and each its own
        forward: the last to be kept."""
        try:
            forward = blake2b(pack(compiled), digest_size=8).hexdigest()
        except Unwritable:
            forward = "unwritable"  # nor will the function be kept
        return lambda absent: f"{self.key}-{forward}" + "".join(f"-{place}" for place in absent)


def _recalled_backward(entry: _Entry, kept: Compiled, inputs: Sequence[Any], compile: Compile) -> Backward:
    as_called, inputs_again, name_of = modes_now(), stand_ins(inputs), entry.backward_names(kept)

    @lru_cache(maxsize=None)
    def backward(absent: Absent) -> Artifact:
        found = entry.load("backward", name_of(absent))
        if isinstance(found, Artifact):
            entry.ctx.built.append(found.built)
            entry.ctx.publish()
            return found
        # Other results are used than when it was kept, or it is gone from the cache.
        entry.ctx.begin_again()
        with as_called.again():
            compiled, made = compile(inputs_again())
        if made is None or pack(compiled) != pack(kept):
            raise CacheError(
                "a backward that the cache does not have was compiled again, and its forward is not the one that ran",
                hint="run `litz cache clear`; the next process compiles both",
            )
        artifact = made(absent)
        entry.store("backward", lambda: artifact, name_of(absent))
        return artifact

    return backward


# -- what was asked of sizes -----------------------------------------------------------------------
def _answers(inputs: Sequence[Any]) -> list[Any]:
    """The guards on sizes so far, as sympy has them."""
    shapes = shape_environment(inputs)
    return [] if shapes is None else [guard.expr for guard in shapes.guards]


def _formulas(answers: Sequence[Any]) -> tuple[Formula, ...]:
    from litz.ops.formulas import formula_of

    found = [formula_of(answer) for answer in answers]
    if None in found:
        raise Unwritable("a guard on sizes has no spelling")
    return tuple(dict.fromkeys(found))  # type: ignore[arg-type]


def _answers_hold(answers: Sequence[Formula], inputs: Sequence[Any]) -> bool:
    """Asks again. Where all answers are the same, this process is guarded as that one was."""
    shapes = shape_environment(inputs)
    if shapes is None:
        return not answers
    symbols = {
        str(symbol): shapes.create_symintnode(symbol, hint=int(n))
        if symbol.is_integer
        else shapes.create_symfloatnode(symbol, hint=float(n))
        for symbol, n in shapes.backed_var_to_val.items()
        if n.is_Number  # a ragged size is none, and no guard is about one
    }
    return all(answer.symbols <= symbols.keys() and bool(answer.at(symbols)) for answer in answers)


__all__ = ["compile_or_recall"]
