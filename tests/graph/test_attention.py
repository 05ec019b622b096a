"""Attention by hand, in many spellings: all of them are one operator afterwards, and near misses say why not."""

from __future__ import annotations

import math

import pytest
import torch

from litz.graph.rules import JOINT
from litz.graph.rules.attention import ATTENTION
from litz.graph.rules.attention_training import ATTENTION_TRAINING
from litz.graph.rules.softmax import SOFTMAX
from tests.graph.rewriting import Rewritten, rewrite

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default

B, H, S, D = 2, 3, 10, 8
torch.manual_seed(0)
Q, K, V = (torch.randn(B, H, S, D) for _ in range(3))
TOKENS = tuple(torch.randn(B, S, H * D) for _ in range(3))
PADDING = torch.rand(B, 1, 1, S) > 0.3
PADDING[..., 0] = True
BIAS = torch.randn(1, H, S, S)
SCALE = 1 / math.sqrt(D)


def flash(done: Rewritten) -> list:
    return [n for n in done.graph.graph.nodes if n.target is FLASH]


def heads(x):
    return x.view(B, S, H, D).transpose(1, 2)


def causal(q: int = S, k: int = S):
    return torch.arange(k).unsqueeze(0) <= torch.arange(q).unsqueeze(1)


def written_softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def flat_heads(q, k, v, bias):
    """The batch of heads in one dimension, as older models do."""
    q, k, v = (heads(x).reshape(B * H, S, D) for x in (q * SCALE, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, S, S) + bias
    p = torch.softmax(scores.view(B * H, S, S), -1)
    return torch.bmm(p, v).view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


SPELLINGS = {
    "mul": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) * SCALE, -1) @ v,
    "div": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1) @ v,
    "div by tensor": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / torch.full((), math.sqrt(D)), -1) @ v,
    "no scale": lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v,
    "scaled query": lambda q, k, v: torch.softmax((q * SCALE) @ k.mT, -1) @ v,
    "scaled key": lambda q, k, v: torch.softmax(q @ (k / 3.0).mT, -1) @ v,
    "both scaled": lambda q, k, v: torch.softmax((q * SCALE**0.5) @ (k * SCALE**0.5).mT, -1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bhqk,bhkd->bhqd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * SCALE, -1), v
    ),
    "softmax by hand": lambda q, k, v: written_softmax(q @ k.mT * SCALE) @ v,
    "float softmax": lambda q, k, v: torch.softmax(q @ k.mT * SCALE, -1, dtype=torch.float32).to(q.dtype) @ v,
    "constant shift": lambda q, k, v: torch.softmax(q @ k.mT * SCALE + 3.0, -1) @ v,
    "dropout off": lambda q, k, v: torch.nn.functional.dropout(torch.softmax(q @ k.mT * SCALE, -1), 0.5, False) @ v,
    "one head": lambda q, k, v: torch.softmax(q[0, 0] @ k[0, 0].t() * SCALE, -1) @ v[0, 0],
    "three dimensions": lambda q, k, v: torch.softmax(q[0] @ k[0].mT * SCALE, -1) @ v[0],
    "five dimensions": lambda q, k, v: (
        torch.softmax(q.unsqueeze(1).expand(B, 2, H, S, D) @ k.unsqueeze(1).mT, -1) @ v.unsqueeze(1)
    ),
    "batch of one": lambda q, k, v: torch.softmax(q[:1] @ k[:1].mT * SCALE, -1) @ v[:1],
    "fewer keys": lambda q, k, v: torch.softmax(q @ k[:, :, :7].mT * SCALE, -1) @ v[:, :, :7],
    "grouped heads": lambda q, k, v: (
        torch.softmax(q @ k[:, :1].expand(B, H, S, D).mT * SCALE, -1) @ v[:, :1].expand(B, H, S, D)
    ),
    "keys permuted at once": lambda q, k, v: (
        torch.softmax(q @ k.transpose(1, 2).contiguous().permute(0, 2, 3, 1) * SCALE, -1) @ v
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    done = rewrite(lambda *args: (SPELLINGS[name](*args) + 0.5,), [Q, K, V], SOFTMAX + ATTENTION)
    (node,) = flash(done)
    assert "attn_mask" not in node.kwargs or node.kwargs["attn_mask"] is None
    assert done.count(aten._softmax.default) == 0 and done.count(aten.bmm.default, aten.mm.default) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_types(dtype: torch.dtype) -> None:
    done = rewrite(
        lambda *args: (SPELLINGS["mul"](*args),), [x.to(dtype) for x in (Q, K, V)], ATTENTION, tolerance=3e-2
    )
    assert len(flash(done)) == 1


MASKS = {
    "added": (lambda s, m: s + torch.where(m, 0.0, -math.inf), "mask"),
    "added on the left": (lambda s, m: torch.where(m, 0.0, torch.finfo(torch.float32).min) + s, "mask"),
    "filled": (lambda s, m: s.masked_fill(~m, -math.inf), "mask"),
    "filled with the least": (lambda s, m: s.masked_fill(~m, torch.finfo(torch.float32).min), "mask"),
    "chosen": (lambda s, m: torch.where(m, s, torch.full((), -1e30)), "mask"),
    "chosen the other way": (lambda s, m: torch.where(~m, torch.full((), -1e30), s), "mask"),
    "two": (lambda s, m: s + torch.where(m, 0.0, -1e30) + m.float() * 2, "mask"),
    "scaled afterwards": (lambda s, m: (s + m.float()) * 0.5, "mask"),
    "zeros": (lambda s, m: s + torch.zeros(S, S), "none"),
    "all true": (lambda s, m: s.masked_fill((torch.arange(S) < 0), -math.inf), "none"),
    "causal": (lambda s, m: s.masked_fill(~causal(), -math.inf), "causal"),
    "causal, added": (lambda s, m: s + torch.full((S, S), -math.inf).triu(1), "causal"),
    "causal, chosen": (lambda s, m: torch.where(causal(), s, torch.finfo(s.dtype).min), "causal"),
    "causal and padding": (lambda s, m: s + torch.where(causal() & m, 0.0, -1e30), "mask"),
    "causal, then padding": (lambda s, m: s.masked_fill(~causal(), -1e30) + torch.where(m, 0.0, -1e30), "mask"),
    "a window": (
        lambda s, m: s.masked_fill(
            ~(causal() & (torch.arange(S).unsqueeze(0) > torch.arange(S).unsqueeze(1) - 3)), -1e30
        ),
        "mask",
    ),
    "weakly causal": (lambda s, m: s + torch.full((S, S), -5.0).triu(1), "mask"),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    apply, kind = MASKS[name]
    done = rewrite(
        lambda q, k, v, m: (torch.softmax(apply(q @ k.mT * SCALE, m), -1) @ v,), [Q, K, V, PADDING], ATTENTION
    )
    (node,) = flash(done)
    assert (node.kwargs.get("attn_mask") is not None) == (kind == "mask")
    assert (len(node.args) > 4 and node.args[4] is True) == (kind == "causal")


@pytest.mark.parametrize("keys", [7, 13])
def test_causal_with_other_lengths(keys: int) -> None:
    k, v = torch.randn(B, H, keys, D), torch.randn(B, H, keys, D)

    def attend(q, k, v, shift):
        visible = torch.arange(keys).unsqueeze(0) <= torch.arange(S).unsqueeze(1) + shift
        return (torch.softmax((q @ k.mT).masked_fill(~visible, -1e30), -1) @ v,)

    (node,) = flash(rewrite(lambda *args: attend(*args, 0), [Q, k, v], ATTENTION))
    assert node.args[4] is True
    # Aligned at the end, as with a cache: that is not what is_causal means.
    (node,) = flash(rewrite(lambda *args: attend(*args, max(keys - S, 1)), [Q, k, v], ATTENTION))
    assert node.kwargs.get("attn_mask") is not None


def test_heads_flattened_into_the_batch() -> None:
    for bias in (torch.zeros(()), BIAS):
        done = rewrite(lambda *args: (flat_heads(*args),), [*TOKENS, bias], JOINT)
        assert len(flash(done)) == 1
    # No copy of queries, keys or values is left: the fused operator reads the projections where they are.
    assert done.count(aten.clone.default) == 0


def test_a_mask_given_to_the_fused_operator() -> None:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for mask, kind in (
        (lambda: torch.ones(S, S, dtype=torch.bool), "none"),
        (causal, "causal"),
        (lambda: causal() & (torch.arange(S) > 2) | torch.eye(S).bool(), "mask"),
    ):
        done = rewrite(lambda q, k, v, mask=mask: (sdpa(q, k, v, attn_mask=mask()),), [Q, K, V], ATTENTION)
        (node,) = flash(done)
        assert (node.kwargs.get("attn_mask") is not None) == (kind == "mask")
        assert (len(node.args) > 4 and node.args[4] is True) == (kind == "causal")


@pytest.mark.parametrize("kind", ["none", "causal"])
def test_a_mask_in_training(kind: str) -> None:
    def attend(q, k, v):
        mask = causal() if kind == "causal" else torch.ones(S, S, dtype=torch.bool)
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask) * 2,)

    done = rewrite(attend, [Q, K, V], ATTENTION, training=True)
    assert done.fired == {"attention_mask": 1, "attention_mask_backward": 1}
    fused = [n for n in done.graph.graph.nodes if "_scaled_dot_product_" in str(n.target)]
    assert len(fused) == 2 and not any(n.kwargs.get("attn_mask") is not None for n in fused)


