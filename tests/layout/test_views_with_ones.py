"""Views with sizes of one have eager's strides: they decide what is channels last, and what may be viewed again."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from litz.graph.eager_strides import as_eager_lays_out

aten = torch.ops.aten
SIZES = (1, 2, 4, 8)


def _shapes(elements: int, rank: int) -> list[tuple[int, ...]]:
    return [s for s in itertools.product(SIZES, repeat=rank) if torch.Size(s).numel() == elements]


@pytest.mark.parametrize("seed", range(8))
def test_fakes_of_views_lie_as_eager_lays_out(seed: int) -> None:
    draw = random.Random(seed)
    mode, met = FakeTensorMode(), 0
    for _ in range(400):
        elements = draw.choice([1, 4, 8, 16])
        given = draw.choice(_shapes(elements, draw.choice([2, 3, 4])))
        order = draw.sample(range(len(given)), len(given))
        x = torch.empty([given[d] for d in order]).permute([order.index(d) for d in range(len(given))])
        shape = draw.choice(_shapes(elements, draw.choice([2, 3, 4])))
        try:
            real = aten.view.default(x, shape)
        except RuntimeError:  # takes a copy
            continue
        with mode:
            args = (mode.from_tensor(x), shape)
            fake = as_eager_lays_out(aten.view.default, args, aten.view.default(*args))
        assert (fake.stride(), fake.storage_offset()) == (real.stride(), real.storage_offset()), (x.stride(), shape)
        met += 1
    assert met > 100


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_batch_of_one_is_not_taken_for_channels_last(dynamic: bool) -> None:
    """Pixels that come of an attention: a token each, transposed to be an image."""
    weight = torch.randn(8, 32, 3, 3)

    def image(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pixels = x.transpose(1, 2).reshape(x.shape[0], 32, 8, 8)
        return pixels, pixels + 1, functional.conv2d(pixels, weight, padding=1), functional.group_norm(pixels, 8)

    torch._dynamo.reset()
    compiled = torch.compile(image, backend="litz", dynamic=dynamic)
    for batch in (1, 2):
        x = torch.randn(batch, 64, 32)
        for mine, eager in zip(compiled(x), image(x), strict=True):
            assert mine.stride() == eager.stride()
            torch.testing.assert_close(mine, eager)


REMAINDERS = {
    "a row": lambda k: k[:, :, 0, :, None].reshape(4, 4, 1) * 2,
    "a row and a factor": lambda k: k[:, :, 0, :, None] @ k[:, :, 0, None, :],
    "a column": lambda k: k[:, :, :, :1].reshape(4, -1, 1) * 2,
    "turned": lambda k: k.transpose(1, 2).reshape(2, -1, 8) * 2,
    "turned, in one": lambda k: (k.transpose(2, 3) * 1).reshape(-1, 1) * 2,
}


@pytest.mark.parametrize("name", REMAINDERS)
@pytest.mark.parametrize("first", [9, 11])
def test_what_is_left_of_a_length(name: str, first: int) -> None:
    """It may be one at the first call, and more at the next."""

    def program(k: torch.Tensor) -> torch.Tensor:
        length = k.shape[2]
        return REMAINDERS[name](k[:, :, length // 4 * 4 : length].contiguous())

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="litz", dynamic=True)
    for length in (first, 11, 14, 9, 15):
        k = torch.randn(2, 2, length, 4)
        torch.testing.assert_close(compiled(k), program(k))
