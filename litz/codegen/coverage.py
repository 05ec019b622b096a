"""Whether a walk over a kernel's loops comes by every point, once.

In: the points that it comes by, some at a time. Out: nothing, or a `PlanError` that names the first point that was
missed, met again, or is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from litz.errors import PlanError
from litz.loop.expr import Axis


class Coverage:
    def __init__(self, where: str, extent: Mapping[Axis, int]):
        self._where, self._extent = where, extent
        self._count: np.ndarray = np.zeros(tuple(extent.values()), np.int64)

    def add(self, axes: Mapping[Axis, np.ndarray], live: np.ndarray | None) -> None:
        """The points where `axes`, which broadcast, stand; only those that are live."""
        everywhere = np.ones((), bool) if live is None else live
        *points, there = np.broadcast_arrays(*(axes[axis] for axis in self._extent), everywhere)
        at = tuple(point[there] for point in points)
        for (axis, size), place in zip(self._extent.items(), at, strict=True):
            outside = place[(place < 0) | (place >= size)]
            if len(outside):
                raise PlanError(f"{self._where}: {axis.name} = {outside[0]} is computed, and there are {size}")
        np.add.at(self._count, at, 1)

    def check(self) -> None:
        wrong = np.argwhere(self._count != 1)
        if not len(wrong):
            return
        point = ", ".join(f"{axis.name} = {i}" for axis, i in zip(self._extent, wrong[0], strict=True))
        times = self._count[tuple(wrong[0])]
        raise PlanError(
            f"{self._where}: {point or 'the one point'} is computed {f'{times} times' if times else 'never'}; "
            f"of {self._count.size} points, {len(wrong)} are not computed once"
        )


__all__ = ["Coverage"]
