"""Tangents of torch's operators against those of `torch.func.jvp`: by the compiler itself, and through `litz.jvp`.

The sweep has every sample: `python -m tests.opinfo.sweep --dtype jvp-float32`, and with `--jvp` through `litz.jvp`.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import litz
from litz.report import HISTORY
from tests.opinfo.check import check, judged
from tests.opinfo.left_to_eager import may_be_left
from tests.opinfo.samples import Case, forwards, has_forward_mode
from tests.opinfo.test_slice import ENTRIES, OPERATORS, SMALL
from tests.opinfo.through_dynamo import by_litz_jvp

FORWARD = [name for name in OPERATORS if has_forward_mode(ENTRIES[name], "float32")]


def first_with_tangents(name: str) -> Case | None:
    small = (c for c in forwards(ENTRIES[name], "float32") if 0 < sum(t.numel() for t in c.tensors) <= 2 * SMALL)
    return next(small, None)


@pytest.mark.parametrize("name", FORWARD[::5])
def test_tangents_agree_with_eager(name: str) -> None:
    case = first_with_tangents(name)
    if case is None:
        pytest.skip("no sample of it is small")
    result = check(case)
    left = ("eager",) if may_be_left(name, "jvp-float32") else ()
    assert result.status in ("right", "refused", *left), f"{case}: {result.status}: {result.message}"


@pytest.mark.parametrize("name", FORWARD[3::25])
def test_litz_jvp_agrees_with_eager(name: str) -> None:
    case = first_with_tangents(name)
    if case is None:
        pytest.skip("no sample of it is small")
    torch._dynamo.reset()
    HISTORY.clear()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        message, _ = judged(case, by_litz_jvp(case))
    assert message is None, f"{case}: {message}"
    if not may_be_left(name, "jvp-float32", "jvp"):
        (report,) = litz.reports()  # one graph, outputs and tangents
        assert report.left_to_eager is None and report.built


def test_zeros_that_lie_nowhere_are_tangents_too() -> None:
    case = next(c for c in forwards(ENTRIES["linalg.slogdet"], "float32") if c.tensors[0].numel())
    assert torch.func.jvp(torch.linalg.slogdet, (case.tensors[0],), (case.tensors[1],))[1][0]._is_zerotensor()
    assert check(case).status == "right"


def test_a_wrong_tangent_is_noticed() -> None:
    case = first_with_tangents("sin")
    assert case is not None

    def wrong(*tensors: torch.Tensor) -> list[Any]:
        result, rate = case.function(*tensors)
        return [result, rate * 1.001]

    message, _ = judged(case, wrong)
    assert message is not None and "result 1" in message
