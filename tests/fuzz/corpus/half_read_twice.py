"""Half of a result read twice: as many reads as there are elements, and not all of the elements."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("float32", (6, 2, 2), 84)
    return [a]


def program(a):
    v0 = a.exp()  # rounds
    v1 = v0.select(1, 0)
    v2 = v1.repeat(2, 1)
    v3 = v2.sum()  # rounds
    v4 = torch.minimum(v3, v0[:, :, 1])
    return [v4, v2]
