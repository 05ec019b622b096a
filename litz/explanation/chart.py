"""The memory of a step as lines of a drawing: bytes at each step, and how long the largest tensors are held.

In: `Memory`. Out: a `Chart`: points, bars and labels, in the units of an SVG of a fixed width.
"""

from __future__ import annotations

from typing import NamedTuple

from litz.explanation.explanation import Memory
from litz.explanation.units import in_bytes

WIDTH, HEIGHT, ROW = 1000, 200, 16
_BARS = 10
_TICKS = 4


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    label: str
    line: str | None


class Tick(NamedTuple):
    y: float
    label: str


class Chart(NamedTuple):
    height: int
    area: str  # a path
    outline: str
    peak_x: float
    peak_y: float
    divisions: tuple[tuple[float, str], ...]  # where each part begins
    ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...]


def chart(memory: Memory) -> Chart:
    steps = max(1, len(memory.held))
    most = max(memory.peak, 1)
    across = WIDTH / steps

    def y(count: float) -> float:
        return round(HEIGHT - (HEIGHT - 14) * count / most, 1)

    outline = "".join(
        f"{'M' if at == 0 else 'L'}{at * across:.1f} {y(count)}L{(at + 1) * across:.1f} {y(count)}"
        for at, count in enumerate(memory.held)
    )
    begins, divisions = 0, []
    for part in memory.parts:
        divisions.append((round(begins * across, 1), part.name))
        begins += part.steps
    bars = []
    for row, tensor in enumerate(memory.at_peak[:_BARS]):
        last = min(tensor.last, steps - 1)
        width = max((last - tensor.first + 1) * across, 2.0)
        label = f"{in_bytes(tensor.bytes)} {tensor.made_by}"
        bars.append(Bar(round(tensor.first * across, 1), HEIGHT + 10 + row * ROW, round(width, 1), label, tensor.line))
    ticks = tuple(Tick(y(most * n / _TICKS), in_bytes(most * n / _TICKS)) for n in range(1, _TICKS + 1))
    return Chart(
        HEIGHT + 12 + ROW * len(bars), f"{outline}L{WIDTH} {HEIGHT}L0 {HEIGHT}Z", outline,
        round((memory.peak_at + 0.5) * across, 1), y(memory.peak), tuple(divisions), ticks, tuple(bars),
    )  # fmt: skip


__all__ = ["Chart", "chart"]
