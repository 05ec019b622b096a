"""What has no elements shares none, whatever its strides."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("float16", (0, 1, 0), 1)
    return [a]


def program(a):
    a.copy_(a)
    return [torch.neg(a)]
