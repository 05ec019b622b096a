"""Operands of several types: what is cast has no gaps, and decides how the result lies."""

import torch

from tests.fuzz.numbers import numbers

CASES = [(9, 8, 5), (2, 3, 5), (1, 8, 3)]


def inputs(n0, n1, n2):
    a = numbers("uint8", (1, n0, n1), 51, "ties").transpose(1, 2)
    b = numbers("bool", (1, 1, n0), 97).expand(1, n1, n0)
    return [a, b]


def program(a, b):
    return [b == a, b + a, torch.maximum(a, b), a / (b + 1)]
