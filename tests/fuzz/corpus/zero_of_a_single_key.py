"""A product over a single step is a sum that began with a zero: −0.0 comes out as 0.0, of a row, in `mm` and `mv`."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(3, 17, 8), (17, 5, 16), (9, 5, 16)]


def inputs(n0, n1, n2):
    b = numbers("float32", (n0, 1), 1, "ties")
    return [b]


def program(b):
    v0 = torch.softmax(((b * 0.25).mT @ (b + 1.0)) + 3.0, -1) @ (b * 2.0).mT  # rounds
    v1 = torch.mv(b, torch.full((1,), -0.0))
    return [v0, v1]
