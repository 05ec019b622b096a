"""What is read through a mask is computed where it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from litz.context import Context
from litz.loop.ir import Kernel, Load
from litz.options import Options
from litz.pipeline import compile_function
from litz.target import detect
from tests.codegen.emulate import program_of, run_function


def turned(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat([-q[..., half:], q[..., :half]], -1) * sin


def test_a_half_that_is_turned_is_read_off_the_other_half() -> None:
    inputs = [torch.randn(*shape).bfloat16() for shape in ((2, 6, 4, 64), (4, 64), (4, 64))]
    ran = run_function(turned, *inputs, atol=2e-2)
    assert ran.kernels == 1


def test_q_and_k_are_turned_by_one_kernel() -> None:
    def both(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return turned(q.transpose(1, 2), cos, sin), turned(k.transpose(1, 2), cos, sin)

    shapes = ((2, 8, 4, 64), (2, 8, 4, 64), (8, 64), (8, 64))
    assert run_function(both, *(torch.randn(*shape).bfloat16() for shape in shapes), atol=2e-2).kernels == 1


PUT_TOGETHER: dict[str, Callable[..., torch.Tensor]] = {
    "neg of a part": lambda x, y: torch.cat([-x, y], 1),
    "neg of all": lambda x, y: -torch.cat([x, y, x[:, :1]], 1),
    "of several types": lambda x, y: torch.cat([x.double() * 2, y.half(), (y > 0)], 1),
    "along the first": lambda x, y: torch.cat([x.t() + 1, y.t()]),
    "an empty part": lambda x, y: torch.cat([x[:, :0], -y, torch.empty(0)], 1),
    "one part": lambda x, y: torch.cat([-x], 1) + 1,
    "five parts": lambda x, y: torch.cat([-x, y, x, -y, x], 1),
    "turned rows": lambda x, y: torch.cat([(-x).t(), y.t()]).t().contiguous(),
    "padded": lambda x, y: F.pad(-x, (2, 3, 1, 0)) + 1,
    "padded with a number": lambda x, y: F.pad(x * y[:, :1], (2, -1), value=-0.0),
    "read twice": lambda x, y: F.pad(-x, (0, 3)) + F.pad(-x, (3, 0)),
}


@pytest.mark.parametrize("name", PUT_TOGETHER)
def test_parts_put_together(name: str) -> None:
    x, y = torch.randn(5, 9), torch.randn(5, 14)
    x[0, :3] = torch.tensor([0.0, -0.0, float("nan")])
    run_function(PUT_TOGETHER[name], x, y)
    wanted = PUT_TOGETHER[name](x, y)
    compiled = compile_function(PUT_TOGETHER[name], [x, y], [wanted.stride()], Context(Options(verify=True), detect()))
    (found,) = compiled(x, y)
    assert torch.equal(found.signbit() | found.isnan(), wanted.signbit() | wanted.isnan())  # what is no number has none
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_mask_that_divides_places_is_left_alone() -> None:
    """Of places that are not known without dividing, a kernel of its own is better."""
    program, _ = program_of(lambda x: F.pad((-x).reshape(6, 10), (1, 1)), [torch.randn(5, 12)])
    assert all(not _divides(load) for kernel in program.steps if isinstance(kernel, Kernel) for load in kernel.loads)


def _divides(load: Load) -> bool:
    return "//" in str(load.index) or "%" in str(load.index)


def test_what_is_written_in_between_is_not_read_late() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        before = -x
        x.mul_(2)
        return F.pad(before, (1, 2))

    x = torch.randn(4, 8)
    given, eager = x.clone(), x.clone()
    wanted = function(eager)
    compiled = compile_function(function, [x.clone()], [wanted.stride()], Context(Options(verify=True), detect()))
    (found,) = compiled(given)
    assert torch.equal(found, wanted) and torch.equal(given, eager)


def test_zero_where_the_mask_is_false_has_no_sign() -> None:
    """A gradient is 0.0 outside its part, and not the -0.0 that its formula would make of nothing."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.slice_backward(-x, [4, 10], 1, 2, 6, 1) + y

    x, y = torch.randn(4, 4), torch.full((4, 10), -0.0)
    run_function(function, x, y)
    (found,) = compile_function(function, [x, y], [(10, 1)], Context(Options(verify=True), detect()))(x, y)
    assert torch.equal(found.signbit(), function(x, y).signbit())
