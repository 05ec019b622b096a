"""What code generation hands to the host program: a kernel's function, and how it is to be called."""

from __future__ import annotations

from dataclasses import dataclass

from litz.loop.expr import Expr

# What every kernel's function takes after its buffers (and its workspace, if it has one).
TRAILING = ("ptr %sizes", "ptr %error", "i64 %begin", "i64 %end")


@dataclass(frozen=True)
class Rendered:
    """A kernel's function: its name, the buffers it takes in order, its units of work and what one costs."""

    name: str
    buffers: tuple[str, ...]
    units: Expr
    work: int  # scalar operations in all, at the likely sizes
    workspace: int = 0  # bytes each thread needs
    grain: int = 1  # a power of two: threads share the units out in multiples of it
