"""`Gathering`: looks on while models are compiled and run, and makes an `Explanation` of what it has seen.

In: compiles that begin under `watching(gathering)` (`litz/watch.py`). Out: `Piece`s, one a compile, with what each
stage made. Programs are built with a pause before every step, so that each can be timed; kernels are the same as ever.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from torch import fx

from litz.codegen.llvm.build import BuiltCode
from litz.codegen.llvm.render import Rendering
from litz.context import Context
from litz.debug.stopwatch import Stopwatch, pause_everywhere
from litz.errors import user_line
from litz.explanation.explanation import Choice, Function, Memory, Piece, Stage, Step
from litz.explanation.measure import bytes_touched, flops_of, shape_of
from litz.explanation.texts import Texts
from litz.explanation.timeline import Origin, Planned, timeline
from litz.graph.module import copied, graph_module
from litz.graph.partition.blockwise import LEVELS
from litz.graph.partition.extract import Split
from litz.graph.partition.split import plan
from litz.graph.signature import Joint
from litz.loop.contraction import contraction
from litz.loop.ir import Call, Program
from litz.loop.text import print_call, print_kernel
from litz.pipeline import policy_of
from litz.runtime.executable import Executable
from litz.runtime.within_calls import taken_within
from litz.schedule.memory import Layout
from litz.schedule.peak import arena_until
from litz.stages import text_of
from litz.target import GpuTarget

_CHOICES = 8  # to be shown
_DEFINITION = re.compile(r"^define [^@\n]*@([\w.]+)\(", re.MULTILINE)


class Gathering:
    """Of all compiles that are watched; threads may compile side by side."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.watched: list[Watched] = []
        self._lock = threading.Lock()

    def begins(self, ctx: Context) -> Watched:
        one = Watched(ctx, self.texts, self._lock)
        with self._lock:
            self.watched.append(one)
        return one

    def pieces(self) -> tuple[Piece, ...]:
        """What was compiled so far, and what was left; a compile that said nothing came to nothing."""
        found = [one for one in self.watched if one.stages or one.ctx.left_to_eager or one.ctx.notes]
        pieces = tuple(one.piece(number) for number, one in enumerate(found))
        return tuple(replace(piece, again=_is_again(piece, pieces[: piece.number])) for piece in pieces)


def _is_again(piece: Piece, before: Sequence[Piece]) -> bool:
    """Whether Dynamo has compiled the function before, while we looked on."""
    if piece.capture is None:
        return False
    same = [one.capture for one in before if one.capture is not None and one.function == piece.function]
    number = piece.capture.partition("/")[0]
    return any(one != piece.capture and one.partition("/")[0] == number for one in same)


@dataclass
class Part:
    """A forward or a backward on its way through the stages."""

    name: str
    nodes: dict[str, Origin]  # of the graph that is lowered
    program: Program | None = None
    layout: Layout | None = None
    rendering: Rendering | None = None
    code: BuiltCode | None = None
    stopwatch: Stopwatch | None = None
    dropped: tuple[str, ...] = ()
    saved: tuple[int, ...] = ()


