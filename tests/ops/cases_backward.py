"""Gradients: activations, losses, views, normalisations, pooling."""

from __future__ import annotations

import math

import torch

from tests.ops.lowering import Case, case

aten = torch.ops.aten
torch.manual_seed(5)
NAN, INF = float("nan"), float("inf")

EDGES = torch.tensor([-INF, -40.0, -3.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 19.0, 40.0, INF, NAN])
# Of these, eager's loops of vectors see NaN otherwise than its loops of numbers, which are for fewer than 16.
_FEW = {"hardswish"}
FEWER = EDGES[EDGES != 19.0]
G = torch.randn(3, 5, 7)
X = torch.randn(3, 5, 7) * 2
TURNED = torch.randn(7, 5, 3).permute(2, 1, 0)
EXPANDED = torch.randn(3, 1, 1).expand(3, 5, 7)
HALF, HALF_X = G.bfloat16(), X.bfloat16()


# Of two layouts torch's fake tensors choose the input's here, and eager the gradient's.
_LAID_OUT_AS_INPUT = ("hardtanh", "hardswish", "hardsigmoid", "softplus")


def _activation(name: str, *rest, result: bool = False) -> list[Case]:
    """The operator on plain, turned, broadcast, half-precision and extreme arguments."""
    operator = getattr(aten, f"{name}_backward").default
    label = "-".join([name, *(str(r) for r in rest)])
    values = torch.rand_like(X) if result else X
    edges = torch.rand_like(EDGES) if result else FEWER if name in _FEW else EDGES

    def call(g, v):
        return operator(g, v, *rest)

    half = {"rtol": 1.6e-2, "atol": 1e-2}
    return [
        case(f"{label}-plain", call, G, values),
        case(f"{label}-turned", call, TURNED, values, strides=name not in _LAID_OUT_AS_INPUT),
        case(f"{label}-expanded", call, EXPANDED, TURNED.sigmoid() if result else TURNED),
        case(f"{label}-bf16", call, HALF, values.bfloat16(), **half),
        case(f"{label}-f64", call, G.double(), values.double()),
        case(f"{label}-edges", call, torch.ones_like(edges), edges),
    ]


ACTIVATIONS = [
    *_activation("gelu"),
    *_activation("silu"),
    *_activation("mish"),
    *_activation("sigmoid", result=True),
    *_activation("tanh", result=True),
    *_activation("threshold", 0),
    *_activation("threshold", 0.5),
    *_activation("leaky_relu", 0.1, False),
    *_activation("hardtanh", -1, 2),
    *_activation("hardswish"),
    *_activation("hardsigmoid"),
    *_activation("softplus", 1, 20),
    *_activation("softplus", 2, 3),
    *_activation("hardshrink", 0.5),
    *_activation("softshrink", 0.5),
    case("gelu-tanh", lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), G, X),
    case(
        "gelu-tanh-bf16",
        lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
        HALF,
        HALF_X,
        rtol=1.6e-2,
        atol=1e-2,
    ),
    case("elu", lambda g, x: aten.elu_backward(g, 1.5, 1.1, 0.9, False, x), G, X),
    case("elu-result", lambda g, x: aten.elu_backward(g, 1.5, 1.1, 1, True, x), G, X),
    case("elu-edges", lambda g, x: aten.elu_backward(g, 1.5, 1.1, 0.9, False, x), torch.ones_like(FEWER), FEWER),
    case("log_sigmoid", lambda g, x: aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1]), G, X),
    case("logit", lambda g, x: aten.logit_backward(g, x), G, torch.rand_like(X)),
    case("logit-eps", lambda g, x: aten.logit_backward(g, x, 0.2), G, torch.rand_like(X)),
    case("prelu", lambda g, x, w: aten._prelu_kernel_backward(g, x, w), G, X, torch.rand(1, 5, 1)),
    case("glu", lambda g, x: aten.glu_backward(g, x, -1), torch.randn(3, 4), torch.randn(3, 8)),
    case("glu-first", lambda g, x: aten.glu_backward(g, x, 0), torch.randn(3, 4), torch.randn(6, 4)),
]


# -- losses -----------------------------------------------------------------------------------
def _losses(name: str, *rest) -> list[Case]:
    operator = getattr(aten, name).default
    one, each = torch.tensor(1.7), G
    x, y = torch.rand_like(X), torch.rand_like(X)
    return [
        case(
            f"{name}-{reduction}-{'-'.join(map(str, rest))}",
            lambda g, u, v, r=reduction: operator(g, u, v, r, *rest),
            grad,
            x,
            y,
        )
        for reduction, grad in ((0, each), (1, one), (2, one))
    ]


