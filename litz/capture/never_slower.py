"""Compiled code that is not slower than eager: timed on its first calls, and left to eager where it is.

In: a compiled function, the user's own, and what it is called with. Out: a callable that lets the two take turns
(`race.py`) until it is known which is faster, and is that one from then on. What was found is in the report, and in the
cache: another process does not time again.

A call is timed between two marks on the device's own stream, which are read when they have passed: nothing waits. Of a
training step the backward is timed too, from where the first tangent comes in to where the gradient of what was used
first goes out; both sides are marked in the same way. Nothing is timed while the device records a graph of its own;
nor where eager might not find room, or where the user asked for deterministic results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.capture.leave import warn_once
from litz.capture.race import COMPILED, EAGER, Race, Verdict
from litz.capture.run_graph import as_written, as_written_once_called
from litz.context import Context
from litz.graph.sizes import likely, varies

Function = Callable[..., Any]
_FEW_INPUTS = 2  # whose gradients end a backward: those that are used first
_PATIENCE = 4  # calls after which a backward that has not come will not come
_MUCH = 1 << 30  # bytes
_SPARE = 3  # times what eager is expected to need must be free


class Clock(Protocol):
    def mark(self) -> Any: ...

    def milliseconds(self, begin: Any, end: Any) -> float | None:
        """None as long as the second has not passed."""

    def may_be_used(self) -> bool: ...


class StreamClock:
    """Marks on the current stream of a GPU."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, begin: Any, end: Any) -> float | None:
        return begin.elapsed_time(end) if end.query() else None

    def may_be_used(self) -> bool:
        return not torch.cuda.is_current_stream_capturing()


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def milliseconds(self, begin: float, end: float) -> float | None:
        return 1e3 * (end - begin)

    def may_be_used(self) -> bool:
        return True


def never_slower(compiled: Function, function: Function, inputs: Sequence[Any], ctx: Context) -> Function:
    """`compiled`, in a race with the user's `function` if that is asked for."""
    wanted = ctx.options.never_slower
    if not (ctx.target.races_eager if wanted is None else wanted):
        return compiled
    if ctx.options.freeze == "discard":
        return compiled  # eager has nothing to run on
    if ctx.options.verify or ctx.options.fuel is not None:
        return compiled  # what is being looked at is the compiled code
    if torch.get_deterministic_debug_mode():
        ctx.note("not timed against eager, since results are to be the same each time")
        return compiled
    known = _known(ctx)
    if known is not None:
        return _settled(known, compiled, function, ctx, "as found earlier")
    clock = HostClock() if ctx.target.device == "cpu" else StreamClock()
    return Racing(compiled, function, inputs, ctx, clock)


class Racing:
    """One compiled function, and the user's own beside it, until one is chosen."""

    def __init__(self, compiled: Function, function: Function, inputs: Sequence[Any], ctx: Context, clock: Clock):
        self.compiled, self.function, self.eager = compiled, function, as_written_once_called(function)
        self.ctx, self.clock, self.race = ctx, clock, Race()
        self._sizes = tuple(i for i, x in enumerate(inputs) if varies(x) or not isinstance(x, torch.Tensor))
        self._first_used = _in_order_of_use(function, len(inputs))
        self._needs = bytes_of_eager(function, ctx.occasion.training)
        self._pending: list[_Trial] = []
        self._lock = threading.Lock()
        self._chosen: Function | None = None

    def __call__(self, *args: Any) -> Any:
        if self._chosen is not None:
            return self._chosen(*args)
        if not self.clock.may_be_used():
            return self.compiled(*args)
        with self._lock:
            self._take_times()
            verdict = self.race.verdict
            sizes = tuple(_size(args[i]) for i in self._sizes)
            runner, counts = (COMPILED, False) if verdict is not None else self.race.next(sizes)
            if verdict is None and runner == EAGER and not self._has_room():
                verdict = Verdict(COMPILED)
                self.ctx.note("not timed against eager, which might need more memory than there is")
            if verdict is not None:
                self._settle(verdict)
        if self._chosen is not None:
            return self._chosen(*args)
        return self._timed(args, runner, _Trial(sizes, runner)) if counts else self._runner(runner)(*args)

    def _runner(self, name: str) -> Function:
        return self.eager if name == EAGER else self.compiled

    def _timed(self, args: Sequence[Any], runner: str, trial: _Trial) -> Any:
        trial.forward.begin = self.clock.mark()
        results = self._runner(runner)(*args)
        trial.forward.end = self.clock.mark()
        if self.ctx.occasion.training:
            self._watch(trial, args, results)
        with self._lock:
            self._pending.append(trial)
        return results

    # -- the backward -------------------------------------------------------------------------------
    def _watch(self, trial: _Trial, args: Sequence[Any], results: Any) -> None:
        """Have its backward marked where it begins and where it ends."""
        outputs = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor) and r.grad_fn is not None]
        given = (args[i] for i in self._first_used)
        learns = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad][:_FEW_INPUTS]
        if not outputs or not learns:
            return
        trial.backward = _Span()

        # The engine calls them wherever the user called `backward`, which may be in code that Dynamo watches.
        @torch.compiler.disable(reason="Litz's own code")
        def begins(tangents: Any) -> None:
            if trial.backward is not None and trial.backward.begin is None and self.clock.may_be_used():
                trial.backward.begin = self.clock.mark()

        @torch.compiler.disable(reason="Litz's own code")
        def ends(gradients: Any) -> None:
            if trial.backward is not None and trial.backward.begin is not None and self.clock.may_be_used():
                trial.backward.end = self.clock.mark()

        for node in {r.grad_fn for r in outputs}:
            trial.hooks.append(node.register_prehook(begins))  # type: ignore[union-attr]
        for x in learns:
            trial.hooks.append(torch.autograd.graph.get_gradient_edge(x).node.register_prehook(ends))

    # -- times --------------------------------------------------------------------------------------
    def _take_times(self) -> None:
        waiting = []
        for trial in self._pending:
            trial.waited += 1
            took, parts = trial.took(self.clock)
            if took is None:
                waiting.append(trial)
                continue
            trial.forget_hooks()
            self.race.took(trial.sizes, trial.runner, took, parts)
        self._pending = waiting

    def _has_room(self) -> bool:
        return self.ctx.target.device == "cpu" or self._needs * _SPARE < free_bytes()

    def _settle(self, verdict: Verdict) -> None:
        for trial in self._pending:
            trial.forget_hooks()
        self._pending = []
        self._chosen = _settled(verdict, self.compiled, self.function, self.ctx, "on its first calls")
        if verdict.winner == EAGER:
            self.compiled = self._chosen  # captured calls keep memory as long as their program is there
        _remember(verdict, self.ctx)
        if verdict.winner == COMPILED and verdict.eager is not None:
            _give_back_spare_memory(self.ctx)


