"""A graph compiled for each combination of sizes, with a float that Dynamo passes in a tensor: cut around what takes it
out, the piece was the same graph again, for ever."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(7, 5, -1.25, 0), (6, 7, 0.0, 0), (6, 7, -0.0, 0), (5, 3, 0.1, 99)]


def inputs(n0, n1, q, at):
    a = numbers("int64", (1, 1, n1), 84, "ties")
    b = a[0:]
    d = numbers("bfloat16", (1, n0, n1, 1), 66).expand(1, n0, n1, n0)
    e = torch.tensor([at, 0])
    return [a, b, d, e, q]


def program(a, b, d, e, q):
    v1 = d * q
    v2 = b < -1
    v1.clamp_(-1, 2)
    a.clamp_(-1, 2)
    b.add_(7)
    return [v1, v2, e, d.index_select(1, e)]
