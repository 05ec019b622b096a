"""`litz.pareto`: points that are right, a model that is left as it was, text and pictures of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import litz
from litz.debug import pareto as module
from litz.debug.pareto import Pareto, Point
from litz.debug.step import checkpointed, repeated_layers
from litz.errors import CallError, CaptureError, OptionError


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16), torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Stack(torch.nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.calls = torch.nn.Buffer(torch.zeros(()))
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        for layer in self.layers:
            x = layer(x)
        return self.drop(x)


def test_what_is_foretold_is_what_is_measured_and_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 1)
    torch.manual_seed(0)
    model, x = Stack(3), torch.randn(8192, 16)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = torch.random.get_rng_state()
    found = litz.pareto(model, x, points=2, measure=True)
    assert torch.equal(torch.random.get_rng_state(), before) and float(model.calls) == 0
    assert all(p.grad is not None and bool((p.grad == 1).all()) for p in model.parameters()) and x.grad is None
    assert "forward" not in vars(model.layers[0])

    state = sum(p.numel() * 4 for p in model.parameters())
    # The buffer counts as well.
    assert found.arguments_bytes == state + x.numel() * 4 + 4
    points = {(p.way, p.budget): p for p in found.points}
    (budget,) = (p.budget for p in found.points if p.way == "litz" and p.budget is not None)
    assert list(points) == [("litz", None), ("litz", budget), ("eager", None), ("checkpoint", None)]
    assert all(p.failed is None and p.measured_seconds and p.measured_bytes for p in points.values())
    for point in (points["litz", None], points["litz", budget]):
        assert abs(point.measured_bytes / point.predicted_bytes - 1) < 0.05  # type: ignore[operator]
    most, less = points["litz", None], points["litz", budget]
    assert budget == less.predicted_bytes < most.predicted_bytes  # type: ignore[operator]
    assert less.measured_bytes <= 1.02 * budget  # type: ignore[operator]
    assert less.predicted_seconds != most.predicted_seconds == most.measured_seconds
    assert points["checkpoint", None].bytes < points["eager", None].bytes  # type: ignore[operator]
    assert less in found.front


def test_what_fails_costs_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, budget: float) -> Callable[[], None]:
        def step() -> None:
            raise RuntimeError("no C++ compiler\nat all")

        return step

    monkeypatch.setattr(module._Sweep, "_by_inductor", fails)
    found = litz.pareto(
        lambda x: x.sin().exp(), torch.randn(64, requires_grad=True), points=1,
        beside=("checkpoint", "inductor"), pytorch_budgets=(0.5,), loss=torch.sum,
    )  # fmt: skip
    litz_at, under, peer = found.points
    assert litz_at.predicted_bytes and litz_at.measured_bytes and litz_at.failed is None
    assert under.failed == "CaptureError: the model has no layers of one class side by side"
    assert peer.failed == "RuntimeError: no C++ compiler" and peer.bytes is None
    assert "inductor at 0.5 failed: RuntimeError: no C++ compiler" in str(found)


def broken(result: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return result.sum()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"points": 0}, OptionError, "points is a number of at least 1, not 0"),
        ({"pytorch_budgets": (True,)}, OptionError, "pytorch_budgets"),
        ({"beside": ("eagre",)}, OptionError, "'eager', 'checkpoint', 'inductor', not 'eagre'"),
        ({"memory_budget": 0.5}, OptionError, "points=20"),
        ({"cots": "profile"}, OptionError, "'cost'"),
        ({"loss": lambda result: result.detach().sum()}, CallError, "no training step"),
        ({"loss": broken}, CaptureError, "in 2 graphs"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        litz.pareto(torch.nn.Linear(3, 3), torch.randn(3, 3), **options)


def test_a_model_without_numbers() -> None:
    with pytest.raises(CallError, match="pass loss="):
        litz.pareto(lambda x: x > 0, torch.randn(3, requires_grad=True))


# -- of a curve that is known -------------------------------------------------------------------
KNOWN = Pareto(
    "a machine <1>",
    1 << 20,
    (
        Point("litz", None, 9 << 20, 0.010, 9 << 20, 0.010),
        Point("litz", 7 << 20, 7 << 20, 0.011),
        Point("litz", 8 << 20, 8 << 20, 0.012),
        Point("litz", 5 << 20, 5 << 20, 0.015),
        Point("eager", None, None, None, 12 << 20, 0.020),
        Point("inductor", 0.5, failed="RuntimeError: no"),
    ),
)


def test_the_front_has_no_point_that_another_betters() -> None:
    assert [p.budget for p in KNOWN.front] == [None, 7 << 20, 5 << 20]


def test_the_table() -> None:
    assert str(KNOWN) == (
        "a step on a machine <1>; 1.0 MiB are arguments\n"
        "way       budget      peak     step  peak measured  step measured\n"
        "litz               9.0 MiB  10.0 ms        9.0 MiB        10.0 ms\n"
        "litz      7340032  7.0 MiB  11.0 ms\n"
        "litz      8388608  8.0 MiB  12.0 ms\n"
        "litz      5242880  5.0 MiB  15.0 ms\n"
        "eager                                     12.0 MiB        20.0 ms\n"
        "inductor  0.5\n"
        "inductor at 0.5 failed: RuntimeError: no"
    )


def test_json_and_svg(tmp_path: Path) -> None:
    KNOWN.save(tmp_path / "curve.json")
    found = json.loads((tmp_path / "curve.json").read_text())
    assert Pareto(found["machine"], found["arguments_bytes"], tuple(Point(**p) for p in found["points"])) == KNOWN
    KNOWN.save(str(tmp_path / "curve.svg"))
    root = ElementTree.parse(tmp_path / "curve.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    told = [title.text for title in root.iter(f"{space}title")]
    assert len(told) == 5 and "litz at 8388608: 8,388,608 bytes, 12.00 ms, predicted" in told
    (line,) = root.iter(f"{space}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(places) == 3
    # Less memory to the left, less time further down.
    assert places == sorted(places, key=lambda place: -place[0]) == sorted(places, key=lambda place: -place[1])
    with pytest.raises(OptionError, match=r"'.jpg'"):
        KNOWN.save("curve.jpg")


def test_png(tmp_path: Path) -> None:
    try:
        import matplotlib  # noqa: F401  # what is not among Litz's own needs
    except ImportError:
        with pytest.raises(OptionError, match=r"matplotlib.*\n?.*curve.svg"):
            KNOWN.save(tmp_path / "curve.png")
    else:
        KNOWN.save(tmp_path / "curve.png")
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_layers_under_checkpoints() -> None:
    model = Stack()
    layers = repeated_layers(model)
    assert layers == list(model.layers)
    x = torch.randn(4, 16, requires_grad=True)
    with checkpointed(layers):
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            model.eval()(x)
        assert not any(t.shape[-1] == 64 for t in saved)
    assert not any("forward" in vars(layer) for layer in layers)
