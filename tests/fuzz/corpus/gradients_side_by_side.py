"""Of parts made by one `split` gradients are put side by side: a -0.0 of one is not added to a zero of the other."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(7,), (5,), (17,)]
TRAINING = True
AROUND = "batched"


def inputs(n0):
    c = numbers("bfloat16", (n0, n0), 4, "special")
    return [c]


def program(c):
    v0, v1 = c.split((5, c.shape[1] - 5), 1)
    v2 = torch.amin((v1 + 0.0), -2, keepdim=True)
    return [v0, v2]
