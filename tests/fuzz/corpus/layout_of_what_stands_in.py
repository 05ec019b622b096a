"""`where(True, v0, …)` becomes `v0`, which is a result as well: it keeps its own layout."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("bfloat16", (4, 8, 7), 85).transpose(0, 1)
    return [a]


def program(a):
    v0 = a <= 1.0
    v3 = torch.ones_like(v0)
    v10 = torch.where(v3, v0, v3)
    return [v10, v0]
