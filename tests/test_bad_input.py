"""What goes wrong, goes wrong as in eager or with a word of help: options, indices, exceptions, changed inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def compiled(function: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="litz", **keywords)


# -- options ------------------------------------------------------------------------------------------
def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(Exception, match="did you mean 'matmul'"):
        compiled(torch.sin, options={"matmull": "library"})(torch.ones(3))
    with pytest.raises(litz.OptionError, match="did you mean 'matmul'"):
        litz.compile(torch.sin, matmull="library")


def test_modes_of_torch_compile() -> None:
    x = torch.randn(5)
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(lambda x: x * 2, mode=mode)(x), x * 2)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="option 'mode' accepts"):
        compiled(lambda x: x * 2, mode="max-autotunes")(x)


# -- what changes between calls -----------------------------------------------------------------------
def test_another_type_or_rank_is_compiled_anew() -> None:
    fast = compiled(lambda x: x.sum() + x.amax())
    shapes = [torch.randn(5), torch.randn(3, 5), torch.randn(2, 3, 4), torch.tensor(1.5)]
    for x in (*shapes, torch.randn(5).double(), torch.arange(5)):
        torch.testing.assert_close(fast(x), x.sum() + x.amax())
        assert fast(x).dtype == (x.sum() + x.amax()).dtype


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_other_sizes(dynamic: bool | None) -> None:
    fast = compiled(lambda x, n: (x * n + x.shape[0], x[:n].sum(0), x.reshape(-1)), dynamic=dynamic)
    for size in (5, 7, 7, 1, 0, 9, 5):
        x = torch.randn(size, 6)
        for got, want in zip(fast(x, 3), (x * 3 + size, x[:3].sum(0), x.reshape(-1)), strict=True):
            torch.testing.assert_close(got, want)


def test_other_strides() -> None:
    fast = compiled(lambda x: x * 2 + 1)
    for x in (torch.randn(6, 6), torch.randn(6, 6).t(), torch.randn(12, 12)[::2, ::2], torch.randn(36)[:36].view(6, 6)):
        torch.testing.assert_close(fast(x), x * 2 + 1)


def test_gradients() -> None:
    """With autograd on, results and gradients are eager's, and it takes no more than one warning."""
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 2))
    x = torch.randn(3, 5)
    with torch.enable_grad(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fast = compiled(model)
        fast(x).sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        fast(x).sum().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], found)
        model.zero_grad()
        model(x).sum().backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)
    assert len([w for w in seen if "litz" in str(w.message)]) <= 1


def test_gradients_in_a_part_only() -> None:
    weight = torch.randn(3, requires_grad=True)

    def partly(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x * weight

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = compiled(partly)(torch.ones(3))
    assert out.requires_grad
    out.backward(torch.ones(3))
    assert torch.equal(weight.grad, torch.ones(3))


# -- errors ---------------------------------------------------------------------------------------------
OUT_OF_RANGE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "embedding": lambda t, i: F.embedding(i, t),
    "index": lambda t, i: t[i] * 2,
    "index_select": lambda t, i: t.index_select(0, i),
    "gather": lambda t, i: t[:, 0].gather(0, i),
    "take": lambda t, i: t[:, 0].take(i),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_indices_out_of_range(name: str) -> None:
    function = OUT_OF_RANGE[name]
    fast = compiled(function)
    table, good = torch.randn(9, 20), torch.tensor([0, 8, 3])
    torch.testing.assert_close(fast(table, good), function(table, good))
    for bad in (9, 10**12, -10):
        index = torch.tensor([0, bad, 3])
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(table, index)
        with pytest.raises((IndexError, RuntimeError)) as found:
            fast(table, index)
        # Eager is of two minds about gather: IndexError in one torch, RuntimeError in another.
        assert isinstance(found.value, wanted.type) or name == "gather"
    torch.testing.assert_close(fast(table, good), function(table, good))  # and it still works


DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "remainder-of-a-number": lambda a, b: 7 % b,
    "fmod": torch.fmod,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_whole_numbers_divided_by_zero(name: str) -> None:
    function = DIVISIONS[name]
    fast = compiled(function)
    a, b = torch.arange(-20, 20), torch.full((40,), 3)
    torch.testing.assert_close(fast(a, b), function(a, b))
    b[17] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        function(a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fast(a, b)


class Complaint(Exception):
    pass


def test_the_users_exception_passes() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            raise Complaint("too long")
        return x + 1

    fast = compiled(refuse)
    assert fast(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(Complaint, match="too long"):
        fast(torch.ones(5))


def test_an_error_of_torch_passes() -> None:
    with pytest.raises(RuntimeError, match="size"):
        compiled(lambda x, y: x @ y)(torch.ones(2, 3), torch.ones(4, 5))
    with pytest.raises(ZeroDivisionError):
        compiled(lambda x: x * (1 // 0))(torch.ones(2))


def test_an_operator_that_raises_when_called() -> None:
    fast = compiled(lambda x: torch.linalg.cholesky(x) * 2)
    torch.testing.assert_close(fast(torch.eye(3)), 2 * torch.eye(3))
    with pytest.raises(torch.linalg.LinAlgError):
        fast(-torch.eye(3))
    torch.testing.assert_close(fast(torch.eye(3)), 2 * torch.eye(3))


def test_shapes_that_depend_on_data() -> None:
    fast = compiled(lambda x: x[x > 0] * 2)
    for seed in range(3):
        x = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(fast(x), x[x > 0] * 2)
    torch.testing.assert_close(compiled(lambda x: x.nonzero().sum(0))(torch.eye(3)), torch.tensor([3, 3]))


def test_inputs_that_change_shape_in_place() -> None:
    def widen(x: torch.Tensor) -> torch.Tensor:
        x.unsqueeze_(0)
        return x * 2

    mine, eager = torch.ones(5), torch.ones(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(widen)(mine), widen(eager))
    assert mine.shape == eager.shape


@pytest.mark.parametrize("name", ["inv", "cholesky"])
@pytest.mark.parametrize("training", [False, True])
def test_a_matrix_that_cannot_be_inverted_raises_as_in_eager(name: str, training: bool) -> None:
    """The operator is called, what surrounds it is compiled, and its check of the data runs."""
    torch._dynamo.reset()
    solve = getattr(torch.linalg, name)
    compiled = torch.compile(lambda x: solve(x * 2) + 1, backend="litz")
    good, bad = torch.eye(4) * 3, torch.zeros(4, 4)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(compiled(good.requires_grad_(training)), solve(good * 2) + 1)
        assert litz.last_report().kernels > 0 and not litz.last_report().notes
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(bad.requires_grad_(training))
