"""Eager divides what products add up to by each factor: what is no number makes all before it none."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(4, 0), (17, 6), (4, -1)]
TRAINING = True
AROUND = "written"


def inputs(n0, k):
    b = numbers("bfloat16", (1, n0, n0, 4), 98, "special")
    return [b, k]


def program(b, k):
    v2 = torch.cumprod(b, -1)  # rounds
    v7 = v2 * 2.0  # rounds
    return [v7]
