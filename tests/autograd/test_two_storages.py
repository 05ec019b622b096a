"""Arguments in one piece of memory that is not torch's: each has a storage of its own, and a write to one changes the
other."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("first", "second"), [((0, 10), (2, 10)), ((0, 4), (3, 6)), ((4, 8), (0, 8)), ((0, 4), (4, 8))]
)
def test_as_eager_sees_them(first: tuple[int, int], second: tuple[int, int], dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(written, backend="litz", dynamic=dynamic)
    memories = [np.arange(10, dtype=np.float32) for _ in range(2)]
    for _ in range(2):
        results = []
        for memory, function in zip(memories, (compiled, written), strict=True):
            x, y = (torch.from_numpy(memory[slice(*part)]) for part in (first, second))
            results.append(function(x, y))
        assert torch.equal(*results) and np.array_equal(*memories)


def test_one_storage_within_another_that_lies_apart() -> None:
    """Storages that reach into each other, of which the arguments are parts that do not."""
    compiled = torch.compile(written, backend="litz")
    memory = np.arange(16, dtype=np.float32)
    whole, part = torch.from_numpy(memory), torch.from_numpy(memory[8:])
    found = compiled(whole[:4], part[2:])
    assert found.tolist() == [2.0 * n for n in range(10, 16)] and memory[:4].tolist() == [1.0, 2.0, 3.0, 4.0]
