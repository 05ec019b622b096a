"""The questions that people ask, answered from an `Explanation`; each answer leads to the place that has all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from litz.explanation.explanation import Explanation, Memory, Piece, Step, Tensor
from litz.explanation.units import in_bytes, in_time
from litz.report import Break

_WHYS = {"library": "left to the library"}
_MOST = 8  # points of an answer


class Point(NamedTuple):
    """One thing to know: the user's line it is about, and the part of the page that has more."""

    text: str
    line: str | None = None
    anchor: str | None = None
    more: str = ""


class Answer(NamedTuple):
    key: str
    question: str
    short: str
    points: tuple[Point, ...] = ()


def answers(explanation: Explanation) -> tuple[Answer, ...]:
    found = [_attention(explanation), _recompiles(explanation), _peak(explanation), _breaks(explanation)]
    found += [_eager(explanation), _time(explanation), _cache(explanation)]
    if any(piece.budget for piece in explanation.pieces):
        found.append(_budget(explanation))
    return tuple(found)


def _attention(explanation: Explanation) -> Answer:
    question = "Why was my attention not fused?"
    rules = frozenset(explanation.attention_rules)
    calls = [
        Point(step.does[0].removeprefix("aten::"), _first(step.lines), f"p{piece.number}-s{at}")
        for piece, at, step in _steps(explanation)
        if step.kind == "call" and "attention" in step.does[0] and step.part == "forward"
    ]
    alike: dict[tuple[str, str | None], list[Point]] = {}
    for point in calls:
        alike.setdefault((point.text, point.line), []).append(point)
    fused = [
        found[0]._replace(text=f"{found[0].text}{f' × {len(found)}' if len(found) > 1 else ''}")
        for found in alike.values()
    ]
    near = [(piece, miss) for piece in explanation.pieces for miss in piece.near_misses if miss.rule in rules]
    nearest_first = sorted(near, key=lambda found: -found[1].matched)
    misses = list({(miss.why, miss.source): (piece, miss) for piece, miss in reversed(nearest_first)}.values())[::-1]
    points = [
        Point(f"{miss.rule} matched {_nodes(miss.matched)}, then stopped at {miss.node}: {miss.why}",
              miss.source, f"p{piece.number}-rules")
        for piece, miss in misses
    ]  # fmt: skip
    if fused:
        more = "; other places came near" if points else ""
        return Answer(
            "attention", question, f"It was: {_times(len(calls))} a run{more}.", tuple((fused + points)[:_MOST])
        )
    if not points:
        return Answer("attention", question, "No attention was found: no rule came near to one.")
    nearest = misses[0][1]
    short = f"At {_place(nearest.source)}: {nearest.why}." if nearest.source else f"{nearest.why}."
    return Answer("attention", question, short, tuple(points[:_MOST]))


def _recompiles(explanation: Explanation) -> Answer:
    question = "Why did it recompile?"
    found = [piece for piece in explanation.pieces if piece.again]
    if not found:
        return Answer("recompile", question, "It did not: every function was compiled once.")
    points = tuple(Point(_reason(piece.why), piece.source, f"p{piece.number}") for piece in found)
    short = points[0].text if len(found) == 1 else f"{_times(len(found))}; the first time: {points[0].text}"
    return Answer("recompile", question, short, points[:_MOST])


def _reason(why: str) -> str:
    return re.sub(r"^\d+/\d+: ", "", why.strip())


def _peak(explanation: Explanation) -> Answer:
    question = "Which tensor sets the peak?"
    pieces = [(piece.memory.peak, piece, piece.memory) for piece in explanation.pieces if piece.memory is not None]
    largest = max(pieces, key=lambda found: found[0], default=None)
    if largest is None or largest[0] == 0:
        return Answer("peak", question, "None: no program holds memory beyond its arguments.")
    peak, piece, memory = largest
    held = memory.at_peak  # of the arena, and beside it
    points = tuple(Point(_tensor(t), t.line, f"p{piece.number}-memory") for t in held[:_MOST])
    short = f"{in_bytes(peak)} at the peak, beside {in_bytes(memory.arguments)} of arguments"
    if held:
        short = f"{_tensor(held[0])}, of {short}"
    return Answer("peak", question, f"{short}; {_when(memory)}.", points)


def _tensor(tensor: Tensor) -> str:
    return f"{in_bytes(tensor.bytes)} made by {tensor.made_by.removeprefix('aten::')} ({tensor.name})"


def _when(memory: Memory) -> str:
    at = memory.peak_at
    for part in memory.parts:
        if at < part.steps:
            return f"in step {at} of the {part.name}"
        at -= part.steps
    return "at the end"


def _breaks(explanation: Explanation) -> Answer:
    question = "Why is it in several pieces?"
    found = [(piece.ends, f"p{piece.number}") for piece in explanation.pieces if piece.ends is not None]
    rest = [(one, None) for one in explanation.breaks]
    points = tuple(Point(title_of(one), one.source, anchor, _hints(one)) for one, anchor in [*found, *rest])
    if not points:
        count = len(explanation.pieces)
        return Answer("breaks", question, "It is in one." if count == 1 else f"No graph break; {count} compiles.")
    number = len(found)
    short = f"{number} graph break{'s' * (number != 1)}" if number else "Functions were given up"
    return Answer("breaks", question, f"{short}. First: {points[0].text}.", points[:20])


