"""An empty output that is a window on a buffer of one element: its memory was never allocated."""

from tests.fuzz.numbers import numbers


def inputs():
    a = numbers("float32", (1,), 87).expand(33)
    return [a]


def program(a):
    v10 = a.any(0, keepdim=True)
    v12 = v10.expand(0)
    return [v12]
