"""Every lowering against eager, through the interpreter: the tables are in `cases_*.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from litz.context import Context
from litz.loop.expr import expr
from litz.ops import coverage
from litz.ops.builder import Builder
from litz.options import Options
from litz.target import detect
from tests.ops import cases_index, cases_nn, cases_pointwise, cases_reduce, cases_resample
from tests.ops.lowering import Case, check, lowered, run

CASES = [*cases_reduce.CASES, *cases_index.CASES, *cases_nn.CASES, *cases_pointwise.CASES, *cases_resample.CASES]


@pytest.mark.parametrize("one", CASES, ids=[one.name for one in CASES])
def test_agrees_with_eager(one: Case) -> None:
    check(one)


def test_names_are_unique() -> None:
    names = [one.name for one in CASES]
    assert sorted(set(names)) == sorted(names)


REFUSED = {
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w), 10),
    "embedding-negative": (lambda w, i: torch.nn.functional.embedding(i, w), -1),
    "index_select": (lambda x, i: x.index_select(0, i), 10),
    "index_select-negative": (lambda x, i: x.index_select(0, i), -1),
    "gather-negative": (lambda x, i: x[:, 0].gather(0, i), -1),
    "index": (lambda x, i: x[i], 10),
    "index-negative": (lambda x, i: x[i], -11),
    "take": (lambda x, i: x.take(i), 80),
    "scatter": (lambda x, i: x[:, 0].scatter(0, i, 1.0), 10),
    "index_put": (lambda x, i: torch.ops.aten.index_put(x, [i], x[:1]), -11),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_out_of_range_is_refused(name: str) -> None:
    function, place = REFUSED[name]
    inputs = (torch.randn(10, 8), torch.tensor([0, place, 1]))
    with pytest.raises((IndexError, RuntimeError)) as refusal:
        function(*inputs)
    with pytest.raises(refusal.type):
        run(function, inputs)


def test_running_statistics_are_updated_in_place() -> None:
    def train(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.3)

    x, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3)
    eager = mean.clone(), var.clone()
    expected = train(x, *eager)
    (found,), made, _ = run(train, (x, mean, var))
    assert not made.program.calls
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close((mean, var), eager)


def test_a_result_nobody_reads_is_not_computed() -> None:
    made, _ = lowered(lambda x: torch.nn.functional.max_pool2d(x, 2), (torch.randn(1, 2, 4, 4),))
    (kernel,) = made.program.kernels
    assert len(kernel.stores) == 1


def test_a_long_reduction_runs_in_parallel() -> None:
    made, _ = lowered(torch.sum, (torch.randn(1 << 17),))
    partial, rest = made.program.kernels
    assert partial.axes and not rest.axes


def test_coverage_lists_every_core_operator(capsys: pytest.CaptureFixture[str]) -> None:
    coverage.main([])
    text = capsys.readouterr().out
    assert "\n  native_layer_norm\n" in text
    assert {coverage.treatment(operator) for operator in coverage.core_operators()} <= set(coverage.TREATMENTS)


def test_nearly_all_of_core_aten_is_generated() -> None:
    made, left = coverage.shortfall()
    assert len(made) / (len(made) + len(left)) >= 0.95, f"neither generated nor left out for a reason: {left}"


def test_the_list_of_operators_is_up_to_date() -> None:
    text = (Path(__file__).parents[2] / "docs" / "OPERATORS.md").read_text()
    if f"of ATen in torch {torch.__version__.split('+')[0]} " not in text:
        pytest.skip("the document is of another version of torch")
    assert text == coverage.markdown(), "run `make docs`"


def test_elements_of_a_result_are_never_one() -> None:
    builder = Builder(Context(Options(), detect(1)))
    expanded = torch.empty(3, 1).expand(3, 4)
    assert builder.allocate(expanded, "input").strides == (expr(1), expr(0))
    assert builder.allocate(expanded).strides == (expr(4), expr(1))
