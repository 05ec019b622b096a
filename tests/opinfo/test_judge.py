"""The judge is judged: it must see results made wrong in each way a compiler might, and pass those that are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.opinfo import check as checking
from tests.opinfo import judge
from tests.opinfo.check import check
from tests.opinfo.known import at_fault, unwritten
from tests.opinfo.samples import Case

INF, NAN = math.inf, math.nan
T = torch.tensor


def compare(got: Any, want: Any, exact: Any = None, spread: Any = None) -> str | None:
    """Each a list of numbers of float32; `exact` and `spread` of float64."""
    wide = [None if x is None else [T(x, dtype=torch.float64)] for x in (exact, spread)]
    return judge.compare([T(got)], [T(want)], wide[0], lambda: wide[1])[0]


@pytest.mark.parametrize(
    ("got", "want", "exact"),
    [
        ([1.001, 2.0], [1.0, 2.0], [1.0, 2.0]),
        ([NAN, 2.0], [1.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [NAN, 2.0], [NAN, 2.0]),
        ([1.0, 2.0], [NAN, 2.0], [1.0, 2.0]),  # eager's NaN is eager's answer, whatever float64 has
        ([1.0, 2.0], [INF, 2.0], [INF, 2.0]),
        ([-7.0, 2.0], [INF, 2.0], [1e39, 2.0]),  # eager is infinitely far from the referee: not all else is nearer
        ([5.0, 2.0], [1.0, 2.0], [INF, 2.0]),
        ([-INF, 2.0], [INF, 2.0], [1e39, 2.0]),
        ([INF, 2.0], [3e38, 2.0], [3e38, 2.0]),
        ([-0.0, 2.0], [0.0, 2.0], [0.0, 2.0]),
        ([0.0, 2.0], [-0.0, 2.0], [-0.0, 2.0]),
        ([0.0, 2.0], [-0.0, 2.0], None),
        ([0.0, 2.0], [-0.0, 2.0], [-1e-60, 2.0]),  # too small for float32, and below zero
    ],
)
def test_sees_a_wrong_number(got: list[float], want: list[float], exact: list[float] | None) -> None:
    assert compare(got, want, exact) is not None


@pytest.mark.parametrize(
    ("got", "want", "exact"),
    [
        ([1.0000001, 2.0], [1.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [1.0001, 2.0], [1.0, 2.0]),  # nearer than eager
        ([NAN, -INF], [NAN, -INF], [NAN, -INF]),
        ([-0.0, 2.0], [0.0, 2.0], [-0.0, 2.0]),  # eager signs it otherwise in float64
        ([-0.0, 2.0], [0.0, 2.0], [1e-9, 2.0]),  # what cancellation left
    ],
)
def test_passes_what_is_right(got: list[float], want: list[float], exact: list[float] | None) -> None:
    assert compare(got, want, exact) is None


@pytest.mark.parametrize("spread", [NAN, INF])
def test_a_spread_that_is_no_number_allows_nothing(spread: float) -> None:
    assert compare([1.5, 2.0], [1.0, 2.0], [1.0, 2.0], [spread, 0.0]) is not None
    assert compare([1.5, 2.0], [1.0, 2.0], None, [spread, 0.0]) is not None


def test_a_spread_allows_as_much_as_it_says() -> None:
    assert compare([1.5, 2.0], [1.0, 2.0], [1.0, 2.0], [0.3, 0.0]) is None
    assert compare([1.7, 2.0], [1.0, 2.0], [1.0, 2.0], [0.3, 0.0]) is not None


def test_complex_zeros_have_two_signs() -> None:
    want = [torch.complex(T([0.0]), T([-0.0]))]
    assert judge.compare([torch.complex(T([0.0]), T([-0.0]))], want, None, lambda: None)[0] is None
    assert judge.compare([torch.complex(T([0.0]), T([0.0]))], want, None, lambda: None)[0] is not None


def test_whole_numbers_are_equal_or_wrong() -> None:
    assert judge.compare([T([1, 2])], [T([1, 3])], None, lambda: None)[0] is not None
    assert judge.compare([2], [3], None, lambda: None)[0] is not None
    assert judge.compare([T([True])], [T([False])], None, lambda: None)[0] is not None


# -- through the whole check ------------------------------------------------------------------
def case_of(call: Callable[..., Any], *args: Any, backward: bool = False) -> Case:
    leaves, spec = pytree.tree_flatten((args, {}))
    return Case(call.__name__, "float32", "0", call, leaves, spec, backward)


X = (torch.arange(-17.0, 18.0) / 10).view(5, 7)  # with a zero in its middle


def planted(make: Callable[..., Any]) -> Any:
    """Compiling gives eager's own results, which `make` then makes wrong; it may write to the inputs as well."""

    def compile_function(function: Callable[..., Any], inputs: Any, strides: Any, ctx: Any, *_: Any) -> Any:
        ctx.snapshot("trace", "")
        return lambda *tensors: make(list(function(*tensors)), *tensors)

    return mock.patch.object(checking, "compile_function", compile_function)


