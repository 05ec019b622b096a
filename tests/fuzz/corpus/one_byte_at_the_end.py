"""Rows of seventeen bytes, cut from integers: the last vector has one live lane, and must store one byte."""

import torch

from tests.fuzz.numbers import numbers


def inputs():
    b = numbers("int32", (7, 17), 95, "ties").transpose(0, 1)
    return [b]


def program(b):
    v0 = b.to(torch.uint8)
    v2 = v0 & b
    v14 = v2.argmax()
    return [v0, v14]