def title_of(one: Break) -> str:
    """The first line of what Dynamo says."""
    return one.why.strip().splitlines()[0].rstrip(".") if one.why.strip() else "no reason is given"


def _hints(one: Break) -> str:
    found = re.findall(r"(?:Explanation|Hint): (.*)", one.why)
    return " ".join(hint for hint in found if "report an issue" not in hint and "File an issue" not in hint)


def _eager(explanation: Explanation) -> Answer:
    question = "What was left to eager or called, and why?"
    left = [
        Point(f"left to eager: {piece.left_to_eager}", piece.source, f"p{piece.number}")
        for piece in explanation.pieces
        if piece.left_to_eager
    ]
    fallen = [
        Point(f"{one.operator} is called as it is: {one.why}", one.source, f"p{piece.number}-notes")
        for piece in explanation.pieces
        for one in piece.fallbacks
    ]
    called: dict[tuple[str, str], list[Point]] = {}
    for piece, at, step in _steps(explanation):
        if step.kind == "call":
            point = Point(step.does[0].removeprefix("aten::"), _first(step.lines), f"p{piece.number}-s{at}")
            called.setdefault((step.does[0], step.why), []).append(point)
    libraries = [
        points[0]._replace(text=f"{points[0].text} × {len(points)}" + (f": {_WHYS.get(why, why)}" if why else ""))
        for (_, why), points in called.items()
    ]
    if not (left or libraries or fallen):
        return Answer("eager", question, "Nothing: all of it is generated code.")
    calls = sum(map(len, called.values()))
    short = f"{len(left)} graph{'s' * (len(left) != 1)} left to eager; {calls} operator calls."
    return Answer("eager", question, short, tuple(_once([*left, *fallen, *libraries]))[: 2 * _MOST])


def _time(explanation: Explanation) -> Answer:
    """Steps that do the same, for the same line, count together: layers of a model do."""
    question = "Where does the time go?"
    total = sum(piece.microseconds for piece in explanation.pieces)
    alike: dict[tuple, list[tuple[Piece, int, Step]]] = {}
    for piece, at, step in _steps(explanation):
        if step.microseconds is not None:
            alike.setdefault((step.does, step.lines, step.shape, step.part), []).append((piece, at, step))
    if not alike or not total:
        return Answer("time", question, "Nothing was timed: no program ran.")

    def spent(found: list[tuple[Piece, int, Step]]) -> float:
        return sum((step.microseconds or 0.0) * step.calls for _, _, step in found)

    points = []
    for found in sorted(alike.values(), key=spent, reverse=True)[:_MOST]:
        piece, at, step = max(found, key=lambda one: one[2].microseconds or 0.0)
        times = f" × {len(found)}" if len(found) > 1 else ""
        backward = ", in the backward" if step.part == "backward" else ""
        mean = sum(one.microseconds or 0.0 for _, _, one in found) / len(found)
        each = " each, on average" if len(found) > 1 else ""
        text = f"{spent(found) / total:.1%}: {_words(step)}{times}{backward}, {in_time(mean)}{each}"
        points.append(Point(text, _first(step.lines), f"p{piece.number}-s{at}"))
    return Answer("time", question, f"{points[0].text}.", tuple(points))


def _cache(explanation: Explanation) -> Answer:
    question = "Did the cache help?"
    points = [
        Point(text, piece.source, f"p{piece.number}-notes") for piece in explanation.pieces for text in piece.cache
    ]
    if not points:
        return Answer("cache", question, "It was not asked: it is switched off, or nothing was compiled.")
    hits = sum(point.text.startswith("in the cache;") for point in points)
    short = f"{hits} of {len(explanation.pieces)} graphs are in it"
    missed = next((point.text for point in points if not point.text.startswith("in the cache;")), None)
    return Answer("cache", question, f"{short}." if missed is None else f"{short}; {missed}.", tuple(points[:_MOST]))


def _budget(explanation: Explanation) -> Answer:
    question = "What does the memory budget cost?"
    points = [
        Point(note, piece.source, f"p{piece.number}-notes")
        for piece in explanation.pieces
        for note in piece.notes
        if note.startswith("memory_budget")
    ]
    asked = next((piece for piece in explanation.pieces if piece.budget), None)
    curve = next((piece for piece in explanation.pieces if piece.choices), None)
    if curve is not None:
        most, least = curve.choices[0], curve.choices[-1]
        told = f"from {in_bytes(most.bytes)} down to {in_bytes(least.bytes)} beyond arguments there is a choice"
        points.append(Point(told, curve.source, f"p{curve.number}-choices"))
    short = points[0].text if points else f"memory_budget={asked.budget if asked else None} changed nothing"
    return Answer("budget", question, f"{short}.", tuple(points))


def _steps(explanation: Explanation) -> Iterator[tuple[Piece, int, Step]]:
    for piece in explanation.pieces:
        for at, step in enumerate(piece.steps):
            yield piece, at, step


def _words(step: Step) -> str:
    return ", ".join(name.removeprefix("aten::") for name in step.does)


def _first(lines: tuple[str, ...]) -> str | None:
    return lines[0] if lines else None


def _once(points: Iterable[Point]) -> list[Point]:
    return list(dict.fromkeys(points))


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _place(line: str | None) -> str:
    found = re.match(r"(?:.*/)?([^/]*?:\d+)", line or "")
    return found[1] if found else ""


__all__ = ["Answer", "Point", "answers", "title_of"]
