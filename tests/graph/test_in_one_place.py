"""What is written to a view that has an element of memory in several places: as eager does it, or left to eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from litz.report import HISTORY

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a line of an expanded tensor": lambda x: x.expand(3, -1, -1)[0].fill_(7.0),
    "an element of a broadcast one": lambda x: torch.broadcast_to(x, (4, 4, 6))[1, 0].add_(2.0),
    "a whole window": lambda x: x.view(-1).as_strided((2, 3), (1, 1)).mul_(2.0),
    "a line of a window": lambda x: x.view(-1).as_strided((2, 3), (1, 1))[0].fill_(7.0),
    "a line of a window whose steps meet": lambda x: x.view(-1).as_strided((3, 2), (2, 2))[0].zero_(),
    "a line of slices": lambda x: x.view(-1).unfold(0, 3, 1)[1].mul_(2.0),
}  # fmt: skip

COMPILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "windows side by side": lambda x: x.as_strided((2, 3), (3, 1)).mul_(2.0),
    "windows that lie between each other": lambda x: x.as_strided((2, 5), (3, 2))[0].mul_(2.0),
    "what an expanded tensor is of": lambda x: (x.expand(3, -1, -1) * 2, x.mul_(2.0))[0],
    "slices side by side": lambda x: x.view(-1).unfold(0, 3, 3).mul_(2.0),
}


def run(write: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        written = write(y)
        return [y * 1, written * 1]

    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    x[0, 0] = float("inf")  # of which no difference can be taken
    for got, want in zip(torch.compile(program, backend="litz", dynamic=dynamic)(x), program(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_left_to_eager(name: str) -> None:
    with pytest.warns(UserWarning, match="left to eager"):
        run(PROGRAMS[name], dynamic=False)
    run(PROGRAMS[name], dynamic=True)  # which is told once


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_is_compiled(name: str, dynamic: bool) -> None:
    before = HISTORY.mark()
    run(COMPILED[name], dynamic)
    assert HISTORY.since(before)
