"""Each built-in rule: where it applies, the nearest thing where it must not, and equal numbers in both cases."""

from __future__ import annotations

import pytest
import torch

from litz.graph.cse import merge_equal_calls
from litz.graph.freeze.frozen import FROZEN
from litz.graph.rewrite import apply_rules
from litz.graph.rules.constants import fold_constants
from litz.graph.rules.conv_bn import CONV_BN
from litz.graph.rules.noop import NOOP
from litz.graph.rules.softmax import SOFTMAX
from litz.graph.rules.split_cat import SPLIT_CAT
from litz.graph.rules.unique_index import UNIQUE_INDEX
from tests.graph.rewriting import capture, context, results, rewrite

aten = torch.ops.aten
X = torch.randn(4, 6)
B = torch.rand(4, 6) > 0.5
BF = torch.randn(4, 6).bfloat16()


def split_and_join(x):
    a, b, c = x.split(2, 1)
    return torch.cat([a, b, c], 1) + 1


def split_and_swap(x):
    a, b, c = x.split(2, 1)
    return torch.cat([b, a, c], 1) + 1


def join_and_split(x, sizes):
    a, b = torch.cat([x.sin(), x.cos()], 1).split_with_sizes(sizes, 1)
    return a.sum() + b.sum()


# name: rules, rule, function where it fires, function where it must not, inputs
CASES = {
    "add zero": (NOOP, "add_zero", lambda x: (x + -0.0) * 2, lambda x: (x + 0.0) * 2, [X]),
    "sub zero": (NOOP, "add_zero", lambda x: (x - 0) * 2, lambda x: (x - -0.0) * 2, [X]),
    "add zero to integers": (NOOP, "add_zero", lambda x: (x.long() + 0) * 2, lambda x: (x.long() + 1) * 2, [X]),
    "add a zero whose sign nobody sees": (NOOP, "add_zero", lambda x: (x + 0).exp(), lambda x: (x + 0).sin(), [X]),
    "add zeros": (
        NOOP,
        "add_zero",
        lambda x: (x.sin() + torch.zeros(6)).exp(),
        lambda x: (x[0] + torch.zeros(4, 6)).exp(),
        [X],
    ),
    "zeros of another type": (
        NOOP,
        "add_zero",
        lambda x: (x.sin() - torch.zeros(6)) * 2,
        lambda x: (x.bfloat16() + torch.zeros(4, 6)) * 2,
        [X],
    ),
    "sub from zero": (NOOP, "add_zero", lambda x: (0 + x.sin()).exp(), lambda x: (torch.zeros(6) - x.sin()).exp(), [X]),
    "times one": (NOOP, "times_one", lambda x: (x * 1.0).exp(), lambda x: (x * 1.5).exp(), [X]),
    "one over": (NOOP, "times_one", lambda x: (x / 1).exp(), lambda x: (x / 2).exp(), [X]),
    "and true": (
        NOOP,
        "neutral_operand",
        lambda b: (b & torch.ones(6, dtype=torch.bool)).sum(),
        lambda b: (b & (torch.arange(6) > 0)).sum(),
        [B],
    ),
    "or false": (
        NOOP,
        "neutral_operand",
        lambda b: (b | torch.zeros(6, dtype=torch.bool)).sum(),
        lambda b: (b | torch.ones(6, dtype=torch.bool)).sum(),
        [B],
    ),
    "known choice": (
        NOOP,
        "known_choice",
        lambda x: torch.where(torch.arange(6) >= 0, x.sin(), x).exp(),
        lambda x: torch.where(torch.arange(6) > 0, x.sin(), x).exp(),
        [X],
    ),
    "same view": (NOOP, "view_of_same_shape", lambda x: x.sin().view(4, 6) * 2, lambda x: x.sin().view(6, 4) * 2, [X]),
    "whole slice": (
        NOOP,
        "view_of_same_shape",
        lambda x: aten.slice.Tensor(x.sin(), 1, 0, 6) * 2,
        lambda x: x.sin()[:, :5] * 2,
        [X],
    ),
    "same expand": (
        NOOP,
        "view_of_same_shape",
        lambda x: x.sin().expand(4, 6) * 2,
        lambda x: x.sin().expand(2, 4, 6) * 2,
        [X],
    ),
    "square transpose": (
        NOOP,
        "view_of_same_shape",
        lambda x: aten.permute.default(x.sin(), [0, 1]) * 2,
        lambda x: x[:, :4].sin().t() * 2,
        [X],
    ),
    "needless copy": (
        NOOP,
        "needless_copy",
        lambda x: x.sin().clone() * 2,
        lambda x: x.sin().t().clone(memory_format=torch.contiguous_format) * 2,
        [X],
    ),
    "copy for the user": (NOOP, "needless_copy", lambda x: x.sin().clone() * 2, lambda x: x.clone(), [X]),
    "same cast": (
        NOOP,
        "cast_to_same",
        lambda x: aten._to_copy.default(x.sin(), dtype=torch.float32) * 2,
        lambda x: x.sin().double() * 2,
        [X],
    ),
    "there and back": (
        NOOP,
        "cast_there_and_back",
        lambda x: x.sin().float().bfloat16() * 2,
        lambda x: x.float().sin().bfloat16().float() * 2,
        [BF],
    ),
    "cat of one": (NOOP, "cat_of_one", lambda x: torch.cat([x.sin()]) * 2, lambda x: torch.cat([x.sin(), x]) * 2, [X]),
    "transpose twice": (NOOP, "transpose_twice", lambda x: x.sin().t().t() * 2, lambda x: x.sin().t() * 2, [X]),
    "view twice": (
        NOOP,
        "view_twice",
        lambda x: x.sin().view(24).view(2, 12) * 2,
        lambda x: x.sin().view(24).sin().view(2, 12) * 2,
        [X],
    ),
    "cat of split": (SPLIT_CAT, "cat_of_split", split_and_join, split_and_swap, [X]),
    "split of cat": (
        SPLIT_CAT,
        "split_of_cat",
        lambda x: join_and_split(x, [6, 6]),
        lambda x: join_and_split(x, [5, 7]),
        [X],
    ),
    "cat of cat": (
        SPLIT_CAT,
        "cat_of_cat",
        lambda x: torch.cat([torch.cat([x, x + 1]), x.sin()]),
        lambda x: torch.cat([torch.cat([x, x + 1], 1).view(8, 6), x]),
        [X],
    ),
    "softmax": (
        SOFTMAX,
        "softmax",
        lambda x: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x - x.amax(-1, keepdim=True))) + 1,
        lambda x: (lambda e: e / e.sum(0, keepdim=True))(torch.exp(x - x.amax(-1, keepdim=True))) + 1,
        [X],
    ),
    "index_add of a permutation": (
        UNIQUE_INDEX,
        "index_add_unique",
        lambda x: x.index_add(0, torch.randperm(4)[:3], torch.ones(3, 6), alpha=2),
        lambda x: x.index_add(0, torch.randint(0, 4, (3,)), torch.ones(3, 6), alpha=2),
        [X],
    ),
    "index_put of a constant": (
        UNIQUE_INDEX,
        "index_put_unique",
        lambda x: torch.zeros(9, 6).index_put((torch.arange(4) * 2,), x, accumulate=True),
        lambda x: torch.zeros(9, 6).index_put((torch.arange(4) // 2,), x, accumulate=True),
        [X],
    ),
    "index_put on data": (
        UNIQUE_INDEX,
        "index_put_unique",
        lambda x: x.sin().index_put((torch.arange(4).flip(0),), x, accumulate=True),
        lambda x: x.sin().index_put((torch.arange(4) - 2,), x, accumulate=True),
        [X],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    rules, rule, positive, negative, inputs = CASES[name]
    assert rewrite(lambda *args: (positive(*args),), inputs, rules).fired.get(rule), "it did not fire"
    assert not rewrite(lambda *args: (negative(*args),), inputs, rules).fired.get(rule), "it fired"


def test_every_rule_has_a_case() -> None:
    tested = {case[1] for case in CASES.values()}
    assert {r.name for r in NOOP + SPLIT_CAT + SOFTMAX + UNIQUE_INDEX} <= tested


# The backward uses what the written-out form computes on the way; in training it is rewritten before autograd.
FORWARD_ONLY = {"softmax"}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[-1][0].is_floating_point()])
def test_rules_hold_in_training(name: str) -> None:
    """Forward and gradients, with the rule and at the nearest thing where it must not hold."""
    rules, rule, positive, negative, inputs = CASES[name]
    tolerance = 1e-2 if inputs[0].dtype == torch.bfloat16 else 1e-5
    done = rewrite(lambda *args: (positive(*args),), inputs, rules, training=True, tolerance=tolerance)
    assert done.fired.get(rule) or name in FORWARD_ONLY
    rewrite(lambda *args: (negative(*args),), inputs, rules, training=True, tolerance=tolerance)


def test_backward_of_a_permuted_index() -> None:
    done = rewrite(lambda x: (x[torch.randperm(4)[:3]] * 2,), [X], UNIQUE_INDEX, training=True)
    assert done.fired == {"index_put_unique": 1}


def conv_bn_graph(frozen: bool):
    conv, norm = torch.nn.Conv2d(3, 8, 3, stride=2, bias=True).eval(), torch.nn.BatchNorm2d(8).eval()
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
        norm.bias.normal_()
    image = torch.randn(2, 3, 9, 9)
    weights = [conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var]

    def function(x, weight, bias, gamma, beta, mean, variance):
        y = aten.convolution.default(x, weight, bias, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
        return (aten._native_batch_norm_legit_no_training.default(y, gamma, beta, mean, variance, 0.1, 1e-5)[0].relu(),)

    graph = capture(function, [image, *(w.detach() for w in weights)])
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    for node in placeholders[1:] if frozen else ():
        node.meta[FROZEN] = True
    return graph, [image, *(w.detach() for w in weights)]


@pytest.mark.parametrize("frozen", [True, False])
def test_conv_bn_is_folded_only_when_frozen(frozen: bool) -> None:
    graph, inputs = conv_bn_graph(frozen)
    inputs[0].requires_grad_(True)

    def numbers() -> list[torch.Tensor]:
        (result,) = results(graph, inputs)
        return [result, *torch.autograd.grad(result.sin().sum(), inputs[:1])]

    before, ctx = numbers(), context()
    assert apply_rules(graph, CONV_BN, ctx).fired == int(frozen)
    for old, new in zip(before, numbers(), strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5)
    if not frozen:
        assert any("not frozen" in miss.why for miss in ctx.near_misses)


# -- constants ---------------------------------------------------------------------------------------
def folded(function, *inputs, **options):
    graph = capture(lambda *args: (function(*args),), inputs)
    before, ctx = results(graph, inputs), context(**options)
    count = fold_constants(graph, ctx)
    graph.recompile()
    for old, new in zip(before, results(graph, inputs), strict=True):
        torch.testing.assert_close(new, old)
    graph.graph.lint()
    return graph, count, ctx


def test_a_uniform_part_becomes_one_number() -> None:
    graph, count, ctx = folded(lambda x: x * (torch.ones(6) * 3 + torch.zeros(6)), X)
    assert count == 1 and ctx.firings[0].rule == "fold_constants"
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [aten.full.default, aten.mul.Tensor]


def test_a_small_part_is_stored() -> None:
    graph, count, _ = folded(lambda x: x * torch.arange(6).float().sqrt(), X)
    assert count == 1 and sum(n.op == "get_attr" for n in graph.graph.nodes) == 1


def test_places_counted_from_positions_are_not_stored() -> None:
    assert folded(lambda x: x[(torch.arange(6) // 2 % 3)[:, None]], X)[1] == 0
    assert folded(lambda x: x * (torch.arange(6) // 2), X)[1] == 1
    assert folded(lambda x: x[torch.arange(6).float().sqrt().long() % 3], X)[1] == 1


def test_what_is_large_random_or_returned_is_not_folded() -> None:
    large = capture(lambda x: (x * torch.arange(1 << 20).float().sqrt(),), [torch.randn(1 << 20)])
    assert fold_constants(large, context()) == 0
    random = capture(lambda x: (x * (torch.rand(6) + 1),), [X])
    assert fold_constants(random, context()) == 0
    assert folded(lambda x: torch.arange(6) * 2, X)[1] == 0


def test_folding_spends_fuel() -> None:
    assert folded(lambda x: x * torch.arange(6).float().sqrt(), X, fuel=0)[1] == 0


# -- common subexpressions -----------------------------------------------------------------------------
def test_equal_calls_become_one() -> None:
    graph = capture(lambda x: (x.sin() * 2 + x.sin() * 2.0,), [X])
    before = results(graph, [X])
    assert merge_equal_calls(graph, context()) == 1  # 2 and 2.0 are told apart
    graph.recompile()
    torch.testing.assert_close(results(graph, [X]), before)


def test_random_calls_and_separate_results_stay() -> None:
    assert merge_equal_calls(capture(lambda x: (torch.rand(3) + torch.rand(3) + x[0, :3],), [X]), context()) == 0
    assert merge_equal_calls(capture(lambda x: (x.sin(), x.sin()), [X]), context()) == 0
