"""A place that is read is checked also where no address comes of it, and what was fused into its kernel goes away."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(17, 33, 0, 0), (6, 6, 1, 0), (8, 7, 1, 99)]


def inputs(n0, n1, k, at):
    b = numbers("float64", (1,), 55).expand(n0)
    d = torch.tensor([at, 0])
    return [b, d, k]


def program(b, d, k):
    d.add_(2)  # rounds
    v2 = b.index_select(0, d)
    return [v2]
