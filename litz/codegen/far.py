"""Which memory no cache holds when a kernel comes to it, so that it is worth asking for ahead of time.

In: a program, and the bytes that the last cache has. Out: the names of its inputs, where all of them together are more
than the cache holds: nobody has just written them, as temporaries are. And of a kernel, those of its loads that go
through such memory once, in the order it lies in; of one that goes through more than the cache holds, all that do.

Processors notice such walks themselves, up to the end of a page of memory; asked for a page's half ahead, the next
page is on its way in time.
"""

from __future__ import annotations

from collections.abc import Collection

from litz.loop.expr import ONE, Axis
from litz.loop.ir import Buffer, Kernel, Program
from litz.schedule.peak import bytes_of

AHEAD_BYTES = 2048  # measured: half as far and twice as far gain less
LINE_BYTES = 64


def far_inputs(program: Program, cache_bytes: int) -> frozenset[str]:
    inputs = {name for name, buffer in program.buffers.items() if buffer.kind == "input"}
    return frozenset(inputs) if sum(bytes_of(program.buffers[name]) for name in inputs) > cache_bytes else frozenset()


def far_of(kernel: Kernel, buffers: dict[str, Buffer], inputs: Collection[str], cache_bytes: int) -> frozenset[str]:
    """Of the buffers that the kernel reads, those that are `inputs`; all, where it goes through so much."""
    taken = {*kernel.reads, *kernel.writes}
    whole = sum(bytes_of(buffers[name]) for name in taken) > cache_bytes
    return frozenset(name for name in kernel.reads if whole or name in inputs)


def asked_ahead(kernel: Kernel, vector: Axis | None, far: Collection[str]) -> frozenset[str]:
    """Of those, the ones that are walked once, from one end to the other."""
    if vector is None or kernel.reduced:
        return frozenset()
    walked = [op for op in kernel.loads if op.index.coefficient(vector) is ONE and op.index.axes() >= {*kernel.axes}]
    return frozenset(op.buffer for op in walked if op.buffer in far)


__all__ = ["AHEAD_BYTES", "LINE_BYTES", "asked_ahead", "far_inputs", "far_of"]
