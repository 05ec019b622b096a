"""The derivative of twice a number: forward mode casts the 2, which comes to a trace as a number of Python's."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    return [numbers("float32", (), 58)]


def program(d):
    first = torch.func.jacfwd(lambda d: d * 2)(d)
    return [first, torch.func.jvp(lambda d: 3.0 / d, (d,), (d,))[1], torch.func.jacfwd(lambda d: d**2)(d)]
