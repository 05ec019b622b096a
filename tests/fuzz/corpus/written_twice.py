"""The second kernel to write a buffer must not take over the memory of an argument: the first has written there."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("bfloat16", (33, 33), 10)
    c = a[1:]
    return [a, c]


def program(a, c):
    v2, v3 = a.split((24, 9), 1)
    a[..., 0] = 2.0
    v7, v8 = v3.unbind(0)[:2]
    v12 = torch.minimum(v8, v8)
    return [v12]
