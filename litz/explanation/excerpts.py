"""The user's files, where kernels come from: those lines, and what stands around them.

In: pieces. Out: `Excerpt`s, which the page shows beside the kernels.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence

from litz.explanation.explanation import Excerpt, Piece
from litz.report import Break

_AROUND = 2  # lines before and after
_PLACE = re.compile(r"(.*?):(\d+)(?:: |$)")


def place_of(line: str) -> tuple[str, int] | None:
    """File and number of "file:line: code"."""
    found = _PLACE.match(line)
    return None if found is None else (found[1], int(found[2]))


def excerpts_for(pieces: Sequence[Piece], breaks: Sequence[Break]) -> tuple[Excerpt, ...]:
    wanted: dict[str, set[int]] = {}
    for line in (*_lines(pieces), *(one.source for one in breaks if one.source)):
        place = place_of(line)
        if place is not None:
            wanted.setdefault(place[0], set()).update(range(place[1] - _AROUND, place[1] + _AROUND + 1))
    found = []
    for file, numbers in wanted.items():
        text = linecache.getlines(file)
        lines = tuple((n, text[n - 1].rstrip("\n")) for n in sorted(numbers) if 1 <= n <= len(text))
        if lines:
            found.append(Excerpt(file, lines))
    return tuple(found)


def _lines(pieces: Sequence[Piece]) -> Iterator[str]:
    for piece in pieces:
        for step in piece.steps:
            yield from step.lines
        yield from (line for line in (piece.source, piece.ends and piece.ends.source) if line)
        yield from (miss.source for miss in piece.near_misses if miss.source)
        yield from (fallback.source for fallback in piece.fallbacks if fallback.source)


__all__ = ["excerpts_for", "place_of"]
