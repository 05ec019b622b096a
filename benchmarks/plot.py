"""The loss curves of a training benchmark as a picture.

`python -m benchmarks.plot` reads `benchmarks/training.json` and writes `docs/loss.svg`: the curves above, and below
how far each float32 run is from eager in float64, where a difference would show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, MARGIN = 640, 220, 56
COLOURS = {"eager": "#d55e00", "litz": "#0072b2", "eager in float64": "#999999"}
DASHES = {"eager": "", "litz": "6 4", "eager in float64": "2 3"}


def svg(curves: Mapping[str, Sequence[float]]) -> str:
    exact = curves["eager in float64"]
    apart = {
        name: [abs(a - b) for a, b in zip(values, exact, strict=True)]
        for name, values in curves.items()
        if values is not exact
    }
    parts = [*_panel("loss", curves, 0), *_panel("distance from float64", apart, HEIGHT)]
    size = f'width="{WIDTH}" height="{2 * HEIGHT}" viewBox="0 0 {WIDTH} {2 * HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{2 * HEIGHT}" fill="white"/>', *parts, "</svg>", ""])


def _panel(title: str, curves: Mapping[str, Sequence[float]], top: int) -> list[str]:
    highest = max(max(values) for values in curves.values()) or 1.0
    steps = len(next(iter(curves.values())))
    left, right, bottom, upper = MARGIN, WIDTH - 12, top + HEIGHT - 28, top + 24
    lines = [
        f'<text x="{left}" y="{top + 16}">{title}</text>',
        f'<path d="M{left} {upper}V{bottom}H{right}" fill="none" stroke="black"/>',
        f'<text x="{left - 6}" y="{upper + 4}" text-anchor="end">{highest:.2g}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">step {steps}</text>',
    ]
    for number, (name, values) in enumerate(curves.items()):
        points = " ".join(
            f"{left + (right - left) * i / (steps - 1):.1f},{bottom - (bottom - upper) * v / highest:.1f}"
            for i, v in enumerate(values)
        )
        style = f'fill="none" stroke="{COLOURS[name]}" stroke-width="1.5" stroke-dasharray="{DASHES[name]}"'
        lines.append(f'<polyline points="{points}" {style}/>')
        at = left + 220 + 130 * number
        lines.append(f'<text x="{at}" y="{top + 16}" fill="{COLOURS[name]}">{name}</text>')
    return lines


def main() -> None:
    results = json.loads((ROOT / "benchmarks" / "training.json").read_text())
    (ROOT / "docs" / "loss.svg").write_text(svg(results["curve"]["curves"]))


if __name__ == "__main__":
    main()