def _bce(g, x, y, w, reduction):
    return aten.binary_cross_entropy_backward(g, x, y, w, reduction)


PROBABILITY = torch.tensor([0.0, 1.0, 0.3, 1e-20, 1 - 1e-7])
LOSSES = [
    *_losses("mse_loss_backward"),
    *_losses("smooth_l1_loss_backward", 0.3),
    *_losses("smooth_l1_loss_backward", 0.0),
    *_losses("huber_loss_backward", 0.3),
    *_losses("soft_margin_loss_backward"),
    case(
        "mse_loss_backward-bf16",
        lambda g, x, y: aten.mse_loss_backward(g, x, y, 1),
        torch.tensor(1.5).bfloat16(),
        HALF_X,
        HALF,
    ),
    case("bce", lambda g, x, y: _bce(g, x, y, None, 1), torch.tensor(2.0), torch.rand_like(X), torch.rand_like(X)),
    case(
        "bce-weight", lambda g, x, y, w: _bce(g, x, y, w, 0), G, torch.rand_like(X), torch.rand_like(X), torch.rand(7)
    ),
    case(
        "bce-certain",
        lambda g, x, y: _bce(g, x, y, None, 2),
        torch.tensor(1.0),
        PROBABILITY,
        torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]),
    ),
    case("bce-forward", lambda x, y: aten.binary_cross_entropy(x, y), torch.rand_like(X), torch.rand_like(X)),
    case("bce-forward-certain", lambda x, y: aten.binary_cross_entropy(x, y, None, 0), PROBABILITY, torch.ones(5)),
    case(
        "bce-logits",
        lambda x, y, w: aten.binary_cross_entropy_with_logits(x, y, w, w + 1),
        X,
        torch.rand_like(X),
        torch.rand(7),
    ),
    case(
        "bce-logits-plain",
        lambda x, y: aten.binary_cross_entropy_with_logits(x, y, None, None, 2),
        X,
        torch.rand_like(X),
    ),
    case("soft_margin", lambda x, y: aten.soft_margin_loss(x, y), X, torch.ones_like(X)),
]


# -- views ------------------------------------------------------------------------------------
VIEWS = [
    case("slice", lambda g: aten.slice_backward(g, [3, 9, 7], 1, 2, 7, 1), G),
    case("slice-half", lambda g: aten.slice_backward(g, [3, 5, 14], 2, 7, 2**63 - 1, 1), G),
    case("slice-step", lambda g: aten.slice_backward(g, [3, 16, 7], 1, 1, 16, 3), G),
    case("slice-negative", lambda g: aten.slice_backward(g, [3, 5, 20], -1, -7, 20, 1), TURNED),
    case("slice-nothing", lambda g: aten.slice_backward(g, [3, 4], 0, 3, 3, 1), torch.ones(0, 4)),
    case("slice-bf16", lambda g: aten.slice_backward(g, [5, 5, 7], 0, 1, 4, 1), HALF),
    case("select", lambda g: aten.select_backward(g, [3, 4, 5, 7], 1, 2), G),
    case("select-last", lambda g: aten.select_backward(g, [3, 5, 7, 4], -1, -1), TURNED),
    case("select-only", lambda g: aten.select_backward(g, [1, 3, 5, 7], 0, 0), G),
    case(
        "as_strided",
        lambda x, g: aten.as_strided_scatter(x, g, [2, 3], [6, 2], 1),
        torch.randn(4, 6),
        torch.randn(2, 3),
    ),
    case(
        "as_strided-all",
        lambda x, g: aten.as_strided_scatter(x, g, [2, 3], [3, 1]),
        torch.zeros(2, 3),
        torch.randn(2, 3),
    ),
    case("diagonal", lambda g: aten.diagonal_backward(g, [5, 5], 0, 0, 1), torch.randn(5)),
    case("diagonal-above", lambda g: aten.diagonal_backward(g, [5, 3, 6], 2, 0, 2), torch.randn(3, 4)),
    case("diagonal-below", lambda g: aten.diagonal_backward(g, [5, 6], -1, 0, 1), torch.randn(4)),
    case(
        "unfold",
        lambda g: aten.unfold_backward(g, [3, 11], 1, 7, 1),
        torch.randn(3, 5, 7),
    ),
    case("unfold-step", lambda g: aten.unfold_backward(g, [11, 3], 0, 4, 3), torch.randn(3, 3, 4)),
]


