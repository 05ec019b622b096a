"""Places in tensors that have none: what eager refuses is refused, and nothing is read or written where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz

T = torch.tensor
Access = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand(-1, x.shape[1])


def _ones(x: torch.Tensor, index: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return torch.ones((index.shape[0], x.shape[1]) if dim == 0 else (x.shape[0], index.shape[0]))


ACCESSES: dict[str, Access] = {
    "index": lambda x, i: x[i],
    "index_columns": lambda x, i: x[:, i],
    "index_both": lambda x, i: x[i, i],
    "index_a_part": lambda x, i: x[i][:1],
    "index_summed": lambda x, i: (x[i] + 1).sum(0),
    "index_put": lambda x, i: x.index_put((i,), T(1.0)),
    "index_put_accumulate": lambda x, i: x.index_put((i,), T(1.0), accumulate=True),
    "index_put_both": lambda x, i: x.index_put((i, i), T(1.0)),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select_columns": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(0, _rows(x, i)),
    "gather_columns": lambda x, i: x.gather(1, i[None].expand(x.shape[0], -1)),
    "take": lambda x, i: x.take(i),
    "put": lambda x, i: x.put(i, i * 1.0),
    "embedding": lambda x, i: F.embedding(i, x),
    "scatter": lambda x, i: x.scatter(0, _rows(x, i), 1.0),
    "scatter_columns": lambda x, i: x.scatter(1, i[None].expand(x.shape[0], -1), 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, _rows(x, i), _ones(x, i)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, _rows(x, i), _ones(x, i), "amax"),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_fill_columns": lambda x, i: x.index_fill(1, i, 1.0),
    "index_copy": lambda x, i: x.index_copy(0, i, _ones(x, i)),
    "index_copy_columns": lambda x, i: x.index_copy(1, i, _ones(x, i, 1)),
    "index_add": lambda x, i: x.index_add(0, i, _ones(x, i)),
    "index_add_columns": lambda x, i: x.index_add(1, i, _ones(x, i, 1)),
    "index_reduce": lambda x, i: x.index_reduce(0, i, _ones(x, i), "amax"),
    "embedding_bag": lambda x, i: F.embedding_bag(i, x, T([0]), mode="max"),
}
FEW, MANY = T([9, 0]), torch.arange(12)


def _outcome(function: Access, x: torch.Tensor, index: torch.Tensor) -> Any:
    try:
        return function(x, index)
    except Exception as error:
        return type(error)


def _same(function: Access, fast: Access, x: torch.Tensor, index: torch.Tensor) -> None:
    want, got = _outcome(function, x, index), _outcome(fast, x, index)
    if isinstance(want, type):
        # What tracing refuses it refuses in words of its own.
        assert got is want or getattr(got, "__module__", "").startswith("torch._dynamo"), (want, got)
    else:
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:.*beta state")
@pytest.mark.parametrize("name", ACCESSES)
def test_of_a_tensor_that_is_empty(name: str) -> None:
    for shape in ((0, 3), (3, 0)):
        for index in (FEW, MANY):
            torch._dynamo.reset()
            _same(ACCESSES[name], litz.compile(ACCESSES[name], dynamic=False), torch.zeros(shape), index)


@pytest.mark.filterwarnings("ignore:.*beta state")
@pytest.mark.parametrize("name", ACCESSES)
def test_of_a_tensor_that_may_be_empty(name: str) -> None:
    """One program for sizes of which some leave nothing."""
    for cut in (lambda x: x[2:], lambda x: x[:, 2:]):

        def function(x: torch.Tensor, index: torch.Tensor, cut: Callable = cut) -> torch.Tensor:
            return ACCESSES[name](cut(x), index)

        torch._dynamo.reset()
        fast = litz.compile(function, dynamic=True)
        zeros = torch.zeros(4, dtype=torch.long)
        for shape, index in (((6, 5), zeros), ((7, 4), zeros[:3]), ((2, 4), T([9, 8, 7])), ((3, 2), T([9, 8, 7]))):
            _same(function, fast, torch.zeros(shape), index)


def test_an_index_is_checked_though_its_result_is_of_no_size() -> None:
    function: Access = lambda x, i: x.index_select(0, i)  # noqa: E731
    with pytest.raises(RuntimeError):
        litz.compile(function, dynamic=False)(torch.zeros(3, 0), T([5]))


def test_an_index_is_checked_though_a_part_of_its_result_is_used() -> None:
    """What is cheap is computed again where it is read, and there is nothing to be read there."""
    function: Access = lambda x, i: x[i.expand(100)][:0] + 1  # noqa: E731
    with pytest.raises(IndexError):
        litz.compile(function, dynamic=False)(torch.zeros(3), T([5]))