WRONG: dict[str, Callable[..., Any]] = {
    "a number": lambda out, x, *_: [out[0] * 1.0001],
    "a number that is none": lambda out, x, *_: [out[0].clone().fill_(NAN)],
    "too few": lambda out, x, *_: [],
    "too many": lambda out, x, *_: [*out, *out],
    "no tensor": lambda out, x, *_: [1.0],
    "the type": lambda out, x, *_: [out[0].double()],
    "the shape": lambda out, x, *_: [out[0][None]],
    "the strides": lambda out, x, *_: [out[0].mT.contiguous().mT],
    "gaps": lambda out, x, *_: [torch.stack([out[0], out[0]], -1)[..., 0]],
    "an input written": lambda out, x, *_: (x.flatten()[:1].add_(1), out)[1],
    "an input's zero": lambda out, x, *_: (x.mul_(-1).mul_(-1).masked_fill_(x == 0, -0.0), out)[1],
    "an input returned": lambda out, x, *_: [x.copy_(out[0])],
}


@pytest.mark.parametrize("kind", WRONG)
def test_sees_what_is_wrong(kind: str) -> None:
    case = case_of(torch.mul, X, 1.1 * X)
    assert check(case).status == "right"
    with planted(lambda out, *tensors: out):
        assert check(case).status == "right"
    with planted(WRONG[kind]):
        result = check(case)
    assert result.status == "wrong", result


def test_sees_a_view_that_was_copied() -> None:
    case = case_of(torch.transpose, X, 0, 1)
    with planted(lambda out, *tensors: out):
        assert check(case).status == "right"
    with planted(lambda out, *tensors: [out[0].mT.clone().mT]):
        assert "share memory" in check(case).message


def test_sees_a_view_of_another_place() -> None:
    case = case_of(torch.diagonal, torch.ones(5, 7))
    with planted(lambda out, x, *_: [out[0].as_strided(out[0].shape, out[0].stride(), out[0].storage_offset() + 1)]):
        assert "share memory" in check(case).message


def test_sees_the_sign_of_a_zero() -> None:
    case = case_of(torch.abs, X)
    assert check(case).status == "right"
    with planted(lambda out, *_: [torch.where(out[0] == 0, -out[0], out[0])]):
        assert "signs of zeros" in check(case).message


def test_sees_a_number_where_eager_has_none() -> None:
    case = case_of(torch.log, X)
    assert check(case).status == "right"
    with planted(lambda out, *_: [out[0].nan_to_num(0, INF, -INF)]):
        assert check(case).status == "wrong"


def test_sees_a_gradient_that_is_missing() -> None:
    case = case_of(torch.sin, X, backward=True)
    assert check(case).status == "right"
    with planted(lambda out, x, *_: [out[0].detach()]):
        assert check(case).status == "wrong"
    with planted(lambda out, x, *_: [out[0].detach() + x - x.detach()]):
        assert check(case).status == "wrong"


def test_sees_another_number_of_draws() -> None:
    case = case_of(torch.rand_like, X)
    with planted(lambda out, *_: (torch.rand(1), out)[1]):
        assert "random draws" in check(case).message


@pytest.mark.parametrize("call", [torch.nn.functional.dropout, torch.native_dropout], ids=["coins", "fused"])
def test_what_was_drawn_is_drawn_again_for_the_referee(call: Callable[..., Any]) -> None:
    """A sum of large numbers and of what is left when some are dropped: eager's own error says how exact it can be."""
    x = torch.cat([X.flatten() * 1e4, X.flatten()])

    def sums(x: torch.Tensor) -> torch.Tensor:
        kept = call(x, 0.5, True)
        return torch.stack([(kept if isinstance(kept, torch.Tensor) else kept[0]).cumsum(0)[-1], x.sum()])

    case = case_of(sums, x)
    narrow, _, random = checking._eager(case)
    referee = checking._referee(case, random)
    assert random and referee is not None and referee[0].dtype is torch.float64
    torch.testing.assert_close(referee[0].float(), narrow[0], rtol=1e-5, atol=1e-2)
    with planted(lambda out, *_: [out[0] * (1 + 1e-4)]):
        assert check(case).status == "wrong"


def test_other_draws_have_no_referee() -> None:
    assert checking._referee(case_of(torch.rand_like, X), True) is None


def test_sees_another_device() -> None:
    assert "on meta instead of cpu" in str(judge.compare([X.to("meta")], [X], None, lambda: None)[0])


def test_what_names_no_device_is_compiled_for_the_cpu() -> None:
    """The database's samples for a GPU have some that do not mention one."""
    case = replace(case_of(torch.arange, 5), device="cuda")
    assert checking._device_of(case, [torch.arange(5)]) == "cpu"
    assert checking._device_of(replace(case_of(torch.sin, X), device="cuda"), [X]) == "cuda"


def test_results_that_nobody_writes() -> None:
    """Without dropout there is no random number whose place could be told; with it, that is a result like others."""
    name = "torch.ops.aten._efficient_attention_forward"
    for dropout, wanted in ((0.0, (2, 3)), (0.5, ())):
        leaves, spec = pytree.tree_flatten(((X,), {"dropout_p": dropout}))
        assert unwritten(Case(name, "float32", "0", torch.sin, leaves, spec)) == wanted


def test_a_table_with_gaps_is_no_comparison_on_a_gpu() -> None:
    for table, device, known in ((X, "cuda", False), (X.mT, "cuda", True), (X.mT, "cpu", False)):
        leaves, spec = pytree.tree_flatten(((table, torch.tensor([1])), {"max_norm": 1.0}))
        case = Case("nn.functional.embedding_bag", "float32", "0n", torch.sin, leaves, spec, device=device)
        assert (at_fault(case) is not None) == known
