"""A constant, folded, is broadcast over a size that varies: PyTorch's own kernel asks for its value."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(5, 0, 0), (4, 3, 0), (2, -1, 99)]
TRAINING = True


def inputs(n0, k, at):
    a = numbers("float64", (n0, n0, n0), 27)
    return [a, k]


def program(a, k):
    v1 = a.clone().as_strided((1, 2), (9, 2))
    v4 = torch.ones_like(v1)
    v6 = v4.diagonal(1, 0, -1)
    v8 = torch.lerp(a, v6, 0.75)  # rounds
    return [v8]