@dataclass
class Watched:
    """One compile."""

    ctx: Context
    texts: Texts
    lock: threading.Lock
    stages: list[Stage] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    split: Split | None = None
    joint: Joint | None = None  # where there is a budget: a copy of what is split

    def ran(self, stage: str, result: Any, seconds: float) -> Any:
        if stage == "hoist" and self.ctx.options.memory_budget is not None and result.signature.differentiable:
            self.joint = replace(result, graph=graph_module(result.graph, copied(result.graph.graph)))
        elif stage == "split":
            self.parts.clear()  # a split that did not fit in a budget may have been compiled before
            self.split = result
        elif stage == "rewrite_post_grad":
            name = "backward" if self.parts else "forward"
            self.parts.append(Part(name, {node.name: _origin(node) for node in result.graph.nodes}))
        elif stage == "load":
            self._load(result)
        part = self.parts[-1] if self.parts else None
        if part is not None:
            if isinstance(getattr(result, "program", result), Program):
                part.program = getattr(result, "program", result)
            elif isinstance(result, Layout):
                part.layout = result
            elif isinstance(result, Rendering):
                part.rendering = result
            elif isinstance(result, BuiltCode):
                part.code = result
        self.stages.append(Stage(part.name if part else "", stage, seconds, self._text(stage, result)))
        return pause_everywhere(result) if isinstance(result, Layout) else result

    def begins_again(self) -> None:
        self.stages.clear()
        self.parts.clear()
        self.split = None

    def _load(self, executable: Executable) -> None:
        for part in self.parts:
            if part.stopwatch is None and part.name == executable.built.part:
                part.stopwatch = Stopwatch(executable)
                return

    def _text(self, stage: str, result: Any) -> int | None:
        if isinstance(result, Rendering):
            return self._add(result.modules[-1])  # kernels have places of their own
        text = text_of(stage, getattr(result, "program", result))
        return None if text is None else self._add(text())

    def _add(self, text: str) -> int:
        with self.lock:
            return self.texts.add(text)

    # -- when all has run ---------------------------------------------------------------------------
    def piece(self, number: int) -> Piece:
        ctx, occasion = self.ctx, self.ctx.occasion
        parts = [part for part in self.parts if part.rendering is not None]
        freezing, budget, memory = ctx.freezing, ctx.options.memory_budget, self._memory(parts)
        return Piece(
            number=number,
            source=occasion.source,
            function=occasion.function,
            training=occasion.training,
            why=occasion.why,
            capture=occasion.capture,
            ends=occasion.ends,
            left_to_eager=ctx.left_to_eager,
            stages=tuple(self.stages),
            steps=tuple(step for part in parts for step in self._steps(part)),
            functions=tuple(self._functions(parts)),
            memory=memory,
            firings=tuple(ctx.firings),
            near_misses=tuple(sorted(ctx.near_misses, key=lambda miss: -miss.matched)),
            fallbacks=tuple(ctx.fallbacks),
            notes=tuple(ctx.notes),
            cache=tuple(ctx.recalling),
            stays=() if freezing is None else freezing.stays,
            budget=None if budget is None else str(budget),
            choices=self._choices(memory),
        )

    def _steps(self, part: Part) -> list[Step]:
        assert part.program is not None and part.rendering is not None
        times = {} if part.stopwatch is None else part.stopwatch.microseconds()
        buffers = part.program.buffers
        found: list[Step] = []
        for at, step in enumerate(part.program.steps):
            origins = [part.nodes[name] for name in step.origins if name in part.nodes]
            micros, calls = times.get(at, (None, 0))
            does: tuple[str, ...]
            if isinstance(step, Call):
                kind, text, does, why = "call", print_call(step), (step.target,), step.why
            else:
                kind, text = "loops" if contraction(step) is None else "product", print_kernel(step, buffers)
                does, why = tuple(dict.fromkeys(o.does for o in origins)) or (step.name,), ""
            found.append(
                Step(
                    part=part.name,
                    name=step.name,
                    kind=kind,
                    does=does,
                    shape=shape_of(step),
                    lines=tuple(dict.fromkeys(o.line for o in origins if o.line)),
                    bytes=bytes_touched(step, buffers),
                    flops=flops_of(step),
                    text=self._add(text),
                    microseconds=micros,
                    calls=calls,
                    function=part.rendering.functions.get(step.name),
                    why=why,
                )
            )
        return found

    def _functions(self, parts: Sequence[Part]) -> list[Function]:
        found: dict[str, Function] = {}
        on_gpu = isinstance(self.ctx.target, GpuTarget)
        for part in parts:
            assert part.rendering is not None
            wanted = frozenset(part.rendering.functions.values())
            code = part.code or BuiltCode((), ())
            machine = [kernel.ptx.decode() for kernel in code.kernels] if on_gpu else map(_readable, code.listings)
            for module, listing in zip_longest(part.rendering.modules[:-1], machine):
                for name in wanted.intersection(_DEFINITION.findall(module or "")) - found.keys():
                    found[name] = Function(name, self._add(module), None if listing is None else self._add(listing))
        return list(found.values())

    def _memory(self, parts: Sequence[Part]) -> Memory | None:
        within = None if self.ctx.options.memory_budget is None else taken_within(self.ctx.target)
        planned = []
        for part in parts:
            if part.program is None or part.layout is None or part.rendering is None:
                continue
            workspace, (dropped, saved) = part.rendering.workspace, self._let_go(part)
            around = (part.program, part.layout, workspace)
            until = arena_until(*around, dropped) if self.split is not None else None
            planned.append(Planned(part.name, *around, dropped, saved, within, until))
        by_name = {part.name: part for part in parts}

        def origin(name: str, at: int) -> Origin:
            part = by_name[name]
            step = part.program.steps[at] if part.program is not None and at < len(part.program.steps) else None
            if step is None:
                return Origin("an argument", None)
            known = [part.nodes[node] for node in step.origins if node in part.nodes]
            does = step.target if isinstance(step, Call) else ", ".join(dict.fromkeys(o.does for o in known))
            return Origin(does or step.name, next((o.line for o in known if o.line), None))

        return timeline(planned, origin)

    def _choices(self, compiled: Memory | None) -> tuple[Choice, ...]:
        """By the plan that budgets in bytes are met with: no code is made for it."""
        if self.joint is None or compiled is None:
            return ()
        levels = plan(self.joint, policy_of(self.ctx))
        found = [levels.at(level) for level in range(0, LEVELS + 1, LEVELS // _CHOICES)]
        choices = [Choice(level.bound, level.seconds) for level in found]
        choices.append(Choice(compiled.peak, self.ctx.again_seconds, compiled=True))
        return tuple(sorted(choices, key=lambda choice: -choice.bytes))

    def _let_go(self, part: Part) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Of a backward: the arguments that only it has, and their numbers among the forward's outputs."""
        split = self.split
        if split is None or part.name != "backward" or part.program is None:
            return (), ()
        places = [i for i in range(split.first_saved, split.first_saved + split.saved) if part.program.inputs[i]]
        (output,) = (n for n in split.forward.graph.nodes if n.op == "output")
        results = len(output.args[0]) - split.saved
        return part.program.named(places), tuple(results + i - split.first_saved for i in places)


def _origin(node: fx.Node) -> Origin:
    does = str(node.target).removesuffix(".default") if node.op == "call_function" else node.op
    return Origin(does.replace("aten.", ""), _line(node.meta.get("stack_trace")))


_line: Callable[[str | None], str | None] = lru_cache(maxsize=4096)(user_line)
_NOISE = re.compile(r"^\s*\.(cfi_|p2align|type|size|section|globl|file|ident|text|addrsig)")


def _readable(assembly: str) -> str:
    """Without what only an assembler wants to know."""
    return "\n".join(line for line in assembly.splitlines() if not _NOISE.match(line))


__all__ = ["Gathering", "Watched"]
