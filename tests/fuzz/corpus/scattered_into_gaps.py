"""A window on what was written to and has gaps in memory: functionalisation forgets the gaps."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(33, 3), (7, 5)]


def inputs(n, k):
    return [numbers("float32", (n * 2,), 26)[0::2], numbers("float32", (n, 3), 5).t(), k]


def program(x, y, k):
    x.add_(k)
    y.mul_(2)
    two = torch.zeros((1, 2))
    return [
        torch.as_strided_scatter(x, two, (1, 2), (2, 1)),
        torch.as_strided_scatter(y, two, (1, 2), (2, 1)),
        torch.as_strided_copy(x, (2, 2), (2, 4)),
    ]
