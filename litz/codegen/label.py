"""Steps in words: what one does, and where the user wrote it.

In: a step, and the operators that the program was lowered from, by name. Out: a line for profilers, such as
`litz: convolution, relu (resnet.py:145)`; and a name of letters, for the functions that a GPU's tools show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from litz.errors import user_line
from litz.loop.ir import Call, Step
from litz.ops.lower import Origin

_MOST_WORDS, _MOST_PLACES = 6, 2
_PLACE = re.compile(r"(.*?):(\d+)")


class Label(NamedTuple):
    """What is done, each operator once, in order; and the files and lines, without folders."""

    what: tuple[str, ...]
    where: tuple[str, ...]
    called: bool = False

    def __str__(self) -> str:
        what = ("call " if self.called else "") + _some(self.what, _MOST_WORDS)
        return f"litz: {what}" + (f" ({_some(self.where, _MOST_PLACES)})" if self.where else "")

    @property
    def word(self) -> str:
        """The same for a function's name, as far as that can say it."""
        words = [*self.what[:_MOST_WORDS], *self.where[:1]]
        return re.sub(r"\W+|__+", "_", "_".join(words)).strip("_")


def label(step: Step, origins: Mapping[str, Origin]) -> Label:
    known = [origins[name] for name in step.origins if name in origins]
    if isinstance(step, Call):
        what = [step.target.split("::")[-1]]
    else:
        what = [origin.operator for origin in known] or [step.name]
    where = [_place(origin.trace) for origin in known]
    return Label(tuple(dict.fromkeys(what)), tuple(dict.fromkeys(filter(None, where))), isinstance(step, Call))


def label_of_batch(labels: Sequence[Label]) -> Label:
    """Of steps that run side by side."""
    what = dict.fromkeys(word for one in labels for word in one.what)
    where = dict.fromkeys(place for one in labels for place in one.where)
    return Label(tuple(what), tuple(where), labels[0].called)


def _place(trace: str | None) -> str:
    """The file, without its folder, and the line."""
    found = _PLACE.match(user_line(trace) or "")
    return f"{PurePath(found[1]).name}:{found[2]}" if found else ""


def _some(words: Sequence[str], most: int) -> str:
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


__all__ = ["Label", "label", "label_of_batch"]
