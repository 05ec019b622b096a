"""A tangent lies as its primal does, whatever it was made of. Dynamo's fake of this one lies otherwise."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    b = numbers("float16", (4, 2, 7, 2), 59, "ties").to(memory_format=torch.channels_last)
    return [b]


def base(b):
    return b


def program(b):
    return list(torch.func.jvp(torch.func.grad(lambda v: base(v).sin().sum()), (b,), (torch.cos(b),)))
