"""Eager counts the zeros of a product: of two or more, all its gradients are plain zeros."""

from tests.fuzz.numbers import numbers

CASES = [(3, 8, 0.0), (5, 33, 1.0), (3, 3, 1.0)]
TRAINING = True


def inputs(n0, n1, q):
    c = numbers("float32", (n1, 1), 27, "ties")
    return [c, q]


def program(c, q):
    v0 = c.prod()  # rounds
    return [v0]
