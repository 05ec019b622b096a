"""Rolled by a whole turn, an image in channels last comes out in rows."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(9, 1), (4, -1), (4, 3), (4, 0)]


def inputs(n, k):
    return [numbers("float32", (n, n, 3, n), 32), k]


def program(x, k):
    image = x.to(memory_format=torch.channels_last)
    both = image.roll((k + 1, 1), (-1, 1))
    return [image.roll(k + 1, -1), image.roll(k + 1), both, x.roll(k + 1, 0)]
