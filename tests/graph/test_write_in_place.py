"""What is put into an input is written there, where nobody asks for what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz

PLACE, ROW = torch.tensor([5]), torch.randn(2, 3, 1, 8, generator=torch.Generator().manual_seed(0))


def cache() -> torch.Tensor:
    return torch.arange(2.0 * 3 * 16 * 8).reshape(2, 3, 16, 8)


def copies(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    x.index_copy_(2, place, row * 2)
    return x.sum(-1)


def assigns(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    x[:, :, place] = row * 2
    return x.sum(-1)


def fills_a_slice(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    x[:, :, 4:6] = row.exp()
    return x.sum(-1)


def fills_a_row(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    x[:, :, 4] = row[:, :, 0].exp()
    return x.sum(-1)


def writes_twice(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    before = x.sum(-1)
    x.index_copy_(2, place, row)
    between = x.mean(-1)
    x.index_copy_(2, place + 1, between[:, :, :1, None] * row)
    return before + between + x.sum(-1)


def run(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
    torch._dynamo.reset()
    own = cache()
    with torch.no_grad():
        found = torch.compile(function, backend="litz", options=options or None)(own, *args)
    return own, found


def fired() -> int:
    report = litz.last_report()
    assert report is not None and not report.fallbacks and report.left_to_eager is None
    return sum(firing.times for firing in report.firings if firing.rule == "write_in_place")


@pytest.mark.parametrize("function", [copies, assigns, fills_a_slice, fills_a_row, writes_twice])
@pytest.mark.parametrize("place", [PLACE, torch.tensor([3, 9, 3])])
def test_what_is_put_is_written_where_it_belongs(function: Callable[..., Any], place: torch.Tensor) -> None:
    row = ROW.expand(2, 3, len(place), 8).contiguous()
    if function in (fills_a_slice, fills_a_row):
        row = ROW
    wanted = cache()
    result = function(wanted, row, place)
    own, found = run(function, row, place)
    torch.testing.assert_close(own, wanted)
    torch.testing.assert_close(found, result)
    assert fired() == 1


def test_only_what_is_put_is_touched() -> None:
    run(copies, ROW, PLACE, snapshots=True)
    report = litz.last_report()
    assert report is not None
    stores = [line for line in report.snapshot("fuse").splitlines() if " in0[" in line and "load" not in line]
    assert len(stores) == 1 and "update put" in stores[0]


def returns_what_was_made(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    made = x.index_copy(2, place, row)
    x.copy_(made)
    return made


def reads_what_was_there(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    made = x.index_copy(2, place, row)
    before = x * made
    x.copy_(made)
    return before


def adds(x: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    x.transpose(0, 2).index_put_((place,), row.transpose(0, 2), accumulate=True)
    return x.sum(-1)


@pytest.mark.parametrize("function", [returns_what_was_made, reads_what_was_there, adds])
def test_others_are_written_as_they_were(function: Callable[..., Any]) -> None:
    wanted = cache()
    result = function(wanted, ROW, PLACE)
    own, found = run(function, ROW, PLACE)
    torch.testing.assert_close(own, wanted)
    torch.testing.assert_close(found, result)
    assert fired() == 0
    assert found.data_ptr() != own.data_ptr()


def test_a_place_that_is_none_leaves_the_input_as_it_was() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(copies, backend="litz")
    own = cache()
    with torch.no_grad():
        compiled(own, ROW, PLACE)
        before = own.clone()
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(own, ROW, torch.tensor([16]))
    assert torch.equal(own, before)


def test_without_fuel_the_input_is_copied() -> None:
    wanted = cache()
    result = copies(wanted, ROW, PLACE)
    own, found = run(copies, ROW, PLACE, fuel=0)
    torch.testing.assert_close(own, wanted)
    torch.testing.assert_close(found, result)
    assert fired() == 0
