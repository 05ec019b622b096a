"""The benchmarks judge what they measured: slower, wrong, failed or missing is never a pass."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import figures, gpu_cold, lengths, minify, pareto
from benchmarks.models_more import bars, report
from benchmarks.sampling import Sampler

GOOD = {"eager": {"best_ms": 10.0, "error": 1e-6}, "litz": {"best_ms": 9.0, "error": 1.5e-6}, "control": {}}
TRAINED = {
    "eager": {"best_ms": 10.0},
    "litz": {"best_ms": 9.0, "quotient": 1.5},
    "control": {"quotient": 1.2, "best_ms": 10.0},
}


def changed(found: dict[str, Any], **litz: Any) -> dict[str, Any]:
    return {**found, "litz": {**found["litz"], **litz}}


def test_what_is_good_is_met() -> None:
    results = {"inference": {"a": GOOD}, "training": {"a": TRAINED}}
    assert [bar.met for bar in bars(results)] == [True] * 4
    assert "0.900" in report(results, "inference")


@pytest.mark.parametrize(
    "found",
    [
        changed(GOOD, best_ms=10.4),
        changed(GOOD, error=2.5e-6),
        changed(GOOD, error=math.nan),
        {"failed": "no result within 240 seconds"},
        {"eager": GOOD["eager"], "litz": {"failed": "AssertionError"}},
    ],
)
def test_what_is_bad_is_missed(found: dict[str, Any]) -> None:
    results = {"inference": {"good": GOOD, "bad": found}}
    assert False in [bar.met for bar in bars(results)]
    assert "bad" in report(results, "inference")


def test_a_gradient_may_be_as_far_off_as_luck_takes_eager() -> None:
    lucky = {**changed(TRAINED, quotient=5.0), "control": {"quotient": 4.0}}
    assert all(bar.met for bar in bars({"training": {"a": lucky}}))
    unlucky = {**changed(TRAINED, quotient=5.0), "control": {"quotient": 2.0}}
    assert False in [bar.met for bar in bars({"training": {"a": unlucky}})]


def over_lengths(compiles: int = 2, left: tuple[str, ...] = (), **late: Any) -> dict[str, Any]:
    """Ten lengths that are good, and one more, changed."""
    row = {"length": 64, "best": {"eager": 10.0, "litz": 9.0}, "first": {"eager": 10.0, "litz": 9.0}}
    row |= {"apart": 1e-7, "resident": 2**30}
    rows = [*[row] * lengths.SETTLED, {**row, "length": 77, **late}]
    return {"lengths": rows, "compiles": compiles, "why": ["training"], "left": list(left)}


def test_lengths_that_are_good_are_met() -> None:
    assert all(bar.met for bar in lengths.bars("llama", over_lengths()))
    assert "0.900" in lengths.report("llama", over_lengths())


@pytest.mark.parametrize(
    "found",
    [
        over_lengths(compiles=4),
        over_lengths(left=("no trace",)),
        over_lengths(best={"eager": 10.0, "litz": 10.1}),
        over_lengths(apart=1e-3),
        over_lengths(apart=math.nan),
        over_lengths(resident=2**30 + 2**26),
        {"failed": "no result within 900 seconds"},
    ],
)
def test_lengths_that_are_bad_are_missed(found: dict[str, Any]) -> None:
    assert False in [bar.met for bar in lengths.bars("llama", found)]
    assert "llama" in lengths.report("llama", found)


def test_readme_has_the_figures_measured_last() -> None:
    found, readme = figures.results(), figures.README.read_text()
    assert set(found) == set(figures.FILES)
    assert readme == figures.written(readme, found)
    assert figures.PICTURE.read_text() == figures.picture(found)


def test_figures_that_are_missing_are_dashes() -> None:
    assert "| - |" in figures.table({})
    assert "<svg" in figures.picture({})


def test_where_a_first_call_goes() -> None:
    litz = {"imports": 0.5, "first": 3.0, "stages": {"trace": 1.0, "build": 0.5, "split": 0.25}, "LLVM, kernels": 2.0}
    row = {"litz": litz, "inductor": {"imports": 0.5, "first": 13.5}, "kept": {**litz, "recalled": False}}
    text = gpu_cold.report({"bert, training": row, "gpt2": {**row, "inductor": {"failed": "out of memory"}}})
    assert "bert, training: 0.25 of inductor (bar 0.3)" in text and "gpt2: - of inductor" in text
    assert "out of memory" in text and "did not find all in the cache" in text
    assert "1.25" in text  # in no stage


def test_where_a_thread_was_seen() -> None:
    def waits() -> None:
        time.sleep(0.1)

    with Sampler() as sampler:
        waits()
    found = sampler.found()
    on_the_stack = {where.rpartition(" ")[2]: seconds for where, seconds in found["on the stack"]}
    assert 0.05 < on_the_stack["waits"] <= on_the_stack["test_where_a_thread_was_seen"]
    assert found["innermost lines"][0][0].endswith(" waits")
    litz = {"imports": 0.5, "first": 3.0, "stages": {}, "profile": found}
    assert "waits" in gpu_cold.report({"bert, inference": {"litz": litz}})


# -- planted faults ------------------------------------------------------------------------------------
SMALL = {"lines": 20, "nodes": 3, "calls": 1, "shows": True, "well without": True, "blamed": True, "seconds": 9.0}
BY_TORCH = {"lines": 60, "nodes": 5, "seconds": 30.0, "ended": True}


def found(**changes: Any) -> dict[str, Any]:
    """All faults found as well as can be, the first of them changed."""
    faults: dict[str, Any] = {name: {"litz": SMALL, "torch": BY_TORCH} for name in minify.FAULTS}
    first = next(iter(faults))
    faults[first] = {"litz": {**SMALL, **changes}, "torch": BY_TORCH}
    return {"faults": faults, "training": {"culprit": "a rule", "named": True, "file named": True}}


def test_faults_that_are_small_meet_every_bar() -> None:
    assert [bar.met for bar in minify.bars(found())] == [True] * 5
    assert "yes" in minify.report(found())


@pytest.mark.parametrize(
    "changes",
    [{"lines": 41}, {"shows": False}, {"well without": False}, {"blamed": False}, {"seconds": 31.0}, {"lines": 61}],
)
def test_a_fault_that_is_not_misses_one(changes: dict[str, Any]) -> None:
    assert False in [bar.met for bar in minify.bars(found(**changes))]


def test_a_fault_that_was_not_run_is_missed_and_one_that_failed_is() -> None:
    results = found()
    results["faults"].popitem()
    assert minify.bars(results)[0].met is False
    results = found()
    results["faults"][next(iter(minify.FAULTS))] = {"litz": {"failed": "no end"}}
    assert minify.bars(results)[0].met is False
    assert "-" in minify.report(results)
    assert minify.bars({**found(), "training": {"named": False, "file named": True}})[-1].met is False


# -- peaks against PyTorch's ----------------------------------------------------------------------
def at_peaks(least: int | None = 79, **last: Any) -> pareto.Found:
    """Eight peaks that are good, the lowest of which is 100, changed."""
    rows = [pareto.Row(0.1 * n, 100 + 10 * n, 1.0, 100 + 10 * n, 0.9) for n in range(8)]
    return pareto.Found((*rows[1:], replace(rows[0], **last)), least)


def test_peaks_that_are_good() -> None:
    assert pareto.judged(at_peaks()) == []
    assert "lowest peak" in pareto.table(at_peaks())


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (at_peaks(81), "0.81 of PyTorch's"),
        (at_peaks(None), "- of PyTorch's"),
        (at_peaks(litz_seconds=1.1), "at 0: 1.10 of PyTorch's time"),
        (at_peaks(litz_bytes=110), "110 bytes, more than 100"),
        (at_peaks(litz_seconds=None, litz_bytes=None, failed="cannot"), "at 0: cannot"),
        (pareto.Found(at_peaks().rows[2:], 79), "6 peaks were compared, not 8"),
        (pareto.Found((), None), "0 peaks"),
    ],
)
def test_peaks_that_are_bad(found: pareto.Found, says: str) -> None:
    assert any(says in text for text in pareto.judged(found))
    pareto.table(found)


def test_peaks_are_spread() -> None:
    peaks = {1.0: 1000, 0.9: 995, 0.5: 400, 0.4: 700, 0.1: 300, 0.0: 301}
    assert pareto.spread(peaks, 8) == [1.0, 0.4, 0.5, 0.0]
    assert pareto.spread(peaks, 2) == [1.0, 0.0]
