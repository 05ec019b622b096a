"""Loops along the vector axis.

In: its bounds. Out: where each thread's vectors begin, how many stand side by side, and what is live of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.codegen.llvm.writer import Operand, Writer


def vectors(
    w: Writer, lanes: int, start: str, stop: str, copies: int, team: int = 1, me: str = "0", divided: bool = False
) -> Iterator[tuple[str, int, Operand | None]]:
    """Loops from `start` to `stop`: several vectors at a time, then one at a time with the mask of its live lanes. Of a
    team, thread `me` has every `team`th vector; all its threads go round equally often. `divided`: by whole vectors."""
    one = lanes * team
    step = copies * one
    mine = w.mul(me, str(lanes))
    if start.isdigit() and stop.isdigit():
        length = int(stop) - int(start)
        whole = length - length % step
        if whole:
            with w.loop(start, str(int(start) + whole), step) as v:
                yield w.add(v, mine), copies, None
        if whole < length:
            with w.loop(str(int(start) + whole), stop, one) as v:
                v = w.add(v, mine)
                yield v, 1, live_of(w, v, stop, lanes, divided, ragged=length % one != 0)
        return
    length_text = w.let(f"sub i64 {stop}, {start}")
    if step & (step - 1):
        rest = w.let(f"urem i64 {length_text}, {step}")
        middle = w.let(f"sub i64 {stop}, {rest}")
    else:
        middle = w.add(start, w.let(f"and i64 {length_text}, {-step}"))
    with w.loop(start, middle, step) as v:
        yield w.add(v, mine), copies, None
    with w.loop(middle, stop, one) as v:
        v = w.add(v, mine)
        yield v, 1, live_of(w, v, stop, lanes, divided)


def vectors_in_order(
    w: Writer, lanes: int, start: str, stop: str, copies: int, team: int, me: str, divided: bool
) -> Iterator[tuple[str, int, tuple[Operand | None, ...]]]:
    """The same for steps that are taken in order, where each round has the threads wait for one another: what is left
    over at the end is one round too, if its length is known. Out: the masks of all vectors, or one for all."""
    one, step = lanes * team, copies * lanes * team
    if not (start.isdigit() and stop.isdigit()):
        for v, count, mask in vectors(w, lanes, start, stop, copies, team, me, divided):
            yield v, count, (mask,)
        return
    mine, begin, end = w.mul(me, str(lanes)), int(start), int(stop)
    whole = begin + (end - begin) // step * step
    if whole > begin:
        with w.loop(start, str(whole), step) as v:
            yield w.add(v, mine), copies, (None,)
    if whole < end:
        count = -(-(end - whole) // one)
        v = w.add(str(whole), mine)
        last = live_of(w, w.add(v, str((count - 1) * one)), stop, lanes, divided, ragged=(end - whole) % one != 0)
        yield v, count, (*[None] * (count - 1), last)


def live_of(w: Writer, v: str, stop: str, lanes: int, whole: bool, ragged: bool = True) -> Operand | None:
    """What is live of the vector at `v`: where vectors divide the axis, all of one is, or nothing."""
    if not ragged:
        return None
    if whole or lanes == 1:
        return Operand(w.let(f"icmp slt i64 {v}, {stop}"), "b1", 1)
    return w.lanes_below(v, stop, lanes)


__all__ = ["live_of", "vectors", "vectors_in_order"]
