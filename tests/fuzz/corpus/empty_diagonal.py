"""The same, of a diagonal that lies outside."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    b = numbers("float32", (1, 1), 60, "ties")
    return [b]


def program(b):
    v0 = torch.stack([b, b], 1)
    v15 = v0.diagonal(1, 1, 0)
    return [v15]
