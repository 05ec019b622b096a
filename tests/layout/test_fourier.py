"""The strides of Fourier transforms: what is predicted is what the kernels do, however their input lies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from litz.graph.eager_strides import rule_of

aten = torch.ops.aten


def _calls(x: torch.Tensor, dims: list[int]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    z = x.to(torch.complex64)
    yield aten._fft_c2c.default, (z, dims, 0, True)
    yield aten._fft_r2c.default, (x, dims, 0, True)
    yield aten._fft_r2c.default, (x, dims, 0, False)
    yield aten._fft_c2r.default, (z, dims, 0, 2 * x.shape[dims[-1]] - 1)


@pytest.mark.parametrize("shape", [(3, 6, 7), (5, 4, 6, 2)])
def test_as_the_kernels_lay_them_out(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    for order in itertools.permutations(range(rank)):
        x = torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(rank)])
        for count in (1, 2, 3):
            for dims in itertools.permutations(range(rank), count):
                for operator, args in _calls(x, list(dims)):
                    real = operator(*args)
                    rule = rule_of(operator)
                    assert rule is not None
                    assert tuple(rule(args, real.contiguous())) == real.stride(), (operator, x.stride(), dims)
