"""A bound on what is kept: met, with the least time lost, whichever way it is found."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import litz
from litz.capture.joint import trace_joint
from litz.errors import OptionError
from litz.graph.partition import maxflow
from litz.graph.partition.again import AGGRESSIVE, RULES, Rules, forbidden
from litz.graph.partition.budget import within_fraction
from litz.graph.partition.cost import CORE, seconds
from litz.graph.partition.knapsack import SOLVERS
from litz.graph.partition.maxflow import INFINITE, FlowNetwork
from litz.graph.partition.mincut import Choice, minimum_cut, problem_of
from litz.graph.partition.sides import sides_of
from litz.graph.partition.split import Policy, choose, plan, split
from litz.graph.signature import Joint
from litz.ops.decompose import decompositions
from tests.partition.test_mincut import PROGRAMS, flow, joint_of, tangents_of

aten = torch.ops.aten


def block(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Layers whose products have different shapes, so that keeping one is not keeping another."""
    for _ in range(4):
        h = F.layer_norm(x, (8,))
        a = torch.softmax(h @ h.transpose(-1, -2), -1) @ h
        x = x + F.gelu((x + a) @ w) @ u
    return x


def stack() -> Joint:
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((6, 8), (8, 24), (24, 8))]
    return trace_joint(block, inputs, None, decompositions(), True)


def chosen(joint: Joint, policy: Policy) -> Choice:
    return choose(joint, sides_of(joint, policy.reads_again), policy)


def time_lost(choice: Choice) -> float:
    return sum(seconds(n, CORE) for n in choice.again if not _is_free(n))


def _is_free(node: fx.Node) -> bool:
    from litz.graph.partition.again import fuses

    return fuses(node)


# -- fractions ----------------------------------------------------------------------------------
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_within_a_fraction_the_two_sides_are_still_the_whole(name: str, fraction: float, solver: str) -> None:
    joint, inputs = joint_of(name)
    tangents = tangents_of(joint)
    want = joint.graph(*(x.clone() for x in inputs), *tangents)
    parts = split(joint, Policy(fraction=fraction, solver=solver))
    own, gradients = flow(parts, joint, [x.clone() for x in inputs], tangents)
    torch.testing.assert_close([*own, *gradients], list(want), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_fraction_is_kept_to(solver: str) -> None:
    joint = stack()
    question = plan(joint, Policy()).question
    problem, usual = question.problem, question.usual
    for step in range(21):
        found = within_fraction(problem, usual, step / 20, question.dear, question.may, SOLVERS[solver])
        assert found.bytes <= step / 20 * usual.bytes
    least = chosen(joint, Policy(fraction=0.0, solver=solver))
    assert least.bytes < usual.bytes / 4


def test_a_larger_fraction_loses_no_more_time() -> None:
    joint = stack()
    lost = [time_lost(chosen(joint, Policy(fraction=step / 20))) for step in range(21)]
    assert lost == sorted(lost, reverse=True) and lost[0] > lost[-1]
    assert len(set(lost)) >= 5, "between all and nothing there are choices"


@pytest.mark.parametrize("layers", [4, 12])
def test_a_smaller_fraction_never_raises_the_peak(layers: int) -> None:
    """Who keeps nothing computes all of the forward at once, and holds more than who keeps a little."""

    def deep(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = x + F.gelu(x @ w) @ u
        return x

    inputs = [torch.randn(*shape, requires_grad=True) for shape in ((64, 8), (8, 32), (32, 8))]
    joint = trace_joint(deep, inputs, None, decompositions(), True)
    question = plan(joint, Policy()).question
    made = [n for n in question.problem.nodes if n.op == "call_function"]

    def held(choice: Choice) -> int:
        return question.foresight.held(made, set(choice.kept), choice.again).most

    nothing = minimum_cut(question.problem, lambda n: 0 if n in question.may else INFINITE)
    peaks = [held(chosen(joint, Policy(fraction=1 - step / 20))) for step in range(21)]
    assert all(after <= 1.01 * before for before, after in itertools.pairwise(peaks))
    assert peaks[-1] < 0.9 * held(nothing) and peaks[-1] < 0.7 * peaks[0]


def test_what_is_computed_again_is_the_cheapest_that_will_do() -> None:
    """Two values of the same size: one a long product, one a short one."""

    def function(x: torch.Tensor, long: torch.Tensor, y: torch.Tensor, short: torch.Tensor) -> torch.Tensor:
        return (x @ long).sin() * (y @ short).sin()

    shapes = ((16, 512), (512, 16), (16, 4), (4, 16))
    inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    joint = trace_joint(function, inputs, None, decompositions(), True)
    found = chosen(joint, Policy(fraction=0.5))
    (product,) = (n for n in found.again if n.target is aten.mm.default)
    assert product.args[0].meta["val"].shape == (16, 4)


def test_random_draws_are_kept_whatever_the_fraction() -> None:
    def drops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout((x @ w).sin(), 0.5).exp() @ w

    joint = trace_joint(drops, [torch.randn(6, 6, requires_grad=True) for _ in range(2)], None, decompositions(), True)
    parts = split(joint, Policy(fraction=0.0))
    tags = [getattr(n.target, "tags", ()) for n in parts.backward.graph.nodes]
    assert not any(torch.Tag.nondeterministic_seeded in t for t in tags)


# -- through the front door ---------------------------------------------------------------------
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.GELU())]
    return torch.nn.Sequential(*layers).double()


def kept_bytes(function: Any, x: torch.Tensor) -> tuple[int, torch.Tensor]:
    saved: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = function(x)
    return sum(saved.values()), result


