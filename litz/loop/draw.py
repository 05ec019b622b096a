"""Random draws that can be drawn again: two operators of Litz's own.

In: how many numbers. Out: where they begin in a generator's stream, and any of them, as often as asked.

`litz::reserve` is all of a draw that has a state. It takes blocks of philox from the stream of the device's default
generator, as many as eager's kernel would, so that what eager draws before and after is the same with and without Litz.
What it gives is a cell on the device: two whole numbers, the seed and the counter of the first block. It is called from
Python, between stretches of native code; kernels only read the cell. So a program may be captured as a CUDA graph
around it: whoever replays runs this operator first, and copies into the cell that the graph was captured with. Within a
capture a generator cannot be asked where it stands; there the cell is drawn itself, by an operator that is captured, so
that each replay draws other numbers, from a stream that the seed still determines (but not the numbers of eager).

`litz::draw` gives the bits at places of that stream, and has no state. The split keeps the cell for the backward, and
not what was drawn.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from litz.loop.philox import WORDS, words

LIBRARY = torch.library.Library("litz", "FRAGMENT")  # it unregisters when collected
LIBRARY.define("reserve(SymInt blocks, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
LIBRARY.define(
    "draw(Tensor cell, SymInt first, SymInt[] size, SymInt[] stride, SymInt[] order, int width, int threads) -> Tensor"
)


def dealt(index: Any, width: int, threads: int) -> tuple[Any, Any]:
    """How eager's kernels deal out the numbers of their blocks: the block that element `index` draws from, counted from
    the first one, and the place there, four times the number of the thread plus the word.

    Threads take `width` neighbouring elements at a time, in turn, and draw as many blocks as that takes; but where
    `width` is 1, a thread's next element is as far away as there are threads, and four of them share a block. All of it
    is arithmetic, on numbers, index expressions and tensors alike. The number of threads is that of a full device: with
    fewer elements than that, eager starts fewer, and none gets a second turn.
    """
    if width == 1:
        turn = index // threads
        return turn // WORDS, (index % threads) * WORDS + turn % WORDS
    blocks = max(1, width // WORDS)  # in each turn
    mine = index % width
    return index // (width * threads) * blocks + mine // WORDS, (index // width) % threads * WORDS + mine % WORDS


def blocks_of(elements: Any, threads: int) -> Any:
    """By how many blocks the generator moves on: eager counts as if each served four elements."""
    return (elements - 1) // (WORDS * threads) + 1


_TURN = threading.Lock()  # no two threads reserve the same stretch


def _reserve(blocks: int, *, device: torch.device) -> torch.Tensor:
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        cell = torch.empty(2, dtype=torch.int64, device=device)
        return cell if device.type == "meta" else cell.random_(1 << 62)
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    with _TURN:
        offset = generator.get_offset()  # in words, and a multiple of four
        generator.set_offset(offset + WORDS * blocks)
    return cell_of(generator.initial_seed(), offset // WORDS, torch.device("cuda", index))


def cell_of(seed: int, counter: int, device: torch.device) -> torch.Tensor:
    """The two numbers on the device, by a kernel that is given them: a copy from the host's memory might wait."""
    return torch.rsub(_zero_and_one(device), _signed(seed), alpha=_signed(seed - counter))


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


@lru_cache(maxsize=None)
def _zero_and_one(device: torch.device) -> torch.Tensor:
    return torch.arange(2, device=device)


def _draw(
    cell: torch.Tensor, first: int, size: Sequence[int], stride: Sequence[int], order: Sequence[int], width: int,
    threads: int,
) -> torch.Tensor:  # fmt: skip
    """The bits of each element of a tensor of that size and stride: `order` has how far apart eager counts neighbours
    along each dimension."""
    found = torch.empty_strided(size, stride, dtype=torch.int64, device=cell.device)
    index = torch.zeros((), dtype=torch.int64, device=cell.device)
    for dim, step in enumerate(order):
        along = torch.arange(size[dim], device=cell.device) * step
        index = index + along.reshape([-1 if d == dim else 1 for d in range(len(size))])
    block, place = dealt(index, width, threads)
    return found.copy_(words(cell[0], cell[1] + first + block, place))


def _draw_meta(
    cell: torch.Tensor, first: int, size: Sequence[int], stride: Sequence[int], order: Sequence[int], width: int,
    threads: int,
) -> torch.Tensor:  # fmt: skip
    return torch.empty_strided(size, stride, dtype=torch.int64, device=cell.device)


LIBRARY.impl("reserve", _reserve, "CompositeExplicitAutograd")
LIBRARY.impl("draw", _draw, "CompositeExplicitAutograd")
LIBRARY.impl("draw", _draw_meta, "Meta")
RESERVE = torch.ops.litz.reserve.default
DRAW = torch.ops.litz.draw.default

__all__ = ["DRAW", "LIBRARY", "RESERVE", "blocks_of", "cell_of", "dealt"]
