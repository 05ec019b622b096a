"""The rectified minus zero is minus zero: a maximum of equal numbers is the second one."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    b = numbers("float32", (8, 1, 8), 55, "ties").transpose(0, 2)
    return [b]


def program(b):
    v0 = b.relu_()
    v1 = torch.signbit(b)
    v2 = torch.signbit(torch.clamp(v0 * -1, max=0))
    return [v1, v2]
