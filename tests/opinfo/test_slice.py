"""The slice of the operator sweep that fits `make test`: every operator once, some of them through Dynamo."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.opinfo import judge
from tests.opinfo.check import check, front_door
from tests.opinfo.known import NOT_ON_CPU
from tests.opinfo.samples import Case, cases, database, differentiable, dtypes_of, has_gradients, name_of, refused

ENTRIES = {name_of(entry): entry for entry in database()}
SMALL = 2000  # elements in all of a sample's tensors
# Some entries have no type of ours on the CPU: float8 products, attention kernels for GPUs.
TYPED = {name for name, entry in ENTRIES.items() if dtypes_of(entry)}
THROUGH_DYNAMO = sorted(TYPED - NOT_ON_CPU)[::24]


def first_case(entry: Any) -> Case | None:
    """The first small sample eager takes, in float32 where the operator has it."""
    supported = dtypes_of(entry)
    dtype = "float32" if "float32" in supported else supported[0]
    found: Case | None = None
    for case in cases(entry, dtype):
        elements = sum(t.numel() for t in case.tensors)
        if 0 < elements <= SMALL or not case.positions:
            return case
        found = found or case
    return found


@pytest.mark.parametrize("name", sorted(TYPED - NOT_ON_CPU))
def test_agrees_with_eager(name: str) -> None:
    case = first_case(ENTRIES[name])
    assert case is not None, "no sample at all"
    result = check(case)
    assert result.status in ("right", "eager", "known"), f"{case}: {result.status}: {result.message}"


DIFFERENTIABLE = [name for name in sorted(TYPED - NOT_ON_CPU) if has_gradients(ENTRIES[name], "float32")]


@pytest.mark.parametrize("name", DIFFERENTIABLE[::2])
def test_gradients_agree_with_eager(name: str) -> None:
    """Every second operator; the sweep has them all."""
    case = next((c for c in differentiable(ENTRIES[name], "float32") if _is_small(c)), None)
    if case is None:
        pytest.skip("no sample of it is small")
    result = check(case)
    assert result.status in ("right", "eager", "refused"), f"{case}: {result.status}: {result.message}"


def _is_small(case: Case) -> bool:
    return 0 < sum(t.numel() for t in case.tensors) <= SMALL


@pytest.mark.parametrize("name", sorted(NOT_ON_CPU))
def test_is_refused_by_eager_as_well(name: str) -> None:
    case = first_case(ENTRIES[name])
    assert case is not None
    assert check(case).status == "refused"


@pytest.mark.parametrize("name", THROUGH_DYNAMO)
def test_agrees_with_eager_through_the_front_door(name: str) -> None:
    case = first_case(ENTRIES[name])
    assert case is not None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(1234)
        eager = case.function(*case.tensors)
        found = front_door(case)
        wide = case.in_double()
        torch.manual_seed(1234)
        message, _ = judge.compare(found, eager, wide.function(*wide.tensors), lambda: None)
    assert message is None, f"{case}: {message}"


REFUSED = [name for name in sorted(ENTRIES) if ENTRIES[name].error_inputs_func is not None][::8]


@pytest.mark.parametrize("name", REFUSED)
def test_raises_what_eager_raises(name: str) -> None:
    case = next(iter(refused(ENTRIES[name])), None)
    if case is None:
        pytest.skip("its entry lists nothing to refuse on the CPU")
    result = check(case)
    assert result.status in ("right", "known", "refused"), f"{case}: {result.message}"
