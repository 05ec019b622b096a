"""Programs that look at how a convolution's result lies in memory, or at what was made of it.

Each is a function of one image and of fixed weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

aten = torch.ops.aten
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {}
INFERENCE_ONLY: set[str] = set()  # eager has no gradient for these
IMAGE = (2, 3, 8, 8)


def program(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    PROGRAMS[function.__name__] = function
    return function


def inference_only(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    INFERENCE_ONLY.add(function.__name__)
    return program(function)


def _weight(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / shape[1] ** 0.5


_W, _B = _weight(32, 3, 3, 3), _weight(1, 32)[0]
_NEXT = _weight(32, 32, 3, 3)


def conv(x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, _W, _B, padding=1)


def after(x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, _NEXT, None, padding=1)


# -- memory itself ----------------------------------------------------------------------------------
@program
def as_strided(x):
    return conv(x).as_strided((2, 5), (3, 2))


@program
def as_strided_between(x):
    return after(conv(x).relu().as_strided((2, 32, 8, 8), (2048, 64, 8, 1)))


@program
def as_strided_of_pooled(x):
    return F.max_pool2d(conv(x), 2).as_strided((4, 7), (9, 1))


@program
def as_strided_of_slice(x):
    return conv(x)[:, 4:].as_strided((3, 4), (5, 1))


@inference_only
def as_strided_around_views(x):
    y = conv(x)
    return y[:, 3, 2, 1].as_strided((2,), (5,)), y.split(8, 1)[1].as_strided((3,), (1,))


@inference_only
def as_strided_before_a_view(x):
    return aten.as_strided(conv(x)[:, 4:], (3,), (1,), 0)


@program
def as_strided_copy(x):
    return torch.as_strided_copy(conv(x), (2, 5), (3, 2))


@program
def as_strided_scatter(x):
    return torch.as_strided_scatter(conv(x), torch.zeros(2, 5), (2, 5), (3, 2))


@program
def as_strided_written(x):
    y = conv(x)
    y.as_strided((4,), (65,)).zero_()
    return y


@program
def as_strided_of_input(x):
    return conv(x), x.as_strided((5,), (7,))


@inference_only
def resize(x):
    return aten.resize(conv(x), (3, 4))


@program
def empty_like_then_strided(x):
    y = conv(x)
    return torch.empty_like(y).copy_(y).as_strided((6,), (1,))


@program
def new_empty_strided(x):
    y = conv(x)
    return y.new_empty_strided((2, 3), (1, 2)).fill_(1.0) + y.sum()


@program
def viewed_as_integers(x):
    return conv(x).view(torch.int32) & 0x7F800000


@program
def viewed_as_bytes(x):
    return conv(x).view(torch.uint8)[..., 3::4] > 127


@program
def viewed_as_complex(x):
    return torch.view_as_complex(conv(x).view(2, 32, 32, 2)).abs()


# -- views and copies of them -------------------------------------------------------------------------
@program
def view(x):
    return conv(x).view(2, 2048).sin()


@program
def view_across_channels(x):
    return conv(x).view(2, 4, 512).softmax(-1)


@program
def view_copy(x):
    return torch.view_copy(conv(x), (2, 2048))


@program
def reshape_of_transposed(x):
    return conv(x).transpose(1, 2).reshape(2, 8, 256) * 2


@program
def flatten_and_transpose(x):
    return conv(x).flatten(2).transpose(1, 2).contiguous()


@program
def tokens(x):
    y = conv(x).flatten(2).transpose(1, 2)
    return F.layer_norm(y, (32,)) @ _NEXT[:, :, 0, 0]


@program
def unfolded(x):
    return conv(x).unfold(2, 3, 2).unfold(3, 3, 2).mean((-1, -2))


@program
def patches(x):
    return F.fold(F.unfold(conv(x), 3, padding=1), (8, 8), 3, padding=1)


@program
def channel_shuffle(x):
    y = conv(x)
    return y.view(2, 4, 8, 8, 8).transpose(1, 2).contiguous().view(2, 32, 8, 8)


@program
def pixel_shuffle(x):
    return F.pixel_shuffle(conv(x), 2), F.pixel_unshuffle(conv(x), 2), torch.channel_shuffle(conv(x), 4)


@program
def windows(x):
    y = conv(x).permute(0, 2, 3, 1).view(2, 2, 4, 2, 4, 32).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 32)
    return F.layer_norm(y, (32,))


@program
def rolled(x):
    return conv(x).roll(3), conv(x).flip(1), conv(x).rot90(1, (1, 2))


@program
def split_and_joined(x):
    a, b = conv(x).chunk(2, 1)
    return torch.cat([b, a], 1), torch.stack([a, b], 1)


# -- random numbers, in the order of memory -------------------------------------------------------------
@program
def randn_like(x):
    y = conv(x)
    return y + torch.randn_like(y)


@program
def all_kinds_of_like(x):
    y = conv(x).relu()
    return torch.rand_like(y) + y, torch.randint_like(y, 9), torch.empty_like(y).normal_(), torch.rand_like(y[:, ::2])


@program
def filled_in_place(x):
    y = conv(x)
    return [
        y * torch.empty_like(y).uniform_(), torch.empty_like(y).exponential_(), torch.empty_like(y).random_(0, 9),
        torch.empty_like(y).cauchy_(), torch.empty_like(y).geometric_(0.3), torch.empty_like(y).log_normal_(),
        torch.empty_like(y).bernoulli_(0.4),
    ]  # fmt: skip


@inference_only
def filled_over(x):
    y = conv(x)
    z = y.sin()
    y.uniform_()
    return y + z


@inference_only
def bernoulli(x):
    p = conv(x).sigmoid()
    return torch.bernoulli(p), torch.bernoulli(p, 0.3), torch.normal(p, p), torch.poisson(p)


@program
def dropout(x):
    return after(F.dropout(conv(x), 0.4)).relu()


@program
def kinds_of_dropout(x):
    y = conv(x)
    return F.dropout2d(y, 0.4), F.alpha_dropout(y, 0.3, True), F.feature_alpha_dropout(y, 0.3, True)


@program
def rrelu(x):
    return F.rrelu(conv(x), training=True)


@program
def gumbel(x):
    return F.gumbel_softmax(conv(x), dim=1)


@program
def multinomial(x):
    return torch.multinomial(conv(x).abs().flatten(0, 2).mean(1, keepdim=True).t(), 5)


# -- what is found in an order ---------------------------------------------------------------------------
@program
def places(x):
    y = conv(x).round() + 0.0  # of one sign: which zero is the largest is another matter
    return y.argmax(), y.argmax(1), y.flatten(1).argmin(1), y.max(2), y.median(), y.mode(1)[0]


@program
def sorted_unstably(x):
    y = conv(x).round() + 0.0  # of one sign: which zero is the largest is another matter
    return y.sort(1), y.topk(3, 1), y.kthvalue(2, 3)


@program
def chosen_by_index(x):
    y = conv(x)
    return y.take(torch.tensor([0, 77, 4095])), y.put(torch.tensor([1, 1]), torch.ones(2), accumulate=True)


@program
def summed_up(x):
    y = conv(x)
    return y.cumsum(1), y.cumprod(3), y.logcumsumexp(2), y.flatten().cumsum(0)


@program
def max_pool_ties(x):
    return F.max_pool2d(conv(x).round() + 0.0, 3, 2, return_indices=True)


@program
def unpooled(x):
    return F.max_unpool2d(*F.max_pool2d(conv(x), 2, return_indices=True), 2)


@program
def scattered(x):
    y = conv(x)
    index = torch.arange(32).view(1, 32, 1, 1).expand(2, 32, 8, 8) % 7
    return torch.zeros(2, 8, 8, 8).scatter_add(1, index, y), y.index_add(1, torch.tensor([3, 3]), y[:, :2])


# -- networks -------------------------------------------------------------------------------------------
@program
def group_norm(x):
    return after(F.group_norm(conv(x), 4)), F.instance_norm(conv(x)), F.local_response_norm(conv(x), 3)


@program
def squeeze_and_excite(x):
    y = F.silu(conv(x))
    gate = F.conv2d(F.relu(F.conv2d(y.mean((2, 3), keepdim=True), _NEXT[:16, :, :1, :1])), _NEXT[:, :16, :1, :1])
    return after(y * gate.sigmoid()) + y


@program
def transposed(x):
    return F.conv_transpose2d(conv(x), _NEXT, stride=2, padding=1), F.conv2d(conv(x), _NEXT[:, :8], groups=4)


@program
def other_ranks(x):
    y = conv(x)
    return F.conv1d(y.flatten(2), _NEXT[..., 0]), F.conv3d(y.unsqueeze(2), _NEXT.unsqueeze(2), padding=(0, 1, 1))


@program
def resampled(x):
    y = conv(x)
    bilinear = F.interpolate(y, size=(5, 11), mode="bilinear")
    return F.interpolate(y, scale_factor=2), bilinear, F.adaptive_avg_pool2d(y, 3)


@inference_only
def written_inside(x):
    y = conv(x)
    y[:, 1:3].mul_(y[:, 5:7])
    y.view(2, -1)[:, ::3].zero_()
    return y, after(y)


@program
def attention(x):
    q, k, v = (after(conv(x) / 8).flatten(2).view(2, 4, 8, 64) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v)


@program
def attention_over_places(x):
    q, k, v = (after(conv(x) / 8).view(2, 4, 8, 64).transpose(2, 3) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(2, 32, 8, 8)


@program
def complex_numbers(x):
    y = conv(x)
    return torch.fft.rfft2(y).abs(), torch.complex(y, y).angle()


@program
def half_precision(x):
    return conv(x).half().view(2, 2048), conv(x).bfloat16().flatten(2)


# -- results --------------------------------------------------------------------------------------------
@program
def result_and_its_view(x):
    y = conv(x)
    return y, y.view(2, -1), y[:, 3], y.permute(0, 2, 3, 1)


@program
def only_views(x):
    y = conv(x).relu()
    return y[:, :16], y.transpose(1, 3)


@program
def results_of_one_element(x):
    return F.adaptive_avg_pool2d(conv(x), 1), conv(x).mean((2, 3), keepdim=True), conv(x).amax(1, keepdim=True)


@program
def copies_of_all_kinds(x):
    y = conv(x)
    return [
        y.clone(), y.contiguous(memory_format=torch.channels_last), y.to(torch.float64), torch.zeros_like(y),
        y.clone(memory_format=torch.contiguous_format), torch.full_like(y, 2.0), y.new_zeros(y.shape),
    ]  # fmt: skip


@program
def asked_in_words(x):
    y = conv(x)
    return y * y.stride(1) + y.storage_offset() + float(y.is_contiguous()) + y.transpose(1, 2).stride(0)


@inference_only
def written_to_input(x):
    x.add_(conv(x)[:, :3])
    return after(conv(x))


@program
def expanded(x):
    return conv(x).mean((2, 3), keepdim=True).expand(2, 32, 8, 8), conv(x)[:, :1].expand(-1, 4, -1, -1) + 1


class Layers(nn.Module):
    """Batch norm in training and a pool, whose gradients are images too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.second, self.last = nn.Conv2d(32, 32, 3, 2, groups=32), nn.Conv2d(32, 64, 1)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.last(F.hardswish(self.second(y))), y
