"""What programs may be left to eager for. Anything else left to eager fails."""

from __future__ import annotations

import re

# What the note says -> why that is as it is.
REASONS: dict[str, str] = {
    "as_strided counts from the start of the storage": "no intermediate has eager's storage, and no input's is guarded",
    "as_strided.* is non-compositional": "functionalisation cannot write through as_strided on a view",
    "as_strided looks .*between": "a functional graph has the elements of a tensor, and no memory between them",
    "of which several elements are one": "of values none is in two places: what is put into one is lost, or rounded",
    "called inside a transform": "torch 2.11 breaks the graph between a transform and the pullback it gave",
}


def reason_for(message: str) -> str | None:
    return next((why for pattern, why in REASONS.items() if re.search(pattern, message)), None)


__all__ = ["REASONS", "reason_for"]