@pytest.mark.parametrize("name", [name for name in SPELLINGS if name != "softmax by hand"])
def test_spellings_in_training(name: str) -> None:
    """Forward and all three gradients, against the graph that was not rewritten."""
    done = rewrite(lambda *args: (SPELLINGS[name](*args) * 2,), [Q, K, V], ATTENTION_TRAINING, training=True)
    assert done.fired == {"attention_training": 1}
    assert done.count(aten._softmax.default, aten._softmax_backward_data.default) == 0


@pytest.mark.parametrize("name", MASKS)
def test_masks_in_training(name: str) -> None:
    apply, kind = MASKS[name]

    def attend(q, k, v, m):
        return (torch.softmax(apply(q @ k.mT * SCALE, m), -1) @ v,)

    done = rewrite(attend, [Q, K, V, PADDING], ATTENTION_TRAINING, training=True)
    (node,) = flash(done)
    assert (node.kwargs.get("attn_mask") is not None) == (kind == "mask")


def weights_with_a_loss(q, k, v):
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p.sum()


def learned_bias(q, k, v):
    return (torch.softmax(q @ k.mT + v.sum(-1).unsqueeze(-2), -1) @ v,)


@pytest.mark.parametrize("function", [weights_with_a_loss, learned_bias])
def test_what_is_not_fused_in_training(function) -> None:
    """Something else needs the probabilities, or their gradient."""
    assert rewrite(function, [Q, K, V], ATTENTION_TRAINING, training=True).fired == {}


