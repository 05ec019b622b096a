"""`cost="profile"`: times that are measured decide what is computed again, each is asked for once, and what cannot be
run is judged by its bytes and operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import litz
from litz.capture.joint import trace_joint
from litz.graph.partition import measured as module
from litz.graph.partition.cost import CORE, at_ceilings
from litz.graph.partition.measured import measured
from litz.graph.partition.pytorch_convention import min_cut_rematerialization_partition
from litz.graph.partition.split import Policy
from litz.graph.signature import Joint
from litz.ops.decompose import decompositions
from litz.target import detect
from tests.partition.test_budget import chosen, net

aten = torch.ops.aten
SHAPES = ((16, 512), (512, 16), (16, 4), (4, 16))


def two_products(x: torch.Tensor, long: torch.Tensor, y: torch.Tensor, short: torch.Tensor) -> torch.Tensor:
    return (x @ long).sin() * (y @ short).sin()


def joint_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Joint:
    inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    return trace_joint(function, inputs, None, decompositions(), True)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN", {})


def clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Any], float]) -> list[Any]:
    """What is run gives, and its time by `seconds` instead of a clock."""
    results: list[Any] = []

    def timed(run: Callable[[], Any], machine: Any) -> float:
        results.append(run())
        return seconds(results[-1])

    monkeypatch.setattr(module, "_timed", timed)
    return results


class Shelf:
    """A cache."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Any] = {}

    def load(self, kind: str, key: str) -> Any:
        return self.kept.get((kind, key))

    def store(self, kind: str, key: str, value: Any, entries: Any = None) -> None:
        self.kept[kind, key] = value

    def differences(self, kind: str, entries: Any) -> list[object]:
        return []


def again(joint: Joint, policy: Policy) -> list[int]:
    """How deep the products are that are computed again."""
    found = [n for n in chosen(joint, policy).again if n.target is aten.mm.default]
    return [n.args[0].meta["val"].shape[1] for n in found]  # type: ignore[union-attr]


@pytest.mark.usefixtures("forgotten")
def test_what_was_measured_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = joint_of(two_products, *SHAPES)
    assert again(joint, Policy(fraction=0.5)) == [4]
    # As if the long one took no time: each of its results is the sum of 512 quarters.
    clock(monkeypatch, lambda result: 1e-9 if float(result[0, 0]) == 128.0 else 1.0)
    cost = measured(detect(), CORE, None)
    assert again(joint, Policy(fraction=0.5, cost=cost)) == [512]


@pytest.mark.usefixtures("forgotten")
def test_each_form_is_run_once_and_what_was_found_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = joint_of(lambda x, w: ((x @ w).sin() @ w).sin() @ w.t(), (8, 8), (8, 8))
    products = [n for n in joint.graph.graph.nodes if n.target is aten.mm.default]
    results, shelf = clock(monkeypatch, lambda result: 0.25), Shelf()
    cost = measured(detect(), CORE, shelf)
    assert {cost(node) for node in products} == {0.25}
    forms = {str([(a.meta["val"].shape, a.meta["val"].stride()) for a in n.args]) for n in products}
    assert len(results) == len(forms) < len(products)
    monkeypatch.setattr(module, "_KNOWN", {})  # another process
    assert {measured(detect(), CORE, shelf)(node) for node in products} == {0.25}
    assert len(results) == len(forms)
    assert measured(detect(threads=7), CORE, shelf)(products[0]) == 0.25  # another machine
    assert len(results) == len(forms) + 1


@pytest.mark.usefixtures("forgotten")
def test_what_cannot_be_run_is_judged_by_the_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = joint_of(two_products, *SHAPES)
    product = next(n for n in joint.graph.graph.nodes if n.target is aten.mm.default)
    expected = at_ceilings(CORE)(product)

    def fails(run: Callable[[], Any], machine: Any) -> float:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(module, "_timed", fails)
    assert measured(detect(), CORE, None)(product) == expected
    results = clock(monkeypatch, lambda result: 1.0)
    monkeypatch.setattr(module, "_free", lambda machine: 4)
    assert measured(detect(), CORE, None)(product) == expected and not results


@pytest.mark.usefixtures("forgotten")
def test_a_real_clock_and_no_trace_of_it() -> None:
    joint = joint_of(lambda x, w: torch.softmax(x @ w, -1).cumsum(0), (8, 8), (8, 8))
    before = torch.random.get_rng_state()
    cost = measured(detect(), CORE, None)
    times = {n: cost(n) for n in joint.graph.graph.nodes}
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(times[n] > 0 for n in times if n.target in (aten.mm.default, aten.cumsum.default))
    assert not any(times[n] for n in times if n.op != "call_function")


def test_through_the_front_door() -> None:
    x, model = torch.randn(64, 32, dtype=torch.float64), net()
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    torch._dynamo.reset()
    model.zero_grad()
    compiled = torch.compile(model, backend="litz", options={"memory_budget": 0.3, "cost": "profile"})
    compiled(x).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want)
    entries = [litz.Options.parse({"cost": cost}).cache_key_entries() for cost in ("ceilings", "profile")]
    assert entries[0] != entries[1]


def test_a_cost_of_the_callers_own() -> None:
    joint = joint_of(two_products, *SHAPES)
    asked: list[fx.Node] = []

    def cost(node: fx.Node) -> float:
        asked.append(node)
        return 1.0

    for node, name in zip(
        joint.graph.graph.find_nodes(op="placeholder"), ("a", "b", "c", "d", "tangents_1"), strict=True
    ):
        node.target = name
    _, backward = min_cut_rematerialization_partition(joint.graph, num_fwd_outputs=1, memory_budget=0.5, cost=cost)
    assert {n.target for n in asked} >= {aten.mm.default}
    assert sum(n.target is aten.mm.default for n in backward.graph.nodes) == 5  # four of gradients, one made again
