"""Graph breaks: what Dynamo says of them, put beside the pieces that end with them.

In: pieces, and what Dynamo has counted meanwhile. Out: the pieces, and the breaks that none of them ends with: where
Dynamo gave a whole function up, for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.explanation.explanation import Piece
from litz.report import Break

_BRANCH = "Data-dependent branching"
_BRIEF = "generic_jump"  # what a graph that ends at a branch has for a reason: Dynamo counts it under a better one


def counted_breaks() -> dict[str, int]:
    from torch._dynamo.utils import counters

    return {**counters["unimplemented"], **counters["graph_break"]}


def counted_since(before: Mapping[str, int]) -> list[str]:
    """Each reason once; one that was met while another was handled is told with that one."""
    found = [why for why, count in counted_breaks().items() if count > before.get(why, 0)]
    return [why for why in found if not any(why != other and other.startswith(why.strip()) for other in found)]


def with_breaks(pieces: Sequence[Piece], counted: Sequence[str]) -> tuple[tuple[Piece, ...], tuple[Break, ...]]:
    left = list(counted)
    found = []
    for piece in pieces:
        ends = piece.ends
        why = None if ends is None else next((one for one in left if _are_same(ends, one)), None)
        if ends is not None and why is not None:
            piece = replace(piece, ends=Break(why, ends.source))
        found.append(piece)
    told = {piece.ends.why for piece in found if piece.ends is not None}
    return tuple(found), tuple(Break(why, _source(why)) for why in left if why not in told)


def _are_same(ends: Break, counted: str) -> bool:
    if not ends.why.startswith(_BRIEF):
        return _first_words(ends.why) == _first_words(counted)
    place = re.match(r"(.*?):(\d+)", ends.source or "")
    if counted.startswith(_BRANCH) and 'File "' not in counted:
        return True  # older versions count all branches under one reason, which names no line
    return place is not None and f'File "{place[1]}", line {place[2]},' in counted


def _source(why: str) -> str | None:
    """Dynamo names a function that was given up in its words, or a line."""
    found = re.search(r"frame skipped: (?P<code>\S+) \((?P<file>.+) line (?P<line>\d+)\)", why)
    found = found or re.search(r'File "(?P<file>[^"]+)", line (?P<line>\d+).*?code: (?P<code>.*)', why)
    return None if found is None else f"{found['file']}:{found['line']}: {found['code']}"


def _first_words(why: str) -> str:
    return re.sub(r"\s+", " ", why).strip()[:80]


__all__ = ["counted_breaks", "counted_since", "with_breaks"]
