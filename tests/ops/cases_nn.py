"""Pooling, interpolation, normalisation, softmax and losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.ops.lowering import Case, case

torch.manual_seed(2)
NAN, INF = float("nan"), float("inf")
IMAGE = torch.randn(2, 4, 9, 7)
LAST = IMAGE.to(memory_format=torch.channels_last)
SLICED = torch.randn(2, 4, 18, 7)[:, :, ::2]
VOLUME = torch.randn(1, 2, 5, 6, 4)
ROWS = torch.randn(3, 4, 11)
HALF, DOUBLE = IMAGE.bfloat16(), IMAGE.double()
INTS = torch.randint(-99, 99, (1, 2, 6, 6))
W4, B4 = torch.randn(4), torch.randn(4)
LOGITS, LABELS = torch.randn(6, 5), torch.tensor([0, 3, 4, 1, -100, 2])
HOLES = IMAGE.clone()
HOLES[0, 0, 3, 3] = NAN
NOTHING = torch.full((1, 1, 4, 4), -INF)


def _maxes(x, *args, **kwargs):
    return F.max_pool2d(x, *args, return_indices=True, **kwargs)


def _batch_norm_functional(x, mean, var, weight):
    return torch.ops.aten._native_batch_norm_legit_functional(x, weight, mean, mean, var, True, 0.1, 1e-5)


def _nll_loss_backward(x, labels, weight, total_weight):
    return torch.ops.aten.nll_loss_backward(total_weight * 2, x, labels, weight, 1, -100, total_weight)


POOL = [
    case("max_pool2d", lambda x: F.max_pool2d(x, 2), IMAGE),
    case("max_pool2d-resnet", lambda x: F.max_pool2d(x, 3, 2, 1), LAST),
    case("max_pool2d-indices", lambda x: _maxes(x, 3, 2, 1), IMAGE),
    case("max_pool2d-indices-last", lambda x: _maxes(x, 3, 2, 1), LAST),
    case("max_pool2d-dilation", lambda x: _maxes(x, 2, 2, 1, 2), SLICED),
    case("max_pool2d-ceil", lambda x: _maxes(x, 2, 2, ceil_mode=True), IMAGE),
    case("max_pool2d-uneven", lambda x: _maxes(x, (3, 2), (1, 2), (1, 0)), IMAGE),
    case("max_pool2d-nan", lambda x: F.max_pool2d(x, 3, 2, 1), HOLES),
    case("max_pool2d-nothing", lambda x: _maxes(x, 3, 1, 1), NOTHING),
    case("max_pool2d-int", lambda x: F.max_pool2d(x, 3, 2, 1), INTS),
    case("max_pool2d-bf16", lambda x: F.max_pool2d(x, 3, 2, 1), HALF),
    case("max_pool2d-no-batch", lambda x: _maxes(x[0], 2), IMAGE),
    case("max_pool2d-one", lambda x: _maxes(x, 1), IMAGE),
    case("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), ROWS),
    case("max_pool3d", lambda x: F.max_pool3d(x, 2, return_indices=True), VOLUME),
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), IMAGE),
    case("avg_pool2d-last", lambda x: F.avg_pool2d(x, 3, 2, 1), LAST),
    case("avg_pool2d-inside", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    case("avg_pool2d-ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), SLICED),
    case("avg_pool2d-ceil-inside", lambda x: F.avg_pool2d(x, 2, 2, 0, True, False), IMAGE),
    case("avg_pool2d-divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), IMAGE),
    case("avg_pool2d-bf16", lambda x: F.avg_pool2d(x, 3, 1, 1), HALF),
    case("avg_pool2d-larger-than-image", lambda x: F.avg_pool2d(x, 1280, ceil_mode=True), LAST),
    case("avg_pool2d-larger-inside", lambda x: F.avg_pool2d(x, (14, 9), (1, 2), (7, 4), True, False), IMAGE),
    case("max_pool2d-larger-than-image", lambda x: _maxes(x, (14, 9), (2, 1), (7, 4)), IMAGE),
    case("max_pool2d-larger-dilated", lambda x: _maxes(x, 3, 1, 1, 4, ceil_mode=True), IMAGE),
    case("max_pool2d-larger-nothing", lambda x: _maxes(x, 7, 2, 3), NOTHING),
    case("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), ROWS),
    case("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 2, 1), VOLUME),
    case("adaptive_avg-one", lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    case("adaptive_avg-even", lambda x: F.adaptive_avg_pool2d(x, (3, 7)), IMAGE),
    case("adaptive_avg-uneven", lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMAGE),
    case("adaptive_avg-up", lambda x: F.adaptive_avg_pool2d(x, (12, 7)), LAST),
    case("adaptive_avg-1d", lambda x: F.adaptive_avg_pool1d(x, 4), ROWS),
    case("adaptive_avg-3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 3)), VOLUME),
    case("adaptive_max-even", lambda x: F.adaptive_max_pool2d(x, (3, 1), return_indices=True), IMAGE),
    case("adaptive_max-uneven", lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), LAST),
    case("adaptive_max-1d", lambda x: F.adaptive_max_pool1d(x, 4), ROWS),
]  # fmt: skip

RESAMPLE = [
    case("nearest-2x", lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    case("nearest-size", lambda x: F.interpolate(x, size=(13, 5)), LAST),
    case("nearest-3x-down", lambda x: F.interpolate(x, size=(3, 21)), IMAGE),
    case("nearest-scale", lambda x: F.interpolate(x, scale_factor=1.7), IMAGE),
    case("nearest-1d", lambda x: F.interpolate(x, scale_factor=2), ROWS),
    case("nearest-3d", lambda x: F.interpolate(x, size=(7, 3, 8)), VOLUME),
    case("nearest-exact", lambda x: F.interpolate(x, size=(13, 5), mode="nearest-exact"), IMAGE),
    case("bilinear-2x", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    case("bilinear-size", lambda x: F.interpolate(x, size=(5, 13), mode="bilinear"), LAST),
    case("bilinear-corners", lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True), IMAGE),
    case("bilinear-scale", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), IMAGE),
    case("bilinear-one", lambda x: F.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True), IMAGE),
    case("linear-2x", lambda x: F.interpolate(x.flatten(2), scale_factor=2, mode="linear"), IMAGE),
    case("linear-corners", lambda x: F.interpolate(x.flatten(2), size=7, mode="linear", align_corners=True), IMAGE),
    case("linear-scale", lambda x: F.interpolate(x.flatten(2), scale_factor=1.7, mode="linear"), IMAGE),
    case("trilinear-2x", lambda x: F.interpolate(x.unsqueeze(2), scale_factor=2, mode="trilinear"), IMAGE),
    case("trilinear-size", lambda x: F.interpolate(x[:, :, None], size=(3, 5, 13), mode="trilinear"), IMAGE),
    case("bilinear-f64", lambda x: F.interpolate(x, size=(5, 13), mode="bilinear"), DOUBLE, rtol=1e-6, atol=1e-6),
]  # fmt: skip

NORM = [
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (11,), w, b), ROWS, torch.randn(11), torch.randn(11)),
    case("layer_norm-two", lambda x: F.layer_norm(x, (4, 11)), ROWS),
    case("layer_norm-one", lambda x: F.layer_norm(x[..., :1], (1,)), ROWS),
    case("layer_norm-transposed", lambda x: F.layer_norm(x.transpose(1, 2), (4,)), ROWS),
    case("layer_norm-bf16", lambda x: F.layer_norm(x, (7,)), HALF, atol=2e-2, rtol=2e-2),
    case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, W4, B4),
    case("group_norm-last", lambda x, w: F.group_norm(x, 4, w), LAST, W4),
    case("group_norm-rows", lambda x: F.group_norm(x, 1), ROWS),
    case("group_norm-bf16", lambda x: F.group_norm(x, 2), HALF, atol=2e-2, rtol=2e-2),
    case("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), IMAGE, W4, B4),
    case("batch_norm", lambda x, m, v, w: F.batch_norm(x, m, v, w, w), LAST, B4, W4.abs(), W4),
    case("batch_norm-rows", lambda x, m, v: F.batch_norm(x, m, v), ROWS, B4, W4.abs()),
    case("batch_norm-no-stats", lambda x, w: F.batch_norm(x, None, None, w, None, True), LAST, W4),
    case("batch_norm-functional", _batch_norm_functional, IMAGE, B4, W4.abs(), W4),
    case("softmax", lambda x: F.softmax(x, -1), ROWS),
    case("softmax-middle", lambda x: F.softmax(x, 1), LAST),
    case("softmax-one", lambda x: F.softmax(x[:, :1], 1), ROWS),
    case("softmax-scalar", lambda x: F.softmax(x, 0), torch.tensor(2.0)),
    case("softmax-bf16", lambda x: F.softmax(x, -1), HALF),
    case("softmax-masked", lambda x: F.softmax(x.masked_fill(x > 0, -INF), -1), ROWS),
    case("log_softmax", lambda x: F.log_softmax(x, 1), SLICED),
    case("log_softmax-scalar", lambda x: F.log_softmax(x, 0), torch.tensor(2.0)),
]  # fmt: skip

LOSS = [
    case("mse_loss", lambda x, y: F.mse_loss(x, y), IMAGE, LAST * 2),
    case("mse_loss-sum", lambda x, y: F.mse_loss(x, y, reduction="sum"), IMAGE, LAST * 2),
    case("mse_loss-none", lambda x, y: F.mse_loss(x, y, reduction="none"), IMAGE, LAST * 2),
    case("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), IMAGE, SLICED),
    case("huber_loss", lambda x, y: F.huber_loss(x, y, delta=0.7), IMAGE, SLICED),
    case("l1_loss", lambda x, y: F.l1_loss(x, y), IMAGE, SLICED),
    case("cross_entropy", lambda x, t: F.cross_entropy(x, t), LOGITS, LABELS),
    case("cross_entropy-weight", lambda x, t, w: F.cross_entropy(x, t, w), LOGITS, LABELS, torch.rand(5)),
    case("cross_entropy-sum", lambda x, t: F.cross_entropy(x, t, reduction="sum"), LOGITS, LABELS),
    case("cross_entropy-none", lambda x, t: F.cross_entropy(x, t, reduction="none"), LOGITS, LABELS),
    case("nll_loss_backward", _nll_loss_backward, LOGITS, LABELS, torch.rand(5), torch.tensor(3.0)),
    case("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y), IMAGE, SLICED),
    case("normalize", lambda x: F.normalize(x, dim=1), LAST),
]  # fmt: skip

CASES: list[Case] = [*POOL, *RESAMPLE, *NORM, *LOSS]
