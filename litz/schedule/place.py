"""Place buffers: byte offsets in one arena, for sizes that may be known only at a call.

In: spans, which say how long memory is needed and by whom, and a workspace, for some steps alone. Out: a `Placement`.

Buffers are placed largest first at the lowest offset that is free during their whole life, which for graphs of this
kind comes within a few per cent of the peak of live bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from litz.loop.dtype import DTYPES
from litz.loop.formula import Measures
from litz.loop.ir import Buffer

ALIGNMENT = 64
Buffers = Mapping[str, Buffer]


class Span(NamedTuple):
    """Buffers that follow each other in one piece of memory, from the step before which it is needed to the step
    after which it is not."""

    members: tuple[str, ...]
    first: int
    last: int


class Workspace(NamedTuple):
    """Memory that kernels need while they run, all the same one: its bytes, and the steps that use it."""

    bytes: int = 0
    steps: tuple[int, ...] = ()


NO_WORKSPACE = Workspace()


class Placement(NamedTuple):
    """The arena for certain sizes: where each temporary buffer begins, in bytes, and how large it all is; and where the
    workspace begins."""

    offsets: dict[str, int]
    size: int
    workspace: int = 0


def place(
    buffers: Buffers, spans: Sequence[Span], sizes: Measures | None = None, workspace: Workspace = NO_WORKSPACE
) -> Placement:
    """The arena at these sizes; without them, at likely ones."""
    placed = _Taken(1 + max((*(span.last for span in spans), *workspace.steps), default=0))
    offsets: dict[str, int] = {}
    needs = [_Need(size_of(buffers, span.members, sizes), ((span.first, span.last),), span.members) for span in spans]
    if workspace.bytes:
        needs.append(_Need(workspace.bytes, tuple((at, at) for at in workspace.steps), None))
    total = begins = 0
    for size, times, members in sorted(needs, key=lambda need: (-need.bytes, need.times[0][0])):
        offset = 0
        for low, high in placed.during(times):
            if offset + size <= low:
                break
            offset = max(offset, high)
        for start, end in times:
            placed.add(start, end, offset, offset + size)
        total = max(total, offset + size)
        if members is None:
            begins = offset
        else:
            offsets.update(dict.fromkeys(members, offset))
    return Placement(offsets, total, begins)


class _Need(NamedTuple):
    """So many bytes, from the first to the last step of each of these times, for these buffers or as the workspace."""

    bytes: int
    times: tuple[tuple[int, int], ...]
    members: tuple[str, ...] | None


def size_of(buffers: Buffers, members: tuple[str, ...], sizes: Measures | None = None) -> int:
    """Bytes that hold any of the buffers."""
    return max(bytes_of(buffers, m, sizes) for m in members)


def bytes_of(buffers: Buffers, name: str, sizes: Measures | None = None) -> int:
    """Bytes of a buffer, up to the next boundary; at likely sizes unless they are given."""
    buffer = buffers[name]
    count = buffer.size.hint if sizes is None else buffer.size.at(sizes)
    size = max(count, 0) * DTYPES[buffer.dtype].bytes
    return -(-size // ALIGNMENT) * ALIGNMENT


Bytes = tuple[int, int]  # from the first to before the second


class _Taken:
    """Which bytes are taken, and during which steps: a tree of stretches of steps, each half of the one above it.

    What is taken for a while is noted at the few stretches that make up that while, and neighbours are noted as one:
    memory is packed, so there is little to look through however many buffers are alive.
    """

    def __init__(self, steps: int):
        self.leaves = 1 << max(0, steps - 1).bit_length()
        self.throughout: dict[int, list[Bytes]] = {}  # stretch -> taken at each of its steps
        self.somewhere: dict[int, list[Bytes]] = {}  # stretch -> taken at one of its steps or more

    def add(self, first: int, last: int, low: int, high: int) -> None:
        above = set()
        for stretch in self._stretches(first, last):
            _unite(self.throughout.setdefault(stretch, []), low, high)
            while stretch and stretch not in above:
                above.add(stretch)
                stretch >>= 1
        for stretch in above:
            _unite(self.somewhere.setdefault(stretch, []), low, high)

    def during(self, times: Iterable[tuple[int, int]]) -> list[Bytes]:
        """What is taken at some step from the first to the last of any of these, in order."""
        found: set[Bytes] = set()
        above = set()
        for first, last in times:
            for stretch in self._stretches(first, last):
                found.update(self.somewhere.get(stretch, ()))
                while stretch and stretch not in above:
                    above.add(stretch)
                    stretch >>= 1
        for stretch in above:
            found.update(self.throughout.get(stretch, ()))
        return sorted(found)

    def _stretches(self, first: int, last: int) -> Iterator[int]:
        """The largest stretches that make up the steps from the first to the last."""
        low, high = first + self.leaves, last + self.leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1


def _unite(taken: list[Bytes], low: int, high: int) -> None:
    """Add to bytes that are in order and do not touch each other."""
    start = bisect_left(taken, (low,))
    if start and taken[start - 1][1] >= low:
        start -= 1
        low = taken[start][0]
    stop = start
    while stop < len(taken) and taken[stop][0] <= high:
        high = max(high, taken[stop][1])
        stop += 1
    taken[start:stop] = [(low, high)]


__all__ = ["ALIGNMENT", "NO_WORKSPACE", "Placement", "Span", "Workspace", "bytes_of", "place", "size_of"]