def test_a_budget_bounds_what_is_kept_and_changes_no_gradient() -> None:
    x = torch.randn(64, 32, dtype=torch.float64)
    model = net()
    model(x).square().sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    found = []
    for budget in (None, 0.6, 0.3, 0.0):
        torch._dynamo.reset()
        model.zero_grad()
        size, result = kept_bytes(torch.compile(model, backend="litz", options={"memory_budget": budget}), x)
        result.square().sum().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], want)
        found.append(size)
    assert found == sorted(found, reverse=True) and len(set(found)) >= 3  # what is least may be more than nothing


@pytest.mark.parametrize("recompute", ["aggressive", {"reductions": True}, {"not_in_allow_list": False}])
def test_rules_by_option(recompute: Any) -> None:
    x, model = torch.randn(8, 32, dtype=torch.float64), net()
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    torch._dynamo.reset()
    model.zero_grad()
    torch.compile(model, backend="litz", options={"recompute": recompute})(x).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"memory_budget": "6 apples"}, "6GiB"),
        ({"memory_budget": "110%"}, "80%"),
        ({"memory_budget": -1}, "0 to 1"),
        ({"memory_budget": 1.5}, "0 to 1"),
        ({"budget_solver": "dpp"}, "'dp'"),
        ({"recompute": "agressive"}, "aggressive"),
        ({"recompute": {"reduction": True}}, "'reductions'"),
        ({"recompute": {"reductions": 1}}, "True or False"),
    ],
)
def test_bad_values(values: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        litz.Options.parse(values)


def test_an_argument_that_was_written_to_is_not_read_again() -> None:
    x, model = torch.randn(8, 32, dtype=torch.float64), net()
    torch._dynamo.reset()
    result = torch.compile(model, backend="litz", options={"memory_budget": 0.0})(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


# -- rules --------------------------------------------------------------------------------------
def long_chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    start = x = x @ w
    for _ in range(120):
        x = x.sin()
    return (x + start) @ w * x.sum(-1, keepdim=True)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_forbids_something_when_it_is_on(rule: str) -> None:
    inputs = [torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)]
    joint = trace_joint(long_chain, inputs, None, decompositions(), True)
    sides = sides_of(joint)
    nodes = problem_of(joint, sides).nodes
    assert not forbidden(nodes, sides, AGGRESSIVE)
    found = forbidden(nodes, sides, Rules(**{**dict.fromkeys(RULES, False), rule: True}))
    assert found and set(found.values()) == {rule} and len(found) < len(nodes)


def test_operators_that_the_caller_takes_to_be_cheap() -> None:
    inputs = [torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)]
    joint = trace_joint(lambda x, w: (x @ w).sin().cumsum(0).cos(), inputs, None, decompositions(), True)
    cheap = Rules(allowed=frozenset({aten.cumsum, aten.mm.default}))
    assert aten.cumsum.default in {n.target for n in chosen(joint, Policy(AGGRESSIVE)).again}
    assert not forbidden(
        [n for n in joint.graph.graph.nodes if n.target is aten.cumsum.default], sides_of(joint), cheap
    )


# -- solvers ------------------------------------------------------------------------------------
def test_knapsacks() -> None:
    draw = random.Random(0)
    for _ in range(60):
        count = draw.randint(0, 9)
        weights = [draw.randint(0, 40) for _ in range(count)]
        worths = [draw.random() for _ in range(count)]
        capacity = draw.randint(0, 120)
        sets = (s for n in range(count + 1) for s in itertools.combinations(range(count), n))
        best = max(sum(worths[i] for i in s) for s in sets if sum(weights[i] for i in s) <= capacity)
        for name, solve in SOLVERS.items():
            found = solve(weights, worths, capacity)
            assert sum(weights[i] for i in found) <= capacity
            worth = sum(worths[i] for i in found)
            assert worth <= best + 1e-9
            if name != "greedy":
                assert worth >= best - 1e-4, name


def test_large_weights() -> None:
    weights, capacity = [3 << 30, 5 << 30, 7 << 30], 8 << 30
    for name, solve in SOLVERS.items():
        assert sum(weights[i] for i in solve(weights, [1.0, 1.1, 1.2], capacity)) <= capacity, name
    assert SOLVERS["dp"](weights, [1.0, 1.1, 1.2], capacity + (1 << 22)) == [0, 1]


@pytest.mark.skipif(maxflow.installed_solver() is None, reason="OR-Tools is not installed")
def test_both_solvers_find_the_same_cut() -> None:
    draw = random.Random(1)
    for _ in range(50):
        vertices = draw.randint(4, 30)
        edges = [(draw.randrange(vertices), draw.randrange(vertices), draw.choice([1, 2, 7, 1 << 40, maxflow.INFINITE]))
                 for _ in range(draw.randint(4, 120))]  # fmt: skip
        network = FlowNetwork()
        for _ in range(vertices):
            network.vertex()
        for tail, head, capacity in edges:
            if tail != head:
                network.edge(tail, head, capacity)
        by_solver = network._by_solver(maxflow.installed_solver()(), 0, vertices - 1)
        by_dinic = network._by_dinic(0, vertices - 1)
        if by_dinic[0] < maxflow.INFINITE:
            assert by_solver == by_dinic


def test_both_solvers_split_a_network_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for solver in (maxflow.installed_solver(), None):
        monkeypatch.setattr(maxflow, "installed_solver", lambda solver=solver: solver)
        found.append([n.name for n in chosen(stack(), Policy(fraction=0.4)).kept])
    assert found[0] == found[1]