@dataclass
class _Span:
    begin: Any = None
    end: Any = None


@dataclass
class _Trial:
    """A call that is being timed."""

    sizes: tuple[Any, ...]
    runner: str
    forward: _Span = field(default_factory=_Span)
    backward: _Span | None = None  # where there may be one
    hooks: list[Any] = field(default_factory=list)
    waited: int = 0

    def took(self, clock: Clock) -> tuple[float | None, int]:
        """Milliseconds, and of how many parts; None as long as they are not known."""
        forward = clock.milliseconds(self.forward.begin, self.forward.end)
        if forward is None or self.backward is None:
            return forward, 1
        if self.backward.end is None:
            return (forward, 1) if self.waited > _PATIENCE else (None, 1)
        backward = clock.milliseconds(self.backward.begin, self.backward.end)
        return None if backward is None else forward + backward, 2

    def forget_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()


def _size(value: Any) -> Any:
    """Of a tensor its shape; a number that is no size says nothing of how long a call takes."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value if isinstance(value, int) else None


def _in_order_of_use(function: Function, inputs: int) -> tuple[int, ...]:
    """Arguments, those that are used first in front: their gradients come last."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, fx.GraphModule):
        return tuple(range(inputs))
    placeholders = [node for node in owner.graph.nodes if node.op == "placeholder"]
    place = {node: i for i, node in enumerate(owner.graph.nodes)}
    last = len(place)
    first_use = [min((place[user] for user in node.users), default=last) for node in placeholders]
    return tuple(sorted(range(len(placeholders)), key=first_use.__getitem__))


# -- memory -------------------------------------------------------------------------------------------
def bytes_of_eager(function: Function, training: bool) -> int:
    """What eager may need on top of its arguments: in training all that it makes, else what is alive at once."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, fx.GraphModule):
        return 0
    nodes = [node for node in owner.graph.nodes if node.op.startswith("call")]
    made = {node: _bytes(node) for node in nodes}
    if training:
        return sum(made.values())
    place = {node: i for i, node in enumerate(owner.graph.nodes)}
    dies: dict[int, int] = {}
    for node in nodes:
        last = max((place[user] for user in node.users), default=place[node])
        dies[last] = dies.get(last, 0) + made[node]
    alive = most = 0
    for node in nodes:
        alive += made[node]
        most = max(most, alive)
        alive -= dies.get(place[node], 0)
    return most


def _bytes(node: fx.Node) -> int:
    """Of what is made by the node; a view makes nothing, but that is not asked here: too much is better than too
    little."""
    total = 0
    for value in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(value, torch.Tensor):
            size = value.element_size()
            for n in value.shape:
                size *= likely(n)
            total += size
    return total


def free_bytes() -> int:
    """That torch could hand out on the current device."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _give_back_spare_memory(ctx: Context) -> None:
    """What eager's steps took, of which the compiled ones need a part."""
    if ctx.target.device == "cpu" or not ctx.occasion.training:
        return
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _MUCH:
        torch.cuda.empty_cache()


# -- what was found -----------------------------------------------------------------------------------
def _settled(verdict: Verdict, compiled: Function, function: Function, ctx: Context, when: str) -> Function:
    if verdict.winner == COMPILED:
        ctx.note(f"timed against eager {when}: {verdict}")
        ctx.publish()
        return compiled
    why = f"timed against eager {when}: {verdict}"
    ctx.leave(why)
    ctx.publish()
    warn_once(f"a graph is left to eager: {why}", ctx.occasion.source)
    return as_written(function)


def _name(ctx: Context) -> str | None:
    if ctx.cache is None or ctx.key is None:
        return None
    where = "cpu" if ctx.target.device == "cpu" else torch.cuda.get_device_name()
    return blake2b(f"verdict {ctx.key} {where}".encode(), digest_size=20).hexdigest()


def _known(ctx: Context) -> Verdict | None:
    name = _name(ctx)
    found = None if name is None or ctx.cache is None else ctx.cache.load("trial", name)
    if not isinstance(found, tuple) or len(found) != 3:
        return None
    return Verdict(*found)


def _remember(verdict: Verdict, ctx: Context) -> None:
    name = _name(ctx)
    if name is not None and ctx.cache is not None and verdict.eager is not None:
        about = {"verdict": str(verdict), "key": str(ctx.key)}
        ctx.cache.store("trial", name, (verdict.winner, verdict.compiled, verdict.eager), about)


__all__ = ["HostClock", "Racing", "StreamClock", "bytes_of_eager", "never_slower"]
