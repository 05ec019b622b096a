"""What is not compiled as one would wish, said: left to eager, or compiled for each combination of sizes.

In: a graph and why. Out: a callable that runs it all the same; a warning at the user's own line, once, and the reason
in the report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from litz.capture.run_graph import as_written
from litz.context import Context
from litz.errors import CaptureError, LitzError, OptionError, RuleError, UnsupportedPlatform, tell

_THE_USERS_OWN = (OptionError, RuleError, UnsupportedPlatform)  # mistakes that nobody else can mend
_MOST_PROGRAMS = 8  # of one graph, for as many combinations of sizes
_warned: set[str] = set()


def must_be_raised(error: Exception, ctx: Context) -> bool:
    """Whether running the program in eager would hide what somebody must see: a mistake of the user's in what he told
    Litz; a defect of Litz's own, where it is being tested."""
    return isinstance(error, _THE_USERS_OWN) or (ctx.options.verify and not isinstance(error, CaptureError))


def left_to_eager(function: Callable[..., Any], reason: Exception | str, ctx: Context) -> Callable[..., Any]:
    """The function itself, and word of it."""
    text, source = _told(reason)
    ctx.leave(text)
    ctx.publish()
    warn_once(f"a graph is left to eager: {text}", source or ctx.occasion.source)
    return as_written(function)


def _told(reason: Exception | str) -> tuple[str, str | None]:
    if isinstance(reason, CaptureError):
        return str(reason), reason.source
    if isinstance(reason, Exception):
        kind = "" if isinstance(reason, LitzError) else f"{type(reason).__name__}: "
        return f"a defect of Litz, please report it: {kind}{reason}", getattr(reason, "source", None)
    return reason, None


def warn_once(text: str, source: str | None = None) -> None:
    """At the line of the user's that `source` ("file:line: code") names, if any."""
    if text in _warned:
        return
    _warned.add(text)
    tell(text, source)


class PerSize:
    """A graph with sizes that vary, compiled anew for each combination of sizes it meets, up to a number of them."""

    def __init__(self, graph_module: fx.GraphModule, why: Exception, ctx: Context, compile: Callable[..., Any]):
        """`compile(function, args, ctx)` gives the program for arguments such as these."""
        self.graph_module, self.why, self.ctx, self.compile = graph_module, str(why), ctx, compile
        self.compiled: dict[tuple, Callable[..., Any]] = {}
        ctx.note(f"compiled for each combination of sizes: {self.why}")
        ctx.publish()

    def __call__(self, *args: Any) -> Any:
        key = (
            torch.is_grad_enabled(),
            *((tuple(a.shape), a.stride(), a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args),
        )
        found = self.compiled.get(key)
        if found is None and len(self.compiled) < _MOST_PROGRAMS:
            found = self.compiled[key] = self.compile(self.graph_module.forward, args, self.ctx)
        if found is None:
            most = f"it met over {_MOST_PROGRAMS} combinations of sizes, and would be compiled for each: {self.why}"
            found = self.compiled[key] = left_to_eager(self.graph_module.forward, most, self.ctx)
        return found(*args)


__all__ = ["PerSize", "left_to_eager", "must_be_raised", "warn_once"]
