"""A running sum begins with a zero of its own, also where a row has one number."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("float32", (8, 1, 1), 64, "ties")[1:]
    return [a]


def program(a):
    v0 = torch.cumsum(a, -1)  # rounds
    v1 = torch.logcumsumexp(a, -1)  # rounds
    v2 = torch.cumprod(a, -1)  # rounds
    return [v0, v1, v2]
