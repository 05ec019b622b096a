"""What is written over through `as_strided_scatter` lies as it did only where that keeps its elements apart."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(17, 1, 0.5), (9, 3, -0.0), (9, 4, 0.0)]


def inputs(n0, k, q):
    a = numbers("bfloat16", (n0, 1 * 2 + 1), 35)[..., 1::2]
    return [a, k, q]


def program(a, k, q):
    v0 = a.zero_()
    v1 = v0.expand(-1, v0.shape[0])
    v4 = torch.as_strided_scatter(v1, torch.zeros((2, 1), dtype=v1.dtype), (2, 1), (9, 3))
    return [v4]