# -- data says where --------------------------------------------------------------------------
MANY = torch.randint(0, 20, (4, 30))
PLACES = torch.stack([torch.randperm(40)[:30] % 20 for _ in range(4)])
SCATTERED = [
    case(
        "embedding",
        lambda g, i: aten.embedding_dense_backward(g, i, 20, -1, False),
        torch.randn(4, 30, 8),
        MANY,
    ),
    case(
        "embedding-padding",
        lambda g, i: aten.embedding_dense_backward(g, i, 20, 3, True),
        torch.randn(4, 30, 8),
        MANY,
    ),
    case(
        "index_put-accumulate",
        lambda g, i: aten.index_put(g.new_zeros(20, 8), [i], g, True),
        torch.randn(4, 30, 8),
        MANY,
    ),
    case(
        "scatter_add-many",
        lambda g, i: g.new_zeros(4, 20).scatter_add(1, i, g),
        torch.randn(4, 30),
        MANY,
    ),
    case(
        "index_add-many",
        lambda g, i: g.new_zeros(20, 8).index_add(0, i[0], g),
        torch.randn(30, 8),
        MANY,
    ),
    case("max-gradient", lambda g, i: g.new_zeros(4, 20).scatter(1, i[:, :1], g), torch.randn(4, 1), MANY),
]


# -- normalisations ---------------------------------------------------------------------------
def _layer_norm(g, x, width, weight, bias, mask=(True, True, True)):
    shape = x.shape[x.dim() - width :]
    _, mean, rstd = aten.native_layer_norm(x, shape, weight, bias, 1e-5)
    found = aten.native_layer_norm_backward(g, x, shape, mean, rstd, weight, bias, mask)
    return [f for f, asked in zip(found, mask, strict=True) if asked]


def _group_norm(g, x, weight, groups, mask=(True, True, True)):
    n, c = x.shape[:2]
    inner = math.prod(x.shape[2:])
    _, mean, rstd = aten.native_group_norm(x, weight, weight, n, c, inner, groups, 1e-5)
    found = aten.native_group_norm_backward(g, x, mean, rstd, weight, n, c, inner, groups, mask)
    return [f for f, asked in zip(found, mask, strict=True) if asked]


def _batch_norm(g, x, weight, mean, var, train, mask=(True, True, True)):
    _, save_mean, save_rstd = aten.native_batch_norm(x, weight, weight, mean.clone(), var.clone(), train, 0.1, 1e-5)
    found = aten.native_batch_norm_backward(g, x, weight, mean, var, save_mean, save_rstd, train, 1e-5, mask)
    return [f for f, asked in zip(found, mask, strict=True) if asked]


W7, W35 = torch.rand(7) + 0.5, torch.rand(5, 7) + 0.5
LONG_G, LONG_X, W4 = torch.randn(4, 67, 4), torch.randn(4, 67, 4), torch.rand(4) + 0.5  # 67: stretches do not divide it
PRIME_G, PRIME_X = torch.randn(149, 4), torch.randn(149, 4)
IMAGE_G, IMAGE = torch.randn(2, 6, 9, 8), torch.randn(2, 6, 9, 8) + 1
LAST_G, LAST = (t.to(memory_format=torch.channels_last) for t in (IMAGE_G, IMAGE))
W6, M6, V6 = torch.rand(6) + 0.5, torch.randn(6), torch.rand(6) + 0.5
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
ROUGH = {"rtol": 3e-2, "atol": 5e-2}

