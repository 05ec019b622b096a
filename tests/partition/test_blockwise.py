"""The plan of a deep model: blocks are found, each level is a whole split, and less memory never costs less time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from litz.capture.joint import trace_joint
from litz.graph.module import copied, graph_module
from litz.graph.partition import maxflow
from litz.graph.partition.blockwise import LEVELS, Plan
from litz.graph.partition.exact import Exact
from litz.graph.partition.maxflow import INFINITE
from litz.graph.partition.mincut import minimum_cut
from litz.graph.partition.split import Policy, plan, split
from litz.graph.signature import Joint
from litz.ops.decompose import decompositions
from tests.partition.test_mincut import PROGRAMS, flow, joint_of, tangents_of

LAYERS = 6


def stack(x: torch.Tensor, table: torch.Tensor, w: torch.Tensor, u: torch.Tensor, layers: int = LAYERS) -> torch.Tensor:
    """Layers with a residual stream, all of which read a table that is made first."""
    turned = table.cos()
    for _ in range(layers):
        x = x + F.gelu(F.layer_norm(x, (8,)) @ w + turned).tanh() @ u
    return x.square().mean()


def joint(layers: int = LAYERS) -> tuple[Joint, list[torch.Tensor]]:
    torch.manual_seed(0)
    shapes = ((64, 8), (1, 32), (8, 32), (32, 8))
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    return trace_joint(partial(stack, layers=layers), inputs, None, decompositions(), True), inputs


def at_level(whole: Joint, found: Plan, level: int) -> tuple[Joint, Policy]:
    copy = replace(whole, graph=graph_module(whole.graph, copied(whole.graph.graph)))
    return copy, Policy(kept=frozenset(n.name for n in found.at(level).kept))


def products(graph: fx.Graph) -> int:
    return sum(n.target is torch.ops.aten.mm.default for n in graph.nodes)


def test_a_layer_is_a_block() -> None:
    whole, _ = joint()
    found = plan(whole, Policy())
    residuals = [n for n in found.blocks.boundaries if n.target is torch.ops.aten.add.Tensor]
    assert len(residuals) >= LAYERS - 1
    assert any(n.target is torch.ops.aten.cos.default for n in found.blocks.shared)


@pytest.mark.parametrize("level", [1, LEVELS // 2, LEVELS])
def test_at_each_level_the_two_sides_are_the_whole(level: int) -> None:
    whole, inputs = joint()
    tangents = tangents_of(whole)
    want = whole.graph(*inputs, *tangents)
    copy, policy = at_level(whole, plan(whole, Policy()), level)
    own, gradients = flow(split(copy, policy), copy, inputs, tangents)
    torch.testing.assert_close([*own, *gradients], list(want), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_without_blocks(name: str) -> None:
    whole, inputs = joint_of(name)
    tangents = tangents_of(whole)
    want = whole.graph(*(x.clone() for x in inputs), *tangents)
    copy, policy = at_level(whole, plan(whole, Policy()), LEVELS)
    own, gradients = flow(split(copy, policy), copy, [x.clone() for x in inputs], tangents)
    torch.testing.assert_close([*own, *gradients], list(want), rtol=1e-12, atol=1e-12)


def test_less_memory_never_costs_less_time() -> None:
    whole, _ = joint()
    found = plan(whole, Policy())
    levels = [found.at(level) for level in range(LEVELS + 1)]
    assert [level.bound for level in levels] == sorted((level.bound for level in levels), reverse=True)
    assert [level.seconds for level in levels] == sorted(level.seconds for level in levels)
    assert levels[0].seconds == 0.0 < levels[-1].seconds
    assert levels[-1].bound < 0.6 * levels[0].bound


def test_nothing_is_computed_twice_in_the_backward() -> None:
    """The least memory is the forward once more at the most."""
    whole, _ = joint()
    found = plan(whole, Policy())
    usual = products(split(*at_level(whole, found, 0)).backward.graph)
    counts = [products(split(*at_level(whole, found, level)).backward.graph) for level in range(1, LEVELS + 1, 8)]
    assert all(usual <= count <= usual + 2 * LAYERS for count in counts)
    assert all(before <= after for before, after in itertools.pairwise(counts))


@pytest.mark.skipif(maxflow.installed_solver() is None, reason="OR-Tools is not installed")
def test_a_solver_finds_the_best() -> None:
    """Of all choices that keep to the bound, by what is foreseen of each."""
    whole = trace_joint(small, [torch.randn(8, 8, requires_grad=True) for _ in range(3)], None, decompositions(), True)
    question = plan(whole, Policy()).question
    problem, foresight = question.problem, question.foresight
    exact = Exact(problem, foresight, question.dear, question.may, 1 << 20)
    exact.unit = 1
    free = frozenset(n for n in question.may if n not in question.dear)
    points = set()
    for count in range(len(question.dear) + 1):
        for chosen in itertools.combinations(question.dear, count):
            again = free.union(chosen)
            toll = {n: 0 if n in again else INFINITE for n in problem.nodes}
            choice = minimum_cut(problem, toll.__getitem__)
            most = foresight.held(problem.nodes, set(choice.kept), choice.again).most
            points.add((most, sum(question.dear.get(n, 0.0) for n in choice.again)))
    for bound in {most for most, _ in points}:
        found = exact.within(bound)
        assert found is not None and found.proven
        assert found.seconds <= min(seconds for most, seconds in points if most <= bound) + 1e-9


@pytest.mark.skipif(maxflow.installed_solver() is None, reason="OR-Tools is not installed")
def test_with_the_solver_no_level_is_worse() -> None:
    whole, inputs = joint(3)
    plain, solved = plan(whole, Policy()), plan(whole, Policy(solver="ilp"))
    assert solved.least_bytes <= plain.least_bytes
    seconds = [solved.at(level).seconds for level in range(LEVELS + 1)]
    assert seconds == sorted(seconds)
    for level in range(0, LEVELS + 1, 6):
        bound = solved.bound(level)
        same = [plain.at(n).seconds for n in range(LEVELS + 1) if plain.bound(n) <= bound]
        assert seconds[level] <= min(same, default=float("inf")) + 1e-12
    tangents = tangents_of(whole)
    want = whole.graph(*inputs, *tangents)
    copy, policy = at_level(whole, solved, LEVELS)
    own, gradients = flow(split(copy, policy), copy, inputs, tangents)
    torch.testing.assert_close([*own, *gradients], list(want), rtol=1e-12, atol=1e-12)


def small(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return (torch.softmax((x @ w).tanh() @ u, -1) @ w).sin().sum()
