"""The slice of the operator sweep that fits `make test`: every operator once, some of them through Dynamo."""

from __future__ import annotations

import warnings
from unittest import mock

import pytest
import torch

from litz import pipeline
from litz.errors import CaptureError
from tests.opinfo import judge
from tests.opinfo.check import check, front_door
from tests.opinfo.known import NOT_ON_CPU
from tests.opinfo.left_to_eager import LEFT, treated
from tests.opinfo.samples import Case, cases, database, differentiable, dtypes_of, has_gradients, name_of, refused
from tests.opinfo.symbolic import check_symbolic

ENTRIES = {name_of(entry): entry for entry in database()}
SMALL = 2000  # elements in all of a sample's tensors
# Some entries have no type of ours on the CPU: float8 products, attention kernels for GPUs.
OPERATORS = sorted(name for name, entry in ENTRIES.items() if dtypes_of(entry) and name not in NOT_ON_CPU)
THROUGH_DYNAMO = OPERATORS[::24]
DIFFERENTIABLE = [name for name in OPERATORS if has_gradients(ENTRIES[name], "float32")]


def first_case(name: str) -> Case:
    """The first small sample eager takes, in float32 where the operator has it."""
    supported = dtypes_of(ENTRIES[name])
    dtype = "float32" if "float32" in supported else supported[0]
    found: Case | None = None
    for case in cases(ENTRIES[name], dtype):
        if _is_small(case) or not case.positions:
            return case
        found = found or case
    assert found is not None, "no sample at all"
    return found


def first_with_gradients(name: str) -> Case | None:
    return next((c for c in differentiable(ENTRIES[name], "float32") if _is_small(c)), None)


def _is_small(case: Case) -> bool:
    return 0 < sum(t.numel() for t in case.tensors) <= SMALL


@pytest.mark.parametrize("name", OPERATORS)
def test_agrees_with_eager(name: str) -> None:
    case = first_case(name)
    result = check(case)
    assert result.status in ("right", "eager"), f"{case}: {result.status}: {result.message}"
    assert (message := treated(name, "", result)) is None, f"{case}: {message}"


@pytest.mark.long
@pytest.mark.parametrize("name", DIFFERENTIABLE[::2])
def test_gradients_agree_with_eager(name: str) -> None:
    """Every second operator; the sweep has them all."""
    case = first_with_gradients(name)
    if case is None:
        pytest.skip("no sample of it is small")
    result = check(case)
    assert result.status in ("right", "eager", "refused"), f"{case}: {result.status}: {result.message}"
    assert (message := treated(name, "grad", result)) is None, f"{case}: {message}"


SYMBOLIC = [name for name in OPERATORS if name not in LEFT[""]][::20]


@pytest.mark.long
@pytest.mark.parametrize("name", SYMBOLIC)
def test_agrees_with_eager_at_other_sizes(name: str) -> None:
    case = first_case(name)
    result = check_symbolic(case)
    allowed = ("eager",) if name in LEFT["symbolic"] else ("right", "known")
    assert result.status in allowed, f"{case}: {result.status}: {result.message}"
    assert "compiles for" not in result.message, f"{case}: {result.message}"


def test_what_is_listed_exists() -> None:
    for kind, names in LEFT.items():
        known = DIFFERENTIABLE if kind == "grad" else OPERATORS
        assert not set(names).difference(known), f"no such operators ({kind or 'inference'})"


@pytest.mark.parametrize("name", ["add", "nn.functional.gelu", "sum", "nn.functional.layer_norm"])
def test_fails_where_nothing_can_be_traced(name: str) -> None:
    """What is left to eager is right by definition: were it not listed, all could be left to it unnoticed."""

    def refuse(*_: object, **__: object) -> None:
        raise CaptureError("no trace")

    with mock.patch.object(pipeline, "trace_joint", refuse):
        for kind, case in (("", first_case(name)), ("grad", first_with_gradients(name))):
            assert case is not None
            result = check(case)
            assert result.status == "eager" and treated(name, kind, result) is not None, result
        assert check_symbolic(first_case(name)).status == "eager"


@pytest.mark.parametrize("name", sorted(NOT_ON_CPU))
def test_is_refused_by_eager_as_well(name: str) -> None:
    assert check(first_case(name)).status == "refused"


@pytest.mark.parametrize("name", THROUGH_DYNAMO)
def test_agrees_with_eager_through_the_front_door(name: str) -> None:
    case = first_case(name)
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