NORMS = [
    case("layer_norm", lambda g, x, w: _layer_norm(g, x, 1, w, w), G, X, W7, **CLOSE),
    case("layer_norm-two", lambda g, x, w: _layer_norm(g, x, 2, w, w), G, X, W35, **CLOSE),
    case("layer_norm-bare", lambda g, x: _layer_norm(g, x, 1, None, None, (True, False, False)), G, X, **CLOSE),
    case("layer_norm-weights", lambda g, x, w: _layer_norm(g, x, 1, w, w, (False, True, True)), G, X, W7, **CLOSE),
    case("layer_norm-bias", lambda g, x, w: _layer_norm(g, x, 1, w, w, (False, False, True)), G, X, W7, **CLOSE),
    case("layer_norm-turned", lambda g, x, w: _layer_norm(g, x, 1, w, w), TURNED, X, W7, strides=False, **CLOSE),
    case("layer_norm-stretches", lambda g, x, w: _layer_norm(g, x, 1, w, w), LONG_G, LONG_X, W4, **CLOSE),
    case("layer_norm-prime", lambda g, x, w: _layer_norm(g, x, 1, w, w), PRIME_G, PRIME_X, W4, **CLOSE),
    case(
        "layer_norm-bf16",
        lambda g, x, w: _layer_norm(g, x, 1, w, w),
        G[:1].bfloat16(),
        X[:1].bfloat16(),
        W7.bfloat16(),
        **ROUGH,
    ),
    case("layer_norm-mixed", lambda g, x, w: _layer_norm(g, x, 1, w, w), HALF, HALF_X, W7, **ROUGH),
    case("group_norm", lambda g, x, w: _group_norm(g, x, w, 3), IMAGE_G, IMAGE, W6, **CLOSE),
    case("group_norm-one", lambda g, x, w: _group_norm(g, x, w, 1), IMAGE_G, IMAGE, W6, **CLOSE),
    case("group_norm-bare", lambda g, x: _group_norm(g, x, None, 2, (True, False, False)), IMAGE_G, IMAGE, **CLOSE),
    case(
        "group_norm-bf16",
        lambda g, x, w: _group_norm(g, x, w, 2),
        IMAGE_G.bfloat16(),
        IMAGE.bfloat16(),
        W6.bfloat16(),
        **ROUGH,
    ),
    case("batch_norm", lambda *a: _batch_norm(*a, True), IMAGE_G, IMAGE, W6, M6, V6, **CLOSE),
    case("batch_norm-last", lambda *a: _batch_norm(*a, True), LAST_G, LAST, W6, M6, V6, **CLOSE),
    case("batch_norm-layouts", lambda *a: _batch_norm(*a, True), IMAGE_G, LAST, W6, M6, V6, strides=False, **CLOSE),
    case("batch_norm-fixed", lambda *a: _batch_norm(*a, False), IMAGE_G, IMAGE, W6, M6, V6, **CLOSE),
    case("batch_norm-fixed-last", lambda *a: _batch_norm(*a, False), LAST_G, LAST, W6, M6, V6, **CLOSE),
    case(
        "batch_norm-rows",
        lambda *a: _batch_norm(*a, True),
        torch.randn(300, 6),
        torch.randn(300, 6),
        W6,
        M6,
        V6,
        **CLOSE,
    ),
    case("batch_norm-input", lambda *a: _batch_norm(*a, True, (True, False, False)), LAST_G, LAST, W6, M6, V6, **CLOSE),
    case("batch_norm-bf16", lambda *a: _batch_norm(*a, True), LAST_G.bfloat16(), LAST.bfloat16(), W6, M6, V6, **ROUGH),
    case("softmax", lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32), G, X.softmax(-1)),
    case("softmax-middle", lambda g, y: aten._softmax_backward_data(g, y, 1, torch.float32), TURNED, X.softmax(1)),
    case(
        "softmax-bf16",
        lambda g, y: aten._softmax_backward_data(g, y, -1, torch.bfloat16),
        HALF,
        X.softmax(-1).bfloat16(),
        rtol=2e-2,
        atol=2e-3,
    ),
    case("log_softmax", lambda g, y: aten._log_softmax_backward_data(g, y, -1, torch.float32), G, X.log_softmax(-1)),
    case(
        "log_softmax-first",
        lambda g, y: aten._log_softmax_backward_data(g, y, 0, torch.float32),
        EXPANDED,
        X.log_softmax(0),
    ),
    case(
        "log_softmax-number",
        lambda g, y: aten._log_softmax_backward_data(g, y, 0, torch.float32),
        torch.tensor(2.0),
        torch.tensor(0.0),
    ),
    case(
        "safe_softmax",
        lambda x: aten._safe_softmax(x, -1),
        torch.where(X > 0, X, -INF).masked_fill(torch.eye(5, 7) > 0, -INF),
    ),
    case("safe_softmax-masked", lambda x: aten._safe_softmax(x, -1), torch.tensor([[-INF] * 9, [1.0] * 9])),
]


