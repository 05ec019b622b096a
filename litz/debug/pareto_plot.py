"""A curve of peak over time as a picture: SVG by hand, PNG by matplotlib where that is installed.

In: a `Pareto`. Out: SVG text, or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from litz.errors import OptionError

if TYPE_CHECKING:
    from litz.debug.pareto import Pareto, Point

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 24, 48, 56
COLOURS = {"litz": "#0b6e4f", "eager": "#444444", "checkpoint": "#8a5a00", "inductor": "#b03060"}
_TICKS = 6


def svg(pareto: Pareto) -> str:
    points = [p for p in pareto.points if p.bytes is not None and p.seconds is not None]
    across = _Axis([p.bytes / 2**20 for p in points], LEFT, WIDTH - RIGHT)  # type: ignore[operator]
    upward = _Axis([p.seconds * 1e3 for p in points], HEIGHT - BOTTOM, TOP)  # type: ignore[operator]

    def place(point: Point) -> tuple[float, float]:
        return across.at(point.bytes / 2**20), upward.at(point.seconds * 1e3)  # type: ignore[operator]

    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {font}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">Peak and time of a training step, {escape(pareto.machine)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">peak, MiB</text>',
        f'<text x="16" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2})">step, ms</text>',
    ]
    for tick in across.ticks:
        x = across.at(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:,.4g}</text>')
    for tick in upward.ticks:
        y = upward.at(tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,.4g}</text>')
    line = " ".join("{:.1f},{:.1f}".format(*place(p)) for p in pareto.front)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS["litz"]}" stroke-width="2"/>')
    for point in points:
        x, y = place(point)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[point.way]}">'
            f"<title>{escape(told(point))}</title></circle>"
        )
    for number, way in enumerate(_ways(points)):
        x = LEFT + 110 * number
        parts.append(
            f'<circle cx="{x + 4}" cy="34" r="4" fill="{COLOURS[way]}"/><text x="{x + 14}" y="38">{way}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def png(pareto: Pareto, path: Path) -> None:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise OptionError("a PNG is drawn by matplotlib, which is not installed", hint='save("curve.svg")') from None
    points = [p for p in pareto.points if p.bytes is not None and p.seconds is not None]
    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100))
    axes = figure.subplots()
    for way in _ways(points):
        mine = [p for p in points if p.way == way]
        axes.scatter([p.bytes / 2**20 for p in mine], [p.seconds * 1e3 for p in mine], color=COLOURS[way], label=way)  # type: ignore[operator]
    front = pareto.front
    axes.plot([p.bytes / 2**20 for p in front], [p.seconds * 1e3 for p in front], color=COLOURS["litz"])  # type: ignore[operator]
    axes.set(xlabel="peak, MiB", ylabel="step, ms", title=f"Peak and time of a training step, {pareto.machine}")
    axes.grid(color="#e4e4e4")
    axes.legend()
    figure.savefig(path, dpi=150)


def told(point: Point) -> str:
    """A point in words."""
    how = "measured" if point.predicted_bytes is None else "predicted"
    return f"{point.name}: {point.bytes or 0:,} bytes, {(point.seconds or 0.0) * 1e3:.2f} ms, {how}"


def _ways(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(p.way for p in points))


class _Axis:
    """Numbers to pixels, with some room on both sides; ticks are 1, 2 or 5 times a power of ten apart."""

    def __init__(self, values: Sequence[float], first: float, last: float):
        low, high = min(values), max(values)
        room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        self.low, self.high, self.first, self.last = low - room, high + room, first, last
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** (
            len(str(int(rough))) - 1 if rough >= 1 else -next(i for i in range(1, 30) if rough * 10**i >= 1)
        )
        step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
        start = int(self.low // step) + 1
        self.ticks = [step * k for k in range(start, int(self.high // step) + 1)]

    def at(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)


__all__ = ["png", "svg", "told"]
