"""Functions whose coefficients are looked up in registers, for vectors of every width."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from litz.target import Target, detect
from tests.codegen.native import over_each, run
from tests.codegen.test_scalars import dense

TARGET = detect(threads=2)
pytestmark = pytest.mark.skipif(not TARGET.looks_up, reason="this processor looks nothing up in registers")


def computed(name: str, x: torch.Tensor, target: Target = TARGET) -> torch.Tensor:
    (found,) = run(over_each([x], name, "f32"), [x], target)
    return found


@pytest.mark.parametrize("width", [4, 16, 32, 128])
@pytest.mark.parametrize("name", ["normal_cdf", "erf", "exp"])
def test_any_width_gives_the_same(name: str, width: int) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    other = computed(name, x, replace(TARGET, vector_bytes=width))
    torch.testing.assert_close(other, computed(name, x), rtol=0, atol=0)


def test_tail() -> None:
    """All of the normal distribution is within a unit of 1, and its small values are as exact as that allows, where a
    formula of the error function would have lost them."""
    x = dense(-9.0, 9.0)
    found = computed("normal_cdf", x).double()
    exact = 0.5 * torch.special.erfc(x.double() * -(0.5**0.5))
    off = (found - exact).abs()
    assert off.max() <= 0.6 * torch.finfo(torch.float32).eps
    assert (off / exact)[(x > -3) & (x < 0)].max() <= 3e-7
    assert (off / exact)[(x > -7.6) & (x < 0)].max() <= 2e-4
    assert not found[x < -7.7].any()


def test_nothing_is_left_far_away() -> None:
    x = torch.tensor([-7.7, -1e30, -3e38, -torch.inf, 3e38, torch.inf])
    assert computed("normal_cdf", x).tolist() == [0, 0, 0, 0, 1, 1]
    assert computed("erf", x).tolist() == [-1, -1, -1, -1, 1, 1]


@pytest.mark.parametrize("name", ["normal_cdf", "erf"])
def test_between_two_steps(name: str) -> None:
    """What lies half way is rounded to one of them, and all that is looked up must be that one's."""
    ends = torch.arange(-128, 129) / 16
    x = torch.cat([ends, *(torch.nextafter(ends, torch.full_like(ends, way)) for way in (-9.0, 9.0))])
    exact = torch.special.erf(x.double()) if name == "erf" else 0.5 * torch.special.erfc(x.double() * -(0.5**0.5))
    assert (computed(name, x).double() - exact).abs().max() <= 0.6 * torch.finfo(torch.float32).eps
