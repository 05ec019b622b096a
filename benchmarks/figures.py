"""The latest figures, for README.md: a table and a picture.

`make figures`, or `python -m benchmarks.figures`, reads what the benchmarks have written (`results.json`,
`training.json`, `models.json`), and writes the table between the marks in `README.md`, and `docs/speed.svg`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, models_more
from benchmarks.table import figure, geometric_mean, ratio

ROOT = Path(__file__).resolve().parent.parent
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "speed.svg"
BEGIN, END = "<!-- figures: make figures -->", "<!-- end of figures -->"
FILES = ("results", "training", "models")
WIDTH, ROW, LEFT, MOST = 640, 14, 150, 2.0
COLOURS = {"eager": "#999999", "inductor": "#d55e00", "litz": "#0072b2"}
Figures = dict[str, Any]


def results() -> Figures:
    """What was measured last, by the file it is in."""
    paths = {name: ROOT / "benchmarks" / f"{name}.json" for name in FILES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def speeds(found: Figures, file: str) -> dict[str, dict[str, float | None]]:
    """For each model, how many times as fast as each of the others Litz steps."""
    return {
        model: {other: bars.speedup(found[file], model, other) for other in ("eager", "inductor")}
        for model in found.get(file, {}).get("steps", {})
    }


# -- the table ----------------------------------------------------------------------------------------
def table(found: Figures) -> str:
    head = ["model", "inference: eager", "inductor", "first call", "training: eager", "inductor", "first step"]
    models = list(found.get("results", {}).get("steps", {}))
    rows = [_row(found, [model], model) for model in models]
    rows.append(_row(found, models, "**geometric mean**"))
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join([*lines, "", *_many(found)])


def _row(found: Figures, models: Sequence[str], name: str) -> list[str]:
    cells = [name]
    for file in ("results", "training"):
        measured, times = found.get(file, {}), speeds(found, file)
        cells += [_cell([times.get(m, {}).get(other) for m in models], "×") for other in ("eager", "inductor")]
        cells.append(_cell([bars.cold_ratio(measured, m) for m in models]))
    return cells


def _cell(values: Sequence[float | None], unit: str = "") -> str:
    mean = geometric_mean(values)
    return "-" if mean is None else figure(mean) + unit


def _many(found: Figures) -> list[str]:
    """A line on the many models, if they were measured."""
    many, lines = found.get("models", {}), []
    for mode in [mode for mode in models_more.MODES if mode in many]:
        taken = {model: models_more.slowness(many, mode, model) for model in many[mode]}
        known = {model: time for model, time in taken.items() if time is not None}
        slowest = max(known, key=lambda model: known[model])
        mean = figure(ratio(1, geometric_mean([*known.values()])))
        lines.append(
            f"{len(known)} more architectures of `transformers`, {mode}: {mean}× eager's speed on average, "
            f"at worst {1 / known[slowest]:.2f}× ({slowest})."
        )
    return lines


# -- the picture --------------------------------------------------------------------------------------
def picture(found: Figures) -> str:
    """Bars of speed, eager's being 1."""
    parts, top = [], 0
    for title, file in (("inference", "results"), ("training", "training")):
        parts.append(f'<text x="8" y="{top + 18}" font-weight="bold">{title}: times as fast as eager</text>')
        top += 26
        for model, times in speeds(found, file).items():
            litz = times["eager"]
            bar_of = {"eager": 1.0, "inductor": ratio(litz, times["inductor"]), "litz": litz}
            parts.append(f'<text x="{LEFT - 8}" y="{top + 1.9 * ROW}" text-anchor="end">{model}</text>')
            for number, (name, value) in enumerate(bar_of.items()):
                parts += _bar(name, value, top + number * ROW)
            top += 3 * ROW + 8
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *parts, "</svg>", ""])


def _bar(name: str, value: float | None, y: float) -> list[str]:
    if value is None:
        return []
    width = (WIDTH - LEFT - 110) * min(value, MOST) / MOST
    return [
        f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 2}" fill="{COLOURS[name]}"/>',
        f'<text x="{LEFT + width + 6:.1f}" y="{y + ROW - 4}">{value:.2f} {name}</text>',
    ]


def written(readme: str, found: Figures) -> str:
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    found = results()
    missing = [name for name in FILES if name not in found]
    if missing:
        print(f"not measured yet, and left out: {', '.join(f'benchmarks/{name}.json' for name in missing)}")
    README.write_text(written(README.read_text(), found))
    PICTURE.write_text(picture(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
