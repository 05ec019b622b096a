"""Philox against known answers; the operators that draw against eager's kernels as `tests/eager_draws.py` has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from litz.loop.draw import DRAW, RESERVE, blocks_of, cell_of, dealt
from litz.loop.philox import philox
from litz.ops.draw import kept_below, kept_scale
from tests import eager_draws

# Of Random123, for ten rounds: counter and key, and what they give.
KNOWN = {
    "zeros": ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "ones": ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    "pi": ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
}


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def signed(low: int, high: int) -> int:
    number = low | high << 32
    return number - (1 << 64) if number >> 63 else number


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(name: str) -> None:
    counter, key, wanted = map(words, KNOWN[name])
    place = signed(*counter[2:]) * 4
    found = philox(np.full(4, signed(*key)), np.full(4, signed(*counter[:2])), np.arange(place, place + 4))
    assert found.tolist() == wanted
    assert list(eager_draws.philox4x32(tuple(counter), (key[0], key[1]))) == wanted


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("elements", [8, 248, 256, 264, 1024, 2048, 2056, 4104, 9000])
def test_numbers_are_dealt_out_as_by_eagers_threads(elements: int, width: int) -> None:
    """With 256 threads at most: fewer elements than that, one turn, several, and a last one that is not full."""
    seed, offset = 0x123456789ABCDEF, 4 * 77
    wanted = eager_draws.drawn(elements, width, seed, offset, 256)
    block, place = dealt(np.arange(elements), width, 256)
    assert philox(np.int64(seed), offset // 4 + block, place).tolist() == wanted
    cell = torch.tensor([seed, offset // 4])
    assert DRAW(cell, 0, [elements], [1], [1], width, 256).tolist() == wanted
    assert DRAW(cell - torch.tensor([0, 3]), 3, [elements], [1], [1], width, 256).tolist() == wanted


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 1024, 1025, 4096, 5000])
def test_the_generator_moves_on_as_under_eager(elements: int) -> None:
    assert 4 * blocks_of(elements, 256) == eager_draws.increment(elements, 256)


def test_of_nothing_nothing_is_reserved() -> None:
    assert blocks_of(0, 256) == 0


def test_elements_are_counted_in_any_order() -> None:
    cell = torch.tensor([7, 9])
    rows = DRAW(cell, 0, [6, 10], [10, 1], [10, 1], 2, 256)
    turned = DRAW(cell, 0, [10, 6], [1, 10], [1, 10], 2, 256)
    assert turned.stride() == (1, 10) and torch.equal(turned.t(), rows)
    assert torch.equal(DRAW(cell, 0, [10, 6], [6, 1], [1, 10], 2, 256), turned)


def test_seeds_of_64_bits() -> None:
    for seed in (-1, -(1 << 63), (1 << 63) - 1):
        wanted = eager_draws.drawn(64, 4, seed % (1 << 64), 0, 256)
        assert DRAW(torch.tensor([seed, 0]), 0, [64], [1], [1], 4, 256).tolist() == wanted


# -- what is kept ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("probability", [0.0, 1e-12, 1e-7, 0.1, 1 / 3, 0.5, 0.9, 1 - 1e-7, 1 - 1e-12, 1.0, 1.5])
def test_bound_of_what_is_kept(probability: float, dtype: torch.dtype) -> None:
    double, bound = dtype is torch.float64, kept_below(probability, dtype)
    assert 0 <= bound <= 1 << 32
    for word in (0, 1, bound - 2, bound - 1, bound, bound + 1, (1 << 32) - 1, *range(5, 1 << 32, 98765431)):
        if 0 <= word < 1 << 32:
            assert (word < bound) is eager_draws.is_kept(word, probability, double), word


def test_of_probability_one_a_few_are_dropped() -> None:
    """As by eager: the greatest numbers are rounded to one, which is not less than one."""
    assert (1 << 32) - 256 <= kept_below(1.0, torch.float32) < 1 << 32


def test_scale_is_that_of_the_rounded_probability() -> None:
    for p in (0.1, 0.3, 0.77, 1e-3):
        single = np.float32(1) / np.float32(1.0 - p)  # the quotient of floats, rounded once, is that of doubles too
        assert kept_scale(1.0 - p, torch.bfloat16) == pytest.approx(float(single), rel=1e-7)
        assert kept_scale(1.0 - p, torch.float64) == 1.0 / (1.0 - p)


# -- reservations ---------------------------------------------------------------------------------
def test_a_reservation_follows_the_seed() -> None:
    """Where a generator does not count in blocks, as the CPU's, the cell is drawn itself."""
    cells = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        cells.append([RESERVE(3, device=torch.device("cpu")).tolist() for _ in range(2)])
    assert cells[0] == cells[1] != cells[2]
    assert cells[0][0] != cells[0][1]
    assert torch.Tag.nondeterministic_seeded in RESERVE.tags


@pytest.mark.parametrize("seed", [0, 42, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_cell_holds_any_seed(seed: int) -> None:
    for counter in (0, 1, 1 << 40):
        found = cell_of(seed, counter, torch.device("cpu"))
        assert found.tolist() == [seed - (1 << 64) if seed >> 63 else seed, counter]