# -- pooling ----------------------------------------------------------------------------------
def _max_pool(x, *window):
    kernel, stride, padding, dilation, ceil = window
    values, places = aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil)
    return aten.max_pool2d_with_indices_backward(values.cos(), x, kernel, stride, padding, dilation, ceil, places)


def _avg_pool(x, kernel, stride, padding, ceil=False, include=True, divisor=None):
    y = aten.avg_pool2d(x, kernel, stride, padding, ceil, include, divisor)
    return aten.avg_pool2d_backward(y.cos(), x, kernel, stride, padding, ceil, include, divisor)


def _adaptive(x, sizes):
    return aten._adaptive_avg_pool2d_backward(aten._adaptive_avg_pool2d(x, sizes).cos(), x)


def _max_pool3d(x):
    values, places = aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 2, 1])
    return aten.max_pool3d_with_indices_backward(values, x, [2, 2, 2], [2, 2, 1], [0, 0, 0], [1, 1, 1], False, places)


POOLS = [
    case("max_pool", lambda x: _max_pool(x, [2, 2], [2, 2], [0, 0], [1, 1], False), LAST),
    # Strides along the contiguous dimension would be gathers: the library's.
    case("max_pool-rows", lambda x: _max_pool(x, [2, 2], [2, 2], [0, 0], [1, 1], False), IMAGE),
    case("max_pool-resnet", lambda x: _max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1], False), LAST),
    case("max_pool-overlap", lambda x: _max_pool(x, [3, 3], [1, 1], [1, 1], [1, 1], False), IMAGE),
    case("max_pool-dilated", lambda x: _max_pool(x, [3, 2], [2, 1], [1, 0], [2, 3], True), IMAGE),
    case("max_pool-gaps", lambda x: _max_pool(x, [1, 2], [3, 3], [0, 0], [1, 1], False), LAST),
    case(
        "max_pool-bf16",
        lambda x: _max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1], False),
        LAST.bfloat16(),
        rtol=2e-2,
        atol=2e-2,
    ),
    case("max_pool-no-batch", lambda x: _max_pool(x[0], [3, 3], [1, 1], [1, 1], [1, 1], False), IMAGE),
    case("max_pool-3d", _max_pool3d, torch.randn(1, 2, 4, 5, 6)),
    case("avg_pool", lambda x: _avg_pool(x, [2, 2], [2, 2], [0, 0]), IMAGE),
    case("avg_pool-overlap", lambda x: _avg_pool(x, [3, 3], [2, 2], [1, 1]), LAST),
    case("avg_pool-inside", lambda x: _avg_pool(x, [3, 3], [2, 2], [1, 1], False, False), IMAGE),
    case("avg_pool-ceil", lambda x: _avg_pool(x, [3, 2], [2, 3], [1, 0], True), IMAGE),
    case("avg_pool-ceil-inside", lambda x: _avg_pool(x, [3, 3], [2, 2], [1, 1], True, False), LAST),
    case("avg_pool-larger-than-image", lambda x: _avg_pool(x, [40, 3], [40, 1], [0, 1], True), IMAGE),
    case("avg_pool-larger-overlap", lambda x: _avg_pool(x, [8, 6], [1, 2], [4, 3], False, False), LAST),
    case("max_pool-larger-than-image", lambda x: _max_pool(x, [12, 9], [1, 2], [6, 4], [1, 1], False), LAST),
    case("avg_pool-divisor", lambda x: _avg_pool(x, [3, 3], [1, 1], [1, 1], False, True, 5), IMAGE),
    case(
        "avg_pool-3d",
        lambda x: aten.avg_pool3d_backward(
            aten.avg_pool3d(x, [2, 3, 2]).cos(), x, [2, 3, 2], [2, 3, 2], [0, 0, 0], False, True, None
        ),
        torch.randn(1, 2, 4, 6, 6),
    ),
    case("adaptive-one", lambda x: _adaptive(x, [1, 1]), IMAGE),
    case("adaptive-one-last", lambda x: _adaptive(x, [1, 1]), LAST),
    case("adaptive-even", lambda x: _adaptive(x, [3, 4]), IMAGE),
    case("adaptive-uneven", lambda x: _adaptive(x, [4, 3]), LAST),
    case("adaptive-more", lambda x: _adaptive(x, [12, 11]), IMAGE),
]


CASES = [*ACTIVATIONS, *LOSSES, *VIEWS, *SCATTERED, *NORMS, *POOLS]
