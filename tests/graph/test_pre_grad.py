"""Rules before autograd: where they apply, the nearest thing where they must not, and eager's numbers in both cases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace
from torch.nn import functional as F

import litz.graph.rewrite_pre_grad as pre_grad
from litz.errors import VerifyError
from litz.graph.mutation import mutates
from litz.graph.rewrite_pre_grad import check_numbers
from litz.graph.rules import PRE_GRAD
from tests.graph.before_autograd import Done

SDPA = F.scaled_dot_product_attention
B, H, S, D = 2, 3, 10, 8
torch.manual_seed(0)
Q, K, V = (torch.randn(B, H, S, D) for _ in range(3))
BIAS = torch.randn(1, H, S, S)
X = torch.randn(4, 6)
IMAGE = torch.randn(2, 3, 9, 9)


# -- attention --------------------------------------------------------------------------------------
def in_place(q, k, v):
    s = q @ k.mT
    s *= 0.3
    s += BIAS
    p = s.softmax(-1)
    return F.dropout(p, 0.2, True) @ v


def flat(q, k, v):
    q, k, v = (x.reshape(B * H, S, D) for x in (q, k, v))
    p = torch.softmax(torch.baddbmm(BIAS.expand(B, H, S, S).reshape(B * H, S, S), q, k.transpose(1, 2)), dim=2)
    return torch.bmm(torch.dropout(p, 0.2, True), v).view(B, H, S, D)


def einsums(q, k, v):
    p = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(0.3).softmax(dim=-1)
    return torch.einsum("bhqk,bhkd->bqhd", F.dropout(p, p=0.2), v)


def masked(q, k, v):
    hidden = torch.arange(S).unsqueeze(0) > torch.arange(S).unsqueeze(1)
    p = (q.matmul(k.transpose(-1, -2)) / math.sqrt(D)).masked_fill(hidden, -math.inf).softmax(-1, torch.float32)
    return F.dropout(p.to(q.dtype), training=True, p=0.2).matmul(v).transpose(1, 2).reshape(B, S, H * D)


SPELLINGS = {
    "plain": lambda q, k, v: F.dropout(torch.softmax(q @ k.mT * 0.3, -1), 0.2) @ v,
    "no scale": lambda q, k, v: torch.matmul(F.dropout(F.softmax(torch.matmul(q, k.mT), dim=3), 0.2, True), v),
    "scaled query": lambda q, k, v: F.dropout(torch.softmax((q * 0.3) @ k.mT, -1), 0.2) @ v,
    "a scale made on the spot": lambda q, k, v: F.dropout(torch.softmax(q @ k.mT / torch.full([], 3.0), -1), 0.2) @ v,
    "all dropped": lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 1.0) @ v,
    "one head": lambda q, k, v: F.dropout(torch.softmax(q[0, 0] @ k[0, 0].t(), -1), 0.2) @ v[0, 0],
    "einsum": einsums,
}
MASKED = {"in place": in_place, "flat": flat, "filled": masked}


@pytest.mark.parametrize("name", SPELLINGS)
def test_attention_with_dropout(name: str) -> None:
    done = Done(SPELLINGS[name], [Q, K, V])
    assert done.fired == {"attention_pre_grad": 1}, done.why
    assert done.count(SDPA) == 1 and done.count(F.dropout) == 0 and done.count(torch.softmax) == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.bfloat16, 0.2)], ids=str)
def test_attention_of_other_types(dtype: torch.dtype, tolerance: float) -> None:
    done = Done(SPELLINGS["plain"], [x.to(dtype) for x in (Q, K, V)], tolerance=tolerance)
    assert done.fired == {"attention_pre_grad": 1}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_may_hide_a_row(name: str) -> None:
    """A softmax gives NaN in a row without any key; the operator, which has no fused form here anyway, zeros."""
    done = Done(MASKED[name], [Q, K, V])
    assert done.fired == {} and "leave a key" in done.why


def test_a_learned_bias_is_left_as_it_is() -> None:
    assert Done(lambda q, k, v, bias: torch.softmax(q @ k.mT + bias, -1) @ v, [Q, K, V, BIAS]).fired == {}


def weights_returned(q, k, v):
    p = F.dropout(torch.softmax(q @ k.mT, -1), 0.2)
    return p @ v, p


def mask_overwritten(q, k, v, m):
    s = q @ k.mT + m
    m.zero_()
    return F.dropout(torch.softmax(s, -1), 0.2) @ v


def drawn_between(q, k, v):
    p = F.dropout(torch.softmax(q @ k.mT, -1), 0.2)
    return p @ F.dropout(v, 0.5)


def gradients_off_inside(q, k, v):
    s = q @ k.mT
    with torch.no_grad():
        p = torch.softmax(s, -1)
    return F.dropout(p, 0.2) @ v


NO_ATTENTION = {
    "weights returned": (weights_returned, "also used outside"),
    "a mask overwritten": (mask_overwritten, "may write"),
    "other numbers drawn between": (drawn_between, "draws random numbers"),
    "gradients off inside": (gradients_off_inside, "may write"),
    "softmax over queries": (lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -2), 0.2) @ v, "over dimension"),
    "dropped scores": (lambda q, k, v: torch.softmax(F.dropout(q @ k.mT, 0.2), -1) @ v, ""),
    "dropped twice": (lambda q, k, v: F.dropout(F.dropout(torch.softmax(q @ k.mT, -1), 0.2), 0.1) @ v, ""),
    "a nonlinearity": (lambda q, k, v: F.dropout(torch.softmax((q @ k.mT).relu(), -1), 0.2) @ v, "relu"),
    "switched off": (lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.2, False) @ v, ""),
    "no product": (lambda q, k, v: F.dropout(torch.softmax(q.cumsum(-1) * k, -1), 0.2) @ v.mT, ""),
}


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_what_is_left_alone(name: str) -> None:
    function, why = NO_ATTENTION[name]
    done = Done(function, [Q, K, V, BIAS] if function is mask_overwritten else [Q, K, V])
    assert "attention_pre_grad" not in done.fired
    assert why in done.why


def test_types_chosen_by_autocast() -> None:
    def attend(q, k, v):
        return F.dropout(torch.softmax(q @ k.mT, -1), 0.2) @ v

    def inside(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(q, k, v)

    # Switched on inside of the graph, what is traced alone would have other types.
    done = Done(inside, [Q, K, V], False, tolerance=0.2)
    assert done.fired == {} and "types are chosen" in done.why
    with torch.autocast("cpu", torch.bfloat16):
        assert Done(attend, [Q, K, V], False, tolerance=0.2).fired == {"attention_pre_grad": 1}


# -- softmax ------------------------------------------------------------------------------------------
def raised_and_divided(x, highest, total):
    e = torch.exp(x - highest(x))
    return (e / total(e)) * 2


def highest(x):
    return x.amax(-1, keepdim=True)


def total(e):
    return e.sum(-1, keepdim=True)


SOFTMAX = {
    "amax": lambda x: raised_and_divided(x, highest, total),
    "max": lambda x: raised_and_divided(x, lambda x: x.max(-1, keepdim=True)[0], total),
    "values of max": lambda x: raised_and_divided(x, lambda x: torch.max(x, dim=1, keepdim=True).values, total),
    "detached": lambda x: raised_and_divided(x, lambda x: x.amax(1, True).detach(), lambda e: torch.sum(e, 1, True)),
    "methods": lambda x: x.sub(x.amax(1, True)).exp().div(x.sub(x.amax(1, True)).exp().sum(1, True)) * 2,
}
NO_SOFTMAX = {
    "another dimension": lambda x: raised_and_divided(x, highest, lambda e: e.sum(0, keepdim=True)),
    "of another maximum": lambda x: raised_and_divided(x, lambda x: x.amax(0, keepdim=True), total),
    "a minimum": lambda x: raised_and_divided(x, lambda x: x.amin(-1, keepdim=True), total),
    "two dimensions": lambda x: raised_and_divided(x, lambda x: x.amax((0, 1), True), lambda e: e.sum((0, 1), True)),
    "its parts returned": lambda x: (lambda e: (e / e.sum(-1, keepdim=True), e * 2))(torch.exp(x - highest(x))),
}


@pytest.mark.parametrize("name", [name for name in SOFTMAX if name != "methods"])
def test_softmax_by_hand(name: str) -> None:
    done = Done(SOFTMAX[name], [X])
    assert done.fired == {"softmax_pre_grad": 1} and done.count(torch.exp) == 0


@pytest.mark.parametrize("function", [*NO_SOFTMAX.values(), SOFTMAX["methods"]], ids=[*NO_SOFTMAX, "computed twice"])
def test_what_is_no_softmax(function) -> None:
    assert "softmax_pre_grad" not in Done(function, [X]).fired


def test_attention_with_a_softmax_by_hand() -> None:
    def function(q, k, v):
        return F.dropout(raised_and_divided(q @ k.mT, highest, total) / 2, 0.2) @ v

    def plain(q, k, v):
        s = q @ k.mT
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return F.dropout(e / e.sum(-1, keepdim=True), 0.2) @ v

    assert Done(plain, [Q, K, V]).fired == {"softmax_pre_grad": 1, "attention_pre_grad": 1}
    assert Done(function, [Q, K, V]).fired == {"softmax_pre_grad": 1}


# -- splits and joins -------------------------------------------------------------------------------
def parts_used_twice(x):
    a, b = torch.cat([x.sin(), x.cos()], 1).split(6, -1)
    return a * 2 + b


def written_afterwards(x):
    y = x.sin()
    z = torch.cat(y.split(2, 1), 1)
    y.add_(1)
    return z * 2 + y


def returned(x):
    y = x.sin()
    return torch.cat(y.split(2, 1), 1), y


def seen_through_a_view(x):
    y = x.sin()
    return torch.cat(y.chunk(2, 1), 1).view(24), y * 2


# name: rule, function where it fires, function where it must not
CASES: dict[str, Any] = {
    "cat of split": (
        "join_of_parts",
        lambda x: torch.cat(x.sin().split(2, 1), 1) * 2,
        lambda x: torch.cat(x.sin().split(2, 1), 0) * 2,
    ),
    "cat of chunk": ("join_of_parts", lambda x: torch.cat(x.sin().chunk(3, -1), dim=1) * 2, written_afterwards),
    "cat of parts in another order": (
        "join_of_parts",
        lambda x: torch.concat(torch.split(x.sin(), [1, 5], dim=1), axis=1) * 2,
        lambda x: torch.cat(x.sin().split(2, 1)[::-1], 1) * 2,
    ),
    "returned": ("join_of_parts", lambda x: torch.cat(x.sin().split(3, 1), 1) * 2, returned),
    "returned as a view": ("join_of_parts", lambda x: torch.cat(x.sin().split(3, 1), 1) * 2, seen_through_a_view),
    "turned": (
        "join_of_parts",
        lambda x: torch.cat(x.sin().split(3, 1), 1) * 2,
        lambda x: torch.cat(x.sin().t().split(3, 0), 0) * 2,
    ),
    "stack of unbind": (
        "join_of_parts",
        lambda x: torch.stack(x.sin().unbind(1), 1) * 2,
        lambda x: torch.stack(x.sin().unbind(1), 0) * 2,
    ),
    "split of cat": ("part_of_joined", parts_used_twice, lambda x: torch.cat([x, x.cos()], 1).split(4, 1)[1] * 2),
    "one part of split of cat": (
        "part_of_joined",
        lambda x: (
            torch.cat([x.sin(), x.detach().cos()], 1).split(6, 1)[1] * x + torch.cat([x.detach(), X], 1).split(6, 1)[1]
        ),
        lambda x: torch.cat([x.sin(), x.cos()], 1).split(6, 1)[1] * 2,
    ),
    "unbind of stack": (
        "part_of_joined",
        lambda x: torch.mul(*torch.stack([x.sin(), x.cos()], 1).unbind(1)),
        lambda x: torch.stack([x.sin(), x.cos()], 1).unbind(0)[1] * 2,
    ),
    "cat of cat": (
        "cat_of_joined",
        lambda x: torch.cat([torch.cat([x, x.sin()], 1), x.cos()], dim=1),
        lambda x: torch.cat([torch.cat([x, x.sin()], 0), torch.cat([x, x], 0)], dim=1),
    ),
    "cat of cat of another type": (
        "cat_of_joined",
        lambda x: torch.cat([torch.cat([x, x.sin()], 1), x.double()], dim=1),
        lambda x: torch.cat([torch.cat([x.long() + 2**24 + 1, x], 1), x.double()], dim=1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_split_and_cat(name: str) -> None:
    rule, positive, negative = CASES[name]
    assert Done(positive, [X]).fired.get(rule), "it did not fire"
    assert not Done(negative, [X]).fired.get(rule), "it fired"


def one_returned(x, y):
    a, b = torch.cat([x, y], 1).split(6, 1)
    return a * 2


def both_returned(x, y):
    a, b = torch.cat([x, y], 1).split(6, 1)
    return a * 2, b * 3


def one_of_them_detached(x, y):
    a, b = torch.stack([x, y]).unbind()
    return a * 2 + b.detach()


@pytest.mark.parametrize("function", [one_returned, both_returned, one_of_them_detached])
def test_what_was_joined_has_a_gradient_of_zeros(function: Any) -> None:
    """And not none, where only the part beside it is used: an optimizer would pass it over."""
    torch._dynamo.reset()
    found = []
    for run in (function, torch.compile(function, backend="litz")):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        result = run(x, y)
        (result[0] if isinstance(result, tuple) else result).sum().backward()
        found.append([x.grad, y.grad])
    torch.testing.assert_close(*found)


# -- convolution and batch norm -----------------------------------------------------------------------
def conv_bn(norm_training: bool = False, used: bool = False, bias: bool = True, affine: bool = True):
    conv, norm = torch.nn.Conv2d(3, 4, 3, stride=2, bias=bias), torch.nn.BatchNorm2d(4, affine=affine)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.train(norm_training)

    def function(x):
        y = conv(x)
        return (norm(y).relu(), y.sum()) if used else norm(y).relu()

    return function


def test_conv_bn() -> None:
    for options in ({}, {"bias": False}, {"affine": False}):
        done = Done(conv_bn(**options), [IMAGE])
        assert done.fired == {"conv_bn_pre_grad": 1}, done.why
        assert done.count(F.batch_norm) == 0


def test_conv_bn_stays() -> None:
    assert Done(conv_bn(), [IMAGE], False).fired == {}
    assert Done(conv_bn(used=True), [IMAGE]).fired == {}
    graph = symbolic_trace(lambda x, m, v: F.batch_norm(torch.conv2d(x, x), m, v, training=True)).graph
    assert sum(mutates(n) for n in graph.nodes) == 1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_bn_without_a_batch(rank: int) -> None:
    """What the convolution calls channels is a batch to the norm, and its channels are what was a dimension."""
    conv = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[rank - 1](2, 6, 3)
    norm = (torch.nn.BatchNorm1d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)[rank - 1](6).eval()
    norm.running_mean.normal_()
    assert Done(lambda x: norm(conv(x)), [torch.randn(2, *[8] * rank)]).fired == {}


def test_conv_bn_trains_all_it_folds() -> None:
    """Weights that the folding reads get the gradients eager gives them."""
    weight, gamma, beta = torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(4)
    mean, variance = torch.randn(4), torch.rand(4) + 0.5

    def function(x, weight, gamma, beta):
        return F.batch_norm(F.conv2d(x, weight, padding=1), mean, variance, gamma, beta, eps=1e-3)

    assert Done(function, [IMAGE, weight, gamma, beta]).fired == {"conv_bn_pre_grad": 1}


# -- masks on GPUs ------------------------------------------------------------------------------------
def _places() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(S)[:, None], torch.arange(S)[None, :]


def _all_true(q, k, v):
    _, keys = _places()
    return SDPA(q, k, v, (keys >= 0).expand(B, 1, S, S))


def _causal(q, k, v):
    queries, keys = _places()
    packed = torch.ones(S, dtype=torch.bool)
    return SDPA(q, k, v, attn_mask=((keys <= queries) & packed[None, :]).expand(B, 1, S, S), scale=0.3)


def _added_zeros(q, k, v):
    return SDPA(q, k, v, torch.zeros(S, S))


def _near_only(q, k, v):
    queries, keys = _places()
    return SDPA(q, k, v, ((queries - keys).abs() < 3).expand(B, 1, S, S))


def _repeated(q, k, v):
    return SDPA(q, k, v, (torch.arange(S)[:, None] % 2).to(q.dtype).expand(B, 1, S, S))


def _written_before(q, k, v):
    mask = torch.ones(S, S, dtype=torch.bool)
    mask[:, 1:] = False
    return SDPA(q, k, v, mask)


MASKS = {
    "all true": (_all_true, None, False), "causal": (_causal, None, True), "zeros": (_added_zeros, None, False),
    "some": (_near_only, "as it was", False), "repeated": (_repeated, "a copy", False),
    "written to": (_written_before, "as it was", False),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("grad", [False, True])
def test_masks_on_gpus(name: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule holds for tensors of GPUs alone; what it does is right anywhere."""
    function, mask, causal = MASKS[name]
    assert Done(function, [Q, K, V], grad).fired == {}
    anywhere = tuple(replace(r, extra_check=None) for r in PRE_GRAD if r.name == "attention_with_known_mask")
    monkeypatch.setattr(pre_grad, "PRE_GRAD", anywhere)
    done = Done(function, [Q, K, V], grad)
    if mask == "as it was":
        assert done.fired == {}
        return
    assert done.fired == {"attention_with_known_mask": 1}
    (node,) = (n for graph in done.graphs for n in graph.nodes if n.target is SDPA)
    assert (node.kwargs["attn_mask"] is None) is (mask is None)
    assert bool(node.kwargs.get("is_causal")) is causal


# -- what they rest on --------------------------------------------------------------------------------
def test_every_rule_is_tested() -> None:
    tested = {case[0] for case in CASES.values()} | {"attention_pre_grad", "conv_bn_pre_grad", "softmax_pre_grad"}
    assert {rule.name for rule in PRE_GRAD} == tested | {"attention_with_known_mask"}


def test_numbers_that_change_are_an_error() -> None:
    before, after = symbolic_trace(lambda x: x.sin()), symbolic_trace(lambda x: x.cos())
    check_numbers(before, before, [X])
    with pytest.raises(VerifyError, match="changed a result"):
        check_numbers(before, after, [X])
