"""Options: every field documented and checked, mistakes named, key entries complete."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import litz
from litz import options as options_module
from litz.errors import OptionError
from litz.options import Options, parse_bytes


def test_every_field_is_documented_and_checked() -> None:
    fields = dataclasses.fields(Options)
    assert {field.name for field in fields} == set(options_module._CHECKS)
    for field in fields:
        assert isinstance(field.metadata["changes_code"], bool)
        assert field.metadata["doc"]


def test_defaults_are_valid_and_frozen() -> None:
    options = Options.parse({})
    assert options == Options() == Options.parse(None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.freeze = True  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(Options())


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"fule": 3}, ["'fule'", "'fuel'"]),
        ({"memory_budgets": 0.5}, ["'memory_budgets'", "'memory_budget'"]),
        ({"qqqqqq": 1}, ["'qqqqqq'", "memory_budget", "matmul"]),
        ({3: 1}, ["3"]),
        ({"mode": "max-autotun"}, ["'max-autotune'", "'reduce-overhead'", "did you mean 'max-autotune'"]),
        ({"matmul": None}, ["'auto'", "'generate'", "'library'"]),
        ({"memory_budget": 1.5}, ["0 to 1"]),
        ({"memory_budget": -0.1}, ["0 to 1"]),
        ({"memory_budget": float("nan")}, ["0 to 1"]),
        ({"memory_budget": "six"}, ["6GiB"]),
        ({"memory_budget": "120%"}, ["80%"]),
        ({"memory_budget": -5}, ["0 to 1"]),
        ({"memory_budget": True}, ["0 to 1"]),
        ({"freeze": 1}, ["True, False or 'discard'"]),
        ({"never_slower": 1}, ["True, False or None"]),
        ({"fuel": -1}, ["at least 0"]),
        ({"fuel": True}, ["integer"]),
        ({"threads": 0}, ["at least 1"]),
        ({"budget_seconds": -1}, ["not negative"]),
        ({"cost": "profiled"}, ["'ceilings'", "did you mean 'profile'"]),
        ({"inner_compile": 7}, ["function"]),
        ({"decompositions": {"add": 7}}, ["mapping"]),
        ({"decompositions": {"add": len}}, ["torch.ops.aten.gelu.default"]),
        ({"decompositions": [1]}, ["mapping"]),
        ([("freeze", True)], ["mapping"]),
    ],
)
def test_a_mistake_names_what_is_accepted(values: dict, names: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse(values)
    assert isinstance(caught.value, ValueError)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"memory_budget": 0},
        {"memory_budget": 1.0},
        {"memory_budget": "6GiB"},
        {"memory_budget": "1.5 GB"},
        {"memory_budget": "80%"},
        {"memory_budget": 6 << 30},
        {"budget_solver": "greedy"},
        {"budget_seconds": 2.5},
        {"budget_seconds": None},
        {"recompute": "aggressive"},
        {"recompute": {"reductions": True}},
        {"fuel": 0},
        {"threads": 1},
        {"mode": "reduce-overhead"},
        {"matmul": "library"},
        {"never_slower": False},
        {"inner_compile": lambda graph, inputs: graph},
        {"decompositions": {torch.ops.aten.add.Tensor: lambda a, b: a + b}},
    ],
)
def test_accepted_values(values: dict) -> None:
    options = Options.parse(values)
    for name, value in values.items():
        assert getattr(options, name) == value


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(OptionError):
        Options(mode="fastest")


@given(st.integers(0, 2**20), st.sampled_from(["B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]))
def test_parse_bytes(count: int, unit: str) -> None:
    base = 1024 if "i" in unit else 1000
    power = " kmgt".index(unit[0].lower()) if len(unit) > 1 else 0
    assert parse_bytes(f"{count}{unit}") == count * base**power


@pytest.mark.parametrize("text", ["", "GiB", "6", "-1GiB", "6 XB", "6Gib", "1e3GB"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(OptionError):
        parse_bytes(text)


def test_cache_key_has_an_entry_for_each_field_that_changes_code() -> None:
    expected = {f"option.{field.name}" for field in dataclasses.fields(Options) if field.metadata["changes_code"]}
    assert set(Options().cache_key_entries()) == expected
    plain, frozen = Options().cache_key_entries(), Options(freeze=True).cache_key_entries()
    assert {name for name in plain if plain[name] != frozen[name]} == {"option.freeze"}
    assert Options(verify=True, snapshots=True, dump="folder").cache_key_entries() == plain


def test_functions_of_the_caller_are_not_cacheable() -> None:
    assert Options().cacheable
    assert not Options(inner_compile=print).cacheable
    assert not Options(decompositions={}).cacheable


def test_environment_sets_the_defaults_of_verify_and_dump_only() -> None:
    assert Options.from_environment(environ={"LITZ_DUMP": "folder"}) == Options(dump="folder")
    assert Options.from_environment({"dump": None}, environ={"LITZ_DUMP": "folder"}).dump is None
    assert Options.from_environment(environ={"LITZ_DUMP": ""}).dump is None
    assert Options.from_environment(environ={"LITZ_VERIFY": "1"}).verify
    assert not Options.from_environment(environ={"LITZ_VERIFY": "0"}).verify
    assert not Options.from_environment(environ={}).verify
    assert not Options.from_environment({"verify": False}, environ={"LITZ_VERIFY": "1"}).verify
    assert Options.from_environment({"freeze": True}, environ={"LITZ_VERIFY": "1"}) == Options(freeze=True, verify=True)


def test_compile_checks_options_at_the_call() -> None:
    with pytest.raises(litz.OptionError, match="did you mean 'freeze'"):
        litz.compile(lambda x: x, freze=True)
    with pytest.raises(litz.OptionError, match="did you mean 'freeze'"):
        litz.compile(freze=True)
