"""A cast there and back is no operator; the view of it is then one of an input with an offset in its storage."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    b = numbers("bfloat16", (34,), 34)[1:]
    return [b]


def program(b):
    v9 = b.to(torch.float32)  # rounds
    v10 = v9.to(torch.bfloat16)  # rounds
    v12, v13 = v10.unbind(0)[:2]
    v14 = v12 + 1  # rounds
    return [v14, v13]
