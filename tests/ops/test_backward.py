"""Every gradient against eager's operator, through the interpreter; some through the generated code as well."""

from __future__ import annotations

import pytest
import torch

from tests.ops.cases_backward import CASES
from tests.ops.lowering import Case, check


@pytest.mark.parametrize("one", CASES, ids=[one.name for one in CASES])
def test_agrees_with_eager(one: Case) -> None:
    check(one)


def test_names_are_unique() -> None:
    names = [one.name for one in CASES]
    assert sorted(set(names)) == sorted(names)
