"""Random numbers come from eager's generator, so that a seed means the same: the operators are called, on purpose.

What surrounds them is generated: dropout calls for its mask alone, written straight into a buffer of ours, and
fusion joins its product with the neighbours. On a GPU, whose generator has no more state than a counter, dropout and
coins are drawn in kernels (`graph/replay_draws.py`), where eager's way of dealing the numbers out is known; `replayed`
says where.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from litz.loop.dtype import compute_type, from_torch
from litz.loop.ir import Call, View
from litz.ops.builder import Body, Builder, Point, Val, computed, operand
from litz.ops.draw import Dealing, dropout_dealing
from litz.ops.library import call, called
from litz.ops.registry import lowers

aten = torch.ops.aten

_NAMES = (
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_functional",
    "uniform", "exponential", "geometric", "log_normal", "cauchy", "random", "poisson", "binomial", "multinomial",
    "rrelu_with_noise_functional", "_standard_gamma", "_sample_dirichlet",
)  # fmt: skip


_SHORT = 1 << 31  # bytes of a tensor that eager draws in one kernel
_FEW = 1 << 18  # elements: of more, a kernel of eager's, which has four from each block, is the better way
_DRAWN_AS_COINS = (aten.bernoulli.p, aten.rand.default, aten.rand_like.default)


def replayed(node: fx.Node) -> Dealing | str:
    """How eager's kernel for GPUs deals out the numbers that the operator draws, or why that is left to it."""
    if node.target is aten.native_dropout.default:
        return _dropout_replayed(*node.args, *node.meta["val"])  # type: ignore[arg-type]
    if node.target not in _DRAWN_AS_COINS:
        return "drawn as it is"
    value = node.meta["val"]
    if value.dtype is torch.float64 or from_torch(value.dtype) is None:
        return "numbers of 64 bits are drawn in another way"
    if any(isinstance(n, torch.SymInt) for n in value.shape) or not 0 < value.numel() * value.element_size() < _SHORT:
        return "it has no elements, or perhaps more than eager draws at a time"
    if node.target is aten.bernoulli.p:
        p = node.args[1]
        if len(node.args) > 2 or node.kwargs.get("generator") is not None:
            return "it has a generator of its own"
        if not isinstance(p, (int, float)) or not 0 <= p <= 1:
            return "its probability is none, or known only at run time"
    elif value.numel() > _FEW:
        return "there are so many elements that a kernel of eager's pays"
    return Dealing(1, tuple(value.stride()))


def _dropout_replayed(x: fx.Node, p: Any, train: bool | None, kept: torch.Tensor, mask: torch.Tensor) -> Dealing | str:
    if not isinstance(p, (int, float)):
        return "its probability is known only at run time"
    if p == 1 or train is False or kept.numel() == 0:
        return "it draws nothing"
    return dropout_dealing(x.meta["val"], mask)


def _bernoulli(b: Builder, fake: torch.Tensor, p: float, generator: Any = None) -> View:
    """Ones with probability `p`, else zeros, in a new buffer like `fake`."""
    out = b.allocate(fake)
    kwargs = (("generator", generator),) if generator is not None else ()
    name, args = f"c{len(b.steps)}", (out, float(p))
    b.steps.append(Call(name, "aten::bernoulli_.float", args, kwargs, (None,), (out.buffer,), "library", b.origin()))
    return out


@lowers(aten.bernoulli.p)
def bernoulli(b: Builder, node: fx.Node, like: View, p: float, generator: Any = None) -> Any:
    # Only the shape of the first argument counts, and the memory behind it need not have been written.
    return _bernoulli(b, node.meta["val"], p, generator)


lowers(aten.bernoulli.default, aten.bernoulli.Tensor)(call)


@lowers(aten.native_dropout.default)
def native_dropout(b: Builder, node: fx.Node, x: View, p: float, train: bool | None) -> Any:
    kept_fake, mask_fake = node.meta["val"]
    if train is not None and not train:
        kept = b.pointwise(kept_fake, lambda body, point: operand(body, point, x, x.dtype))
        return kept, b.pointwise(mask_fake, lambda body, point: body.const(True, "b1"))
    if b.ctx.target.drawing_threads is not None:
        if p == 1:
            zeros = b.pointwise(kept_fake, lambda body, point: body.const(0, x.dtype))
            return zeros, b.pointwise(mask_fake, lambda body, point: body.const(False, "b1"))
        why = replayed(node)
        return b.call(node, (x, p, train), {}, why) if isinstance(why, str) else b.library(node, (x, p, train), {})
    if kept_fake.numel() == 0 or mask_fake.dtype != torch.bool:
        return NotImplemented
    mask = _bernoulli(b, mask_fake, 1 - p)
    return b.pointwise(kept_fake, _masked(b, x, mask, 0.0 if p == 1 else 1 / (1 - p), compute_type(x.dtype))), mask


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(b: Builder, node: fx.Node, grad: View, mask: View, scale: float) -> Any:
    if from_torch(node.meta["val"].dtype) is None:
        return NotImplemented
    return b.pointwise(node.meta["val"], _masked(b, grad, mask, scale, computed(node.meta["val"])))


def _masked(b: Builder, x: View, mask: View, scale: float, dtype: str) -> Any:
    """`x * mask * scale`, as eager computes it: a dropped NaN stays NaN."""

    def product(body: Body, point: Point) -> Val:
        return operand(body, point, x, dtype) * operand(body, point, mask, dtype) * scale

    def choice(body: Body, point: Point) -> Val:
        # The same to the last bit, and to the sign of a zero: a product with one is exact.
        chosen = body.where(operand(body, point, mask, "b1"), body.const(scale, dtype), 0.0)
        return operand(body, point, x, dtype) * chosen

    # A mask that is drawn in the same kernel is a condition, and never a number.
    in_kernel = b.ctx.target.drawing_threads is not None
    return choice if in_kernel and isinstance(scale, (int, float)) and 0 < scale < math.inf else product


called(*_NAMES)
