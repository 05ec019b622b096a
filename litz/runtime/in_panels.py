"""Packing a constant, once, as the micro-kernel of products reads it.

In: a tensor, and how a product sees it (`InPanels`). Out: its elements in panels (`loop/panels.py` has the places).
"""

from __future__ import annotations

import torch

from litz.capture.apart import apart_from_caller
from litz.ops.held import InPanels


def in_panels(constant: torch.Tensor, how: InPanels) -> torch.Tensor:
    panels = how.panels
    with apart_from_caller():
        matrix = constant.as_strided(how.sizes, how.strides, constant.storage_offset() + how.offset)
        lines = matrix.reshape(panels.lines, panels.inner, panels.columns)
        room = lines.new_zeros(panels.lines, panels.padded * panels.group, panels.count * panels.width)
        room[:, : panels.inner, : panels.columns] = lines
        words = room.reshape(panels.depth, panels.group, panels.count, panels.width)
        return words.permute(2, 0, 3, 1).reshape(-1)


__all__ = ["in_panels"]
