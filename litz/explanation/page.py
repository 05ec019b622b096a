"""The page: an `Explanation` as one HTML file, which needs no network; and the data of such a file, read back.

What people read first is in the HTML itself; texts of stages, kernels and machine code are compressed beside it, and
shown by the page's own script when asked for.
"""

from __future__ import annotations

import base64
import gzip
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from litz.errors import ParseError
from litz.explanation.answers import answers, title_of
from litz.explanation.chart import chart
from litz.explanation.encode import from_json, to_json
from litz.explanation.excerpts import place_of
from litz.explanation.explanation import Explanation, Piece, Stage
from litz.explanation.units import in_bytes, in_flops, in_time

_HERE = Path(__file__).parent
_DATA = re.compile(r'<script type="application/gzip" id="data">([^<]*)</script>')


def page(explanation: Explanation) -> str:
    data = gzip.compress(to_json(explanation).encode(), mtime=0)
    return _template().render(
        it=explanation,
        answers=answers(explanation),
        total=sum(piece.microseconds for piece in explanation.pieces) or None,
        heat=_Heat.of(explanation),
        data=base64.b64encode(data).decode(),
        style=(_HERE / "page.css").read_text(),
        script=(_HERE / "page.js").read_text(),
    )


def write_page(explanation: Explanation, path: Path) -> None:
    path.write_text(page(explanation), encoding="utf-8")


def read_page(path: Path) -> Explanation:
    """The explanation that a page was made of. One that another version made is refused."""
    found = _DATA.search(path.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise ParseError(f"{path} is not a page of `litz explain`: it has no data of one")
    try:
        text = gzip.decompress(base64.b64decode(found[1])).decode()
    except (OSError, EOFError, ValueError) as error:
        raise ParseError(f"the data in {path} is damaged: {error}") from error
    return from_json(text)


@dataclass(frozen=True)
class _Heat:
    """Of each of the user's lines: its share of the time, and the steps that come from it. A step of several lines is
    shared out evenly."""

    share: dict[tuple[str, int], float]
    steps: dict[tuple[str, int], list[str]]

    @property
    def most(self) -> float:
        """The largest share: its bar is as long as there is room."""
        return max(self.share.values(), default=0.0) or 1.0

    @staticmethod
    def of(explanation: Explanation) -> _Heat:
        share: dict[tuple[str, int], float] = defaultdict(float)
        steps: dict[tuple[str, int], list[str]] = defaultdict(list)
        total = sum(piece.microseconds for piece in explanation.pieces) or 1.0
        for piece in explanation.pieces:
            for at, step in enumerate(piece.steps):
                for line in step.lines:
                    place = place_of(line)
                    if place is not None:
                        share[place] += (step.microseconds or 0.0) * step.calls / total / len(step.lines)
                        steps[place].append(f"p{piece.number}-s{at}")
        return _Heat(share, steps)


def _largest_share(piece: Piece, total: float | None) -> float:
    """Of the piece's steps: its bar is as long as there is room."""
    found = max(((step.microseconds or 0.0) * step.calls for step in piece.steps), default=0.0)
    return found / total if total and found else 1.0


class _StageRow(NamedTuple):
    """A run of a stage, and the text before it."""

    stage: Stage
    before: int | None

    @property
    def changed(self) -> bool:
        return self.stage.text is not None and self.stage.text != self.before


def _stage_rows(piece: Piece) -> list[_StageRow]:
    found: list[_StageRow] = []
    last: dict[str, int | None] = {}  # of a part, its latest text
    for stage in piece.stages:
        before = last.get(stage.part, last.get(""))
        if stage.name == "render":
            before = None  # another language
        found.append(_StageRow(stage, before))
        if stage.text is not None:
            last[stage.part] = stage.text
            if stage.name == "split":
                last[""] = stage.text
    return found


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters.update(
        bytes=in_bytes,
        flops=in_flops,
        time=in_time,
        share=lambda part: f"{part:.1%}" if part >= 0.0005 else "<0.1%",
        place=_place,
        source_id=_source_id,
        code=lambda line: (line or "").partition(": ")[2],
        file=lambda path: path.rpartition("/")[2],
        operator=lambda name: name.removeprefix("aten::"),
    )
    environment.globals.update(
        chart=chart, largest_share=_largest_share, stage_rows=_stage_rows, title_of=title_of, place_of=place_of
    )
    return environment.get_template("page.html")


def _source_id(line: str) -> str:
    """Where the page has the line among the user's files: a name may be that of several."""
    place = place_of(line)
    return "" if place is None else f"src-{place[0]}:{place[1]}".replace(" ", "_")


def _place(line: str | None) -> str:
    """The file without its folders, and the line."""
    place = place_of(line or "")
    return "" if place is None else f"{place[0].rpartition('/')[2]}:{place[1]}"


__all__ = ["page", "read_page", "write_page"]
