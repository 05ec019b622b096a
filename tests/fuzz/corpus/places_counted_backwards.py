"""`all` reads from the end and `argmax` from the front: in one kernel, `argmax` would count from the end."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("int64", (64,), 44, "ties")
    return [a]


def program(a):
    v1 = torch.sub(a, a, alpha=3)
    v2 = v1.flip(0)
    v3 = torch.all(v2, 0, keepdim=True)
    v6 = v1.argmax(-1)
    v7, v8 = a.chunk(2, -1)
    v7.copy_(v6)
    v13 = torch.cat([v3, v3, v3], 0)
    return [v13]