def seen_weights(q, k, v):
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p


def seen_scores(q, k, v):
    s = q @ k.mT
    return torch.softmax(s, -1) @ v, s.sum()


NO_ATTENTION = {
    "softmax over queries": (lambda q, k, v: (torch.softmax(q @ k.mT, -2) @ v,), "over dimension"),
    "a nonlinearity": (lambda q, k, v: (torch.softmax(torch.relu(q @ k.mT), -1) @ v,), "aten.relu.default"),
    "another after the softmax": (lambda q, k, v: (torch.relu(torch.softmax(q @ k.mT, -1)) @ v,), "aten.relu.default"),
    "weights returned": (seen_weights, "also used by"),
    "scores returned": (seen_scores, "also used by"),
    "no product": (
        lambda q, k, v: (torch.softmax((q * k) @ torch.ones(D, S) + q.sum(-1, keepdim=True).cos(), -1) @ v,),
        None,
    ),
    "values of another size": (lambda q, k, v: (torch.softmax(q @ k.mT, -1) @ v[..., :5],), "different sizes"),
    "a fill that hides nothing": (
        lambda q, k, v: (torch.softmax((q @ k.mT).masked_fill(torch.arange(S) > q[0, 0, 0, 0], -1.0), -1) @ v,),
        "does not hide",
    ),
    "a scale for each head": (
        lambda q, k, v: (torch.softmax((q @ k.mT) * torch.arange(1.0, H + 1).view(H, 1, 1), -1) @ v,),
        "aten.mul.Tensor",
    ),
    "values of another type": (
        lambda q, k, v: (torch.softmax(q @ k.mT, -1).bfloat16() @ v.bfloat16(),),
        "different types",
    ),
}


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_what_is_no_attention(name: str) -> None:
    function, why = NO_ATTENTION[name]
    done = rewrite(function, [Q, K, V], ATTENTION)
    if why is None:
        return
    assert flash(done) == []
    assert any(why in miss.why for miss in done.misses), [m.why for m in done.misses]
