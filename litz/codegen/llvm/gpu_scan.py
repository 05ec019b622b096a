"""Scan a row that a team of threads shares: what all steps up to each make.

In: the steps that a thread has, vector by vector, and what those before the team's made. Out: the same steps, scanned.
`litz/codegen/scanned.py` says the same in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.codegen.llvm.functions import joined, part_of
from litz.codegen.llvm.reduction import running
from litz.codegen.llvm.writer import Operand, Writer, literal
from litz.loop.ir import identity

# Of what each thread of the team has: what those before this one make, and what all make.
BeforeMe = Callable[[str, Sequence[Operand]], "list[tuple[Operand, Operand]]"]


def scan_vectors(
    w: Writer, kind: str, carry: Operand, vectors: Sequence[Operand], before_me: BeforeMe | None
) -> tuple[list[Operand], Operand]:
    """The vectors, which lie one behind the other in the row, and what is carried on. `before_me`: None of a thread
    that has a row to itself."""
    if before_me is None:
        found = []
        for vector in vectors:
            lanes = _scan_lanes(w, kind, vector, carry)
            found.append(joined(w, lanes))
            carry = lanes[-1]
        return found, carry
    own = [_scan_lanes(w, kind, vector, None) for vector in vectors]
    found = []
    for lanes, (before, whole) in zip(own, before_me(kind, [lanes[-1] for lanes in own]), strict=True):
        start = running(w, kind, carry, before)
        found.append(joined(w, [running(w, kind, start, lane) for lane in lanes]))
        carry = running(w, kind, carry, whole)
    return found, carry


def _scan_lanes(w: Writer, kind: str, vector: Operand, last: Operand | None) -> list[Operand]:
    found: list[Operand] = []
    for lane in range(vector.lanes):
        one = part_of(w, vector, lane, 1)
        last = one if last is None else running(w, kind, last, one)
        found.append(last)
    return found


def before_thread(
    w: Writer, kind: str, total: Operand, thread: str, threads: int, shuffled: Callable[[Operand, int], Operand]
) -> tuple[Operand, Operand]:
    """What the totals of the threads before this one make, and what all make: threads are joined in pairs, pairs of
    pairs and so on, of which the second half learns what the first has. `shuffled`: that of another thread."""
    before = Operand(literal(identity(kind, total.dtype), total.dtype), total.dtype, 1)
    t, step = total.type, 1
    while step < threads:
        other = shuffled(total, step)
        second = w.let(f"icmp ne i32 {w.let(f'and i32 {thread}, {step}')}, 0")
        later = other if step == 1 else running(w, kind, other, before)
        before = before._replace(text=w.let(f"select i1 {second}, {t} {later.text}, {t} {before.text}"))
        halves = [
            total._replace(text=w.let(f"select i1 {second}, {t} {a.text}, {t} {b.text}"))
            for a, b in ((other, total), (total, other))
        ]
        total = running(w, kind, *halves)
        step *= 2
    return before, total


__all__ = ["BeforeMe", "before_thread", "scan_vectors"]
