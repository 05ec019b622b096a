"""What is written to an argument comes of a total, and so does what refuses the call: one kernel does both."""

import torch

CASES = [(0,), (99,), (1,)]


def inputs(at):
    c = torch.tensor([at, 0])
    return [c]


def program(c):
    v6 = torch.amax(c, 0, keepdim=True)
    v7 = c * 2
    c.add_(v6)
    v8 = v7.index_select(0, c)
    c.clamp_(-1, 2)
    return [v8]
