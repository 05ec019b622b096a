"""The base of inputs that overlap does not begin where its memory begins."""

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("bfloat16", (7,), 85, "ties")[..., 1::3]
    c = a[1:]
    return [a, c]


def program(a, c):
    v2 = c.square_()  # rounds
    v2.sub_(-0.5)  # rounds
    return [v2]
