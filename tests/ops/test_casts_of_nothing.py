"""Whole numbers of what no whole number is: eager's, also where LLVM can tell that a value is NaN or infinite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

INF, NAN = float("inf"), float("nan")
VALUES = torch.tensor([-2.5, 0.0, 3.0] * 20)
PROGRAMS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "divided by nothing": lambda x: ((x / 0).int(), (x / 0).long()),
    "infinite": lambda x: ((x * INF).int(), (x * 1e20).to(torch.int16), (x * -1e20).long()),
    "NaN": lambda x: ((x * NAN).int(), (x * NAN).to(torch.int8), (x * NAN).to(torch.uint8)),
    "constants": lambda x: (torch.full((3,), INF).int() + x.int()[:3], torch.full((3,), 1e20).long() + x.long()[:3]),
    "what is made of them": lambda x: ((x / 0).int() < 0, (x / 0).long().clamp(0, 5), x.half().mul(INF).int()),
    "of a number in double": lambda x: ((x.double() / 0).int(), (x.double() / 0).long()),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_numbers(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="litz")
    for got, want in zip(compiled(VALUES), PROGRAMS[name](VALUES), strict=True):
        assert torch.equal(got, want)


def test_an_index_of_nothing_is_out_of_range() -> None:
    torch._dynamo.reset()
    with pytest.raises(IndexError):
        torch.compile(lambda x, t: t[(x / 0).long()], backend="litz")(VALUES, torch.arange(5.0))
