"""Gradients of activations lie as the loop over the gradient and the input orders dimensions, in any two layouts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.graph.eager_strides import as_eager_lays_out

aten = torch.ops.aten
# What comes behind the gradient and the input.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "hardtanh_backward": (0, 6), "leaky_relu_backward": (0.1, False), "gelu_backward": (), "silu_backward": (),
    "mish_backward": (), "hardswish_backward": (), "hardsigmoid_backward": (), "softplus_backward": (1.0, 20.0),
    "softshrink_backward": (0.5,), "hardshrink_backward": (0.5,), "threshold_backward": (0,), "sigmoid_backward": (),
    "tanh_backward": (), "logit_backward": (None,),
}  # fmt: skip
SHAPE = (2, 3, 5)


def _laid_out(order: tuple[int, ...]) -> torch.Tensor:
    return torch.randn([SHAPE[d] for d in order]).permute(*map(order.index, range(len(SHAPE))))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_fakes_lie_as_eagers(name: str) -> None:
    function = getattr(aten, name).default
    for one, other in itertools.product(itertools.permutations(range(3)), repeat=2):
        grad, x = map(_laid_out, (one, other))
        mode = FakeTensorMode()
        fakes = (mode.from_tensor(grad), mode.from_tensor(x), *ARGUMENTS[name])
        with mode:
            found = function(*fakes)
        want = function(grad, x, *ARGUMENTS[name])
        assert as_eager_lays_out(function, fakes, found).stride() == want.stride(), (one, other)
