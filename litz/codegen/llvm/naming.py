"""Kernels by what they do: the same work on other buffers is the same kernel, and its text is its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from litz.loop.ir import Buffer, Kernel, Load, Store

UNNAMED = "kernel"  # what a kernel is called until its text is known


@dataclass(frozen=True)
class Named:
    """What a function of generated code does: the first of the kernels that it was built for, its buffers numbered."""

    kernel: Kernel
    buffers: Mapping[str, Buffer]


def named(text: str, word: str = "") -> tuple[str, str]:
    """A name for the kernel of a module, made of the module's text, and the text with that name in it. `word`: what
    people are told by it."""
    name = f"k_{word}_" if word else "k_"
    name += blake2b(text.encode(), digest_size=8).hexdigest()
    return name, re.sub(rf"@{UNNAMED}\b", f"@{name}", text)


def anonymous(kernel: Kernel, order: tuple[str, ...]) -> Kernel:
    """The kernel with its buffers numbered, so that equal work on other buffers is the same value."""
    number = {b: f"b{i}" for i, b in enumerate(order)}
    body = tuple(replace(op, buffer=number[op.buffer]) if isinstance(op, (Load, Store)) else op for op in kernel.body)
    return replace(kernel, body=body)


__all__ = ["UNNAMED", "Named", "anonymous", "named"]
