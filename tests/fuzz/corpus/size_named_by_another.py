"""The backward finds that a size is one more than a number; the view was described before that."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(5, 4), (2, 3), (4, 1)]
TRAINING = True
AROUND = "written"


def inputs(n0, k):
    a = numbers("float32", (n0, n0), 33)
    return [a, k]


def program(a, k):
    v5 = a[..., k:]
    v6 = torch.nn.functional.pad(v5, (1, 1), value=0.0)
    v8, v9 = a.split((1, a.shape[1] - 1), 1)
    return [v6, v9]
