"""Errors a user can act on.

In: a message, and whatever is known about where it happened. Out: a typed exception whose text says what
was being done, on which node, from which line of the user's own program, and what to do next.

Every class also derives from the built-in exception a caller would expect (`ValueError` for a bad option),
so that code which does not know Litz can still catch it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any


class LitzError(Exception):
    """Base of all errors Litz raises on its own account."""

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        node: Any = None,
        source: str | None = None,
        excerpt: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        # Text only: an exception outlives the compile, and must not keep its graph and weights alive.
        self.node = None if node is None else _describe(node)
        self.source = source_of(node) if source is None and node is not None else source
        self.excerpt = excerpt
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        for label, text in (("stage", self.stage), ("node", self.node), ("source", self.source)):
            if text is not None:
                lines.append(f"  {label}: {text}")
        if self.excerpt is not None:
            lines.append("  excerpt:")
            lines.extend(f"    {line}" for line in self.excerpt.rstrip("\n").splitlines())
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class OptionError(LitzError, ValueError):
    """An option that does not exist, or a value it does not accept."""


class UnsupportedPlatform(LitzError, RuntimeError):
    """Litz cannot generate code for this machine."""


class CaptureError(LitzError, RuntimeError):
    """The user's program could not be turned into a functional graph. `at`: the node of it that could not, if known."""

    def __init__(self, message: str, *, at: str | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.at = at


class RuleError(LitzError, ValueError):
    """A rewrite rule that cannot be right: its replacement differs from what it replaces."""


class LoweringError(LitzError, RuntimeError):
    """A graph node could not be turned into loops."""


class VerifyError(LitzError, ValueError):
    """An IR that breaks its own rules: a bug in the stage that produced it."""


class PlanError(VerifyError):
    """A plan of a kernel's loops that does not compute the kernel."""


class ParseError(LitzError, ValueError):
    """Text that is not the printed form of an IR."""


class CompileError(LitzError, RuntimeError):
    """Generated code was refused by the code generator or could not be loaded."""


class CacheError(LitzError, RuntimeError):
    """Something that lasts, a cache entry or an artefact, cannot be written or read."""


class CallError(LitzError, RuntimeError):
    """A compiled program was called with arguments it was not compiled for, or failed while running."""


class RunFailed(CallError):
    """A compiled program did not finish: `error` says why. `in_time`: before it had done anything that the caller could
    see, besides its results."""

    def __init__(self, error: Exception, in_time: bool) -> None:
        super().__init__(str(error))
        self.error, self.in_time = error, in_time

    def instead(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What the user's own function does, in the program's place: as a rule it raises an error of its own type, in
        its own words. It is not run on arguments that have changed already."""
        if not self.in_time:
            raise self.error
        result = function(*args)
        tell(f"a compiled program failed where eager does not: {self.error}")
        return result


def tell(text: str, source: str | None = None) -> None:
    """A warning, at the line of the user's that `source` ("file:line: code") names, if any."""
    place = re.match(r"(.*?):(\d+)", source or _callers_line())
    try:
        if place is None:
            warnings.warn(f"litz: {text}", stacklevel=3)
        else:
            warnings.warn_explicit(f"litz: {text}", UserWarning, place[1], int(place[2]))
    except UserWarning:
        # Who makes errors of warnings wants to be told, and not that a program which runs as ever stops half-way.
        logging.getLogger("litz").warning("%s: %s", source or "litz", text)


def _callers_line() -> str:
    """Of the innermost call that is neither Litz's nor torch's."""
    packages = (sys.modules.get(name) for name in ("litz", "torch"))
    inside = tuple(os.path.dirname(package.__file__) + os.sep for package in packages if package and package.__file__)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


def source_of(node: Any) -> str | None:
    """The user's line behind an fx node, as `file:line: code`, from `node.meta["stack_trace"]`.

    The innermost frame outside torch itself: `torch/nn/modules/linear.py` tells a user nothing about where
    in their model the linear is. Falls back to the innermost frame of any kind.
    """
    return user_line(getattr(node, "meta", {}).get("stack_trace"))


def user_line(trace: str | None) -> str | None:
    """The same from the trace itself."""
    if not trace:
        return None
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return None
    inside_torch = _torch_folder()
    own = [frame for frame in frames if not (inside_torch and frame["file"].startswith(inside_torch))]
    frame = (own or frames)[-1]
    following = trace[frame.end() :].split("\n")[1:2]
    code = following[0].strip() if following and not _FRAME.match(following[0]) else ""
    place = f"{frame['file']}:{frame['line']}"
    return f"{place}: {code}" if code else place


def _torch_folder() -> str | None:
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    return os.path.dirname(file) + os.sep if file else None


def _describe(node: Any) -> str:
    format_node = getattr(node, "format_node", None)
    text = format_node() if callable(format_node) else None
    return str(text if text is not None else node)
