"""Gradients of windows that do not overlap are copied, minus zero as it is; of others they are added up."""

from tests.fuzz.numbers import numbers

CASES = [(5, 1), (3, 2)]
TRAINING = True


def inputs(n, k):
    return [numbers("float32", (n, 5), 71).transpose(0, 1), k]


def program(b, k):
    apart = b.unfold(0, 2, 2).clone()
    apart.neg_()
    overlapping = b.unfold(0, 3, 1).neg()
    return [apart.select(1, -1), overlapping.select(0, 0)]
