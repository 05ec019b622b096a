"""`a * 1.0` becomes `a`, which begins elsewhere in its storage: views of what is computed like it must follow."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("float32", (35,), 77)[..., 1::2]
    return [a]


def program(a):
    v0 = a * 1.0  # rounds
    v1 = torch.ones_like(v0)
    v5, v6 = v0.chunk(2, -1)
    v7 = torch.index_add(v6, -1, torch.tensor([1, 1, 3], dtype=torch.int64), v1[:3])  # rounds
    v5.add_(v5)  # rounds
    v9 = torch.positive(v6)
    v9.copy_(v7)
    v6.zero_()
    v12 = v7.sum(0, keepdim=True)  # rounds
    v6.copy_(v7)
    v15, v16 = v9.split((2, 6), -1)
    return [v12, v16]
