"""Thirty-three copies of each number: their squares, added up in float32, round the same way every time."""

from tests.fuzz.numbers import numbers


def inputs():
    b = numbers("float32", (1, 33), 66).expand(33, 33)
    return [b]


def program(b):
    v3 = b.unfold(-1, 15, 2).clone()
    v4 = v3.std((0, -2), keepdim=True)  # rounds
    return [v4]
