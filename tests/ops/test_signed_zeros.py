"""Signs of zeros, and numbers that Python calls equal: 0.0 and -0.0, and 1, 1.0 and True, in one program.

Each program has both kinds side by side, so that kernels, constants or traces that are shared by `==` show. Left out
is what eager itself does one way in vectors and another in what is left over (`maximum` of two zeros).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from litz.capture.direct import compile_directly

T = torch.tensor
NAN, INF = math.nan, math.inf
MIXED = T([0.0, -0.0, 1.0, -1.0, NAN, INF, -INF, -0.0, 0.0, 2.5, -2.5, 1e-42, -1e-42, -0.0, 3.0, -0.0])
MINUS = -torch.zeros(16)

PROGRAMS: dict[str, Callable[[torch.Tensor], object]] = {
    "clamp": lambda x: (x.clamp(min=0.0), x.clamp(min=-0.0), x.clamp(max=0.0), x.clamp(max=-0.0), x.clamp(0.0, -0.0)),
    "clamp_integers": lambda x: (x.clamp(min=0), x.clamp(max=0), x.clamp(0, 1), x.clamp(-0.0, 0.0)),
    "clamp_tensors": lambda x: (x.clamp(min=T(0.0)), x.clamp(max=T(-0.0)), x.clamp(T(-0.0), T(0.0))),
    "pad": lambda x: (F.pad(x, (2, 1), value=-0.0), F.pad(x, (2, 1), value=0.0), F.pad(x, (2, 1)), F.pad(x, (-1, 2))),
    "pad_image": lambda x: (F.pad(x.view(4, 4), (1, 2, 1, 1), value=-0.0), F.pad(x.view(4, 4), (1, 2, 1, 1), value=0)),
    "full": lambda x: (torch.full((4,), 0.0), torch.full((4,), -0.0), torch.full_like(x, -0.0), -torch.zeros(3)),
    "divisors": lambda x: (x / -0.0, x / 0.0, x / 0, x / -torch.zeros(16), x / torch.zeros(16), 0.0 / x, -0.0 / x),
    "factors": lambda x: (x * 0, x * 0.0, x * -0.0, x * torch.full((16,), -0.0), x * -1, -x, 0 - x, x / -1),
    "add_zero": lambda x: (x + 0, x + 0.0, x + -0.0, x - 0, x - 0.0, x - -0.0, 0 - x, 0.0 - x, -0.0 - x, -0.0 + x),
    "add_zeros": lambda x: (
        x + torch.zeros(16), x - torch.zeros(16), x + torch.full((16,), -0.0), x - torch.full((16,), -0.0),
        torch.zeros(16) - x, torch.add(x, torch.zeros(16), alpha=-1), torch.sub(x, torch.zeros(16), alpha=-1),
        torch.rsub(x, 0), torch.rsub(x, -0.0),
    ),
    "where": lambda x: (
        torch.where(x > 0, x, -0.0), torch.where(x > 0, x, 0.0), torch.where(x > 0, -0.0, 0.0),
        torch.where(x > 0, 0.0, -0.0), torch.where(x > 0, T(-0.0), x), torch.where(x.double() < 0, 0.0, x.double()),
    ),
    "fill": lambda x: (
        x.masked_fill(x > 0, -0.0), x.masked_fill(x > 0, 0.0), x.index_fill(0, T([2]), -0.0), x.clone().fill_(-0.0),
        torch.zeros(16).scatter(0, torch.arange(8), -0.0), torch.zeros(3).index_put((T([1]),), T(-0.0)),
    ),
    "relu": lambda x: (x.relu(), F.relu6(x), F.leaky_relu(x, 0.0), F.leaky_relu(x, -0.0), F.hardtanh(x, -0.0, 1.0)),
    "relu_of_casts": lambda x: (x.double().relu(), x.half().relu(), x.bfloat16().relu(), x.half().float().relu()),
    "activations": lambda x: (
        F.silu(x), F.elu(x), F.elu(x, -0.0), F.elu(x, 0.0), F.celu(x), F.selu(x), F.softplus(x), F.softplus(x, 1, -0.0),
        F.softshrink(x), F.softshrink(x, 0.0), F.hardshrink(x, 0.0), F.tanhshrink(x), F.hardswish(x), F.softsign(x),
        F.threshold(x, 0.0, -0.0), F.threshold(x, -0.0, 0.0), F.logsigmoid(x), F.prelu(x, T([-0.0])),
    ),
    "extremes": lambda x: (
        torch.maximum(x, T(0.0)), torch.maximum(x, T(-0.0)), torch.minimum(T(-0.0), x), torch.fmax(x, T(0.0)),
        torch.fmin(x, T(-0.0)), torch.fmax(T(-0.0), x),
    ),
    "norms": lambda x: (
        F.layer_norm(MINUS.clone(), (16,)), F.layer_norm(MINUS.clone(), (16,), torch.ones(16)),
        F.layer_norm(MINUS.clone(), (16,), torch.ones(16), MINUS.clone()),
        F.layer_norm(torch.ones(16), (16,), MINUS - 1),
        F.batch_norm(MINUS.view(1, 4, 4), torch.zeros(4), torch.ones(4)), F.instance_norm(MINUS.view(1, 4, 4)),
        F.batch_norm(MINUS.view(1, 4, 4), torch.zeros(4), torch.ones(4), torch.ones(4), MINUS[:4].clone()),
        F.batch_norm(MINUS.view(1, 4, 4), None, None, training=True), F.group_norm(MINUS.view(1, 4, 4), 2),
        F.group_norm(MINUS.view(1, 4, 4), 2, torch.ones(4)),
        F.group_norm(MINUS.view(1, 4, 4), 2, torch.ones(4), MINUS[:4].clone()),
    ),
    "interpolate": lambda x: (
        F.interpolate(MINUS.view(1, 1, 16), scale_factor=2, mode="linear"),
        F.interpolate(MINUS.view(1, 2, 8), size=5, mode="linear", align_corners=True),
        F.interpolate(MINUS.view(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
        F.interpolate(MINUS.view(1, 1, 2, 2, 4), scale_factor=2, mode="trilinear"),
    ),
    "pool": lambda x: (
        F.max_pool1d(x.nan_to_num(-0.0).view(1, 1, 16), 2), F.max_pool1d(x.flip(0).clamp(-0.0, 0.0).view(1, 1, 16), 2),
        F.max_pool1d(MINUS.view(1, 1, 16).clone(), 3, 2, 1), F.adaptive_max_pool1d(MINUS.view(1, 1, 16), 3),
    ),
    "copysign": lambda x: (
        torch.copysign(x, 0.0), torch.copysign(x, -0.0), torch.copysign(x, NAN), torch.copysign(x, -NAN),
        torch.copysign(x, 0), torch.copysign(x, -1), torch.copysign(x, torch.full((16,), -0.0)),
        torch.copysign(x, torch.zeros(16)), torch.copysign(x, -torch.zeros(16)), torch.copysign(x, T([0.0, -0.0] * 8)),
    ),
    "same_kernels": lambda x: (x.view(2, 8).copysign(0.0).sin(), x.view(4, 4).copysign(-0.0).sin(), x.copysign(0.0)),
    # Rows that are walked twice, of as many numbers as fill vectors and of fewer.
    "sums_of_rows": lambda x: tuple(
        y.sum(-1, keepdim=True) * torch.ones(y.shape[-1], dtype=y.dtype)
        for minus in [-(x * 0).nan_to_num(0).abs()]
        for y in (minus.view(8, 2), minus.view(4, 4).double(), minus.view(2, 8), minus[None], minus.repeat(2, 4))
    ),
    "sums": lambda x: (
        torch.full((16,), -0.0).sum(), (x * 0).nan_to_num(0).neg().sum(0), x[1:2].sum(), x[1:2].prod(),
        x.view(4, 4).clamp(-0.0, -0.0).nan_to_num(0).sum(0), x[1:3].cumsum(0), x.cumprod(0), MINUS.mean(),
    ),
    "fold": lambda x: (
        x + torch.zeros(16) * -1, x * (torch.ones(16) - 1), x / (torch.zeros(16) * -1.0), T([0.0, -0.0] * 8) + x,
        x / T([0.0, -0.0] * 8), x / T([-0.0, 0.0] * 8), torch.cat([torch.zeros(2), -torch.zeros(2), x]),
        torch.stack([torch.full((2,), -0.0), torch.zeros(2)]),
    ),
    "nan_to_num": lambda x: (torch.nan_to_num(x, -0.0, -0.0, -0.0), torch.nan_to_num(x, 0.0, 0.0, 0.0)),
    "division": lambda x: (
        x // 2, x // -2, x // 0.0, x // -0.0, 0.0 // x, -0.0 // x, x % 2, x % -2, x % INF, 0.0 % x, -0.0 % x,
        torch.fmod(x, -2), torch.div(x, 2, rounding_mode="trunc"), torch.div(x, -2, rounding_mode="floor"),
    ),
    "rounding": lambda x: (
        (x * 0.3).round(), (x * 0.3).trunc(), (x * 0.3).ceil(), (x * 0.3).frac(), x.sign(), x.signbit(),
        torch.round(x * 0.3, decimals=1), torch.heaviside(x, T(-0.0)), torch.heaviside(x, T(0.0)),
    ),
    "functions": lambda x: (
        x.sin(), x.tan(), x.asin(), x.atan(), x.sinh(), x.tanh(), x.asinh(), x.atanh(), x.erf(), x.expm1(), x.log1p(),
        x.sqrt(), x.rsqrt(), x.reciprocal(), x.atan2(x), torch.atan2(T(-0.0), x), x.erfinv(), torch.sinc(x),
    ),
    "powers": lambda x: (x**2, x**3, x**-1, x**-3, x**0.5, x**-0.5, x**0, x**-0.0, x.pow(x), torch.pow(-0.0, x)),
    "products": lambda x: (
        MINUS.view(4, 4).mm(torch.eye(4)), torch.addmm(MINUS.view(4, 4), torch.zeros(4, 4), torch.zeros(4, 4)),
        torch.addmm(x.view(4, 4), torch.ones(4, 4), torch.ones(4, 4), beta=-0.0),
        torch.addcmul(x, x, x, value=0), torch.addcmul(x, x, x, value=-0.0), torch.lerp(x, x + 1, -0.0),
    ),
    "casts": lambda x: (x.double(), x.half() * -0.0, x.bfloat16() + 0, x.bool().float().neg(), x.half().clamp(-0.0)),
    "scatters": lambda x: (
        torch.zeros(16).scatter(0, torch.arange(16), x), MINUS.index_add(0, torch.arange(16), MINUS),
        MINUS.scatter_add(0, torch.arange(16) // 2, MINUS), x.scatter(0, T([2]), -0.0, reduce="multiply"),
    ),
    "ldexp": lambda x: (torch.ldexp(x, T(200)), torch.ldexp(x, T(-200)), torch.ldexp(x * 1e-30, T([200] * 16))),
    "equal_numbers": lambda x: (
        x + True, x + 1, torch.full((3,), True), torch.full((3,), 1), torch.full((3,), 1.0), torch.where(x > 0, 1, 0),
        torch.where(x > 0, True, False), torch.where(x > 0, 1.0, 0.0), torch.full_like(x, 2), torch.full((2,), 2),
    ),
    "equal_factors": lambda x: (
        *(torch.arange(5) * k for k in (2, 2.0, True, 1, 1.0)), *(torch.arange(5) // k for k in (2, 2.0)),
        *(torch.arange(5) ** k for k in (2, 2.0, 0, 0.0)), *(torch.arange(5) + k for k in (1, 1.0, True)),
    ),
}  # fmt: skip


def check(found: object, expected: object) -> None:
    """The same types and numbers, zeros of the same sign, and NaNs at the same places."""
    for mine, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        if mine.is_floating_point():
            number = ~theirs.isnan()
            signs = mine.signbit()[number], theirs.signbit()[number]
            assert torch.equal(*signs), f"{mine} is not {theirs}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="litz", options={"verify": True})
    check(compiled(MIXED), program(MIXED))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_where_a_loss_has_no_gradient(reduction: str) -> None:
    """Zeros, and not minus zeros: nothing was taken there, and nothing multiplied."""

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, target, -T([1.0, -2.0, 3.0]), ignore_index=1, reduction=reduction)

    compiled, gradients = torch.compile(loss, backend="litz", options={"verify": True}), []
    target = T([[[0, 1], [2, 0]], [[1, 1], [2, 2]]])
    for function in (compiled, loss):
        x = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
        function(x, target).sum().backward()
        gradients.append(x.grad)
    check(*gradients)


def test_traces_are_not_shared_between_equal_numbers() -> None:
    x, whole = torch.ones(2), torch.arange(3)
    times = compile_directly(lambda x, k: x * k)
    check([times(whole, k) for k in (2, 2.0, 1, True, 1.0)], [whole * k for k in (2, 2.0, 1, True, 1.0)])
    signed = compile_directly(lambda x, numbers: torch.copysign(x, numbers["by"][0]))
    for number in (0.0, -0.0, NAN, -NAN, 0):
        check(signed(x, {"by": [number]}), torch.copysign(x, number))


def test_traces_are_not_shared_between_equal_keys() -> None:
    back = compile_directly(lambda given: {key: x + 1 for key, x in given.items()})
    for key in (1, True, 1.0):
        ((found, _),) = back({key: torch.ones(2)}).items()
        assert type(found) is type(key)
