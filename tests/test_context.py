"""Context and Report: fuel, timings, records, and the latest report of the process."""

from __future__ import annotations

import dataclasses
import threading

import pytest

import litz
from litz.context import Built, Context, Report, last_report, set_last_report
from litz.options import Options
from litz.target import Target

TARGET = Target("x86_64", "avx2", "haswell", "+avx2,+fma", 32, 16, threads=2)


def context(**options: object) -> Context:
    return Context(Options.parse(options), TARGET)


def test_fuel_without_a_limit_never_ends() -> None:
    ctx = context()
    assert all(ctx.spend("fuse") for _ in range(1000))
    assert ctx.fuel is None


def test_fuel_is_spent_one_by_one() -> None:
    ctx = context(fuel=2)
    assert [ctx.spend(what) for what in ("a", "b", "c", "d")] == [True, True, False, False]
    report = ctx.report()
    assert (report.fuel_left, report.last_spent) == (0, "b")
    assert "last spent on: b" in str(report)
    assert not context(fuel=0).spend("a")


def test_timings_keep_order_add_up_and_survive_errors() -> None:
    ctx = context()
    with ctx.timed("lower"):
        pass
    with pytest.raises(ZeroDivisionError), ctx.timed("fuse"):
        1 / 0
    with ctx.timed("lower"):
        pass
    assert list(ctx.timings) == ["lower", "fuse"]
    assert all(seconds >= 0 for seconds in ctx.timings.values())


def test_snapshots_are_made_only_when_asked_for() -> None:
    def refuse() -> str:
        raise AssertionError("printed for nothing")

    silent = context()
    silent.snapshot("lower", refuse)
    assert silent.snapshots == []
    ctx = context(snapshots=True)
    ctx.snapshot("lower", lambda: "program")
    ctx.snapshot("fuse", "fused")
    assert ctx.snapshots == [("lower", "program"), ("fuse", "fused")]
    assert ctx.report().snapshot("fuse") == "fused"
    with pytest.raises(KeyError, match="lower, fuse"):
        ctx.report().snapshot("plan")


def test_firings_of_one_rule_are_counted_together() -> None:
    ctx = context()
    ctx.fired("drop_noop", "noop.py", 10)
    ctx.fired("fold", "constants.py", 20)
    ctx.fired("drop_noop", "noop.py", 10, count=2)
    assert ctx.firings == [("drop_noop", "noop.py", 10, 3), ("fold", "constants.py", 20, 1)]


def test_report_is_frozen_and_readable() -> None:
    ctx = context()
    ctx.fallback("aten.sort", "no lowering", "model.py:3: x.sort()")
    ctx.fired("fold", "constants.py", 20)
    ctx.note("left to eager")
    ctx.timings["lower"] = 0.25
    ctx.built.append(Built(3, 2, {"aten.sort": 1, "aten.addmm": 4}, 4096))
    report = ctx.report()
    ctx.note("too late")
    assert report.launches == 8
    assert report.notes == ("left to eager",)
    text = str(report)
    for part in (
        "haswell (avx2, 2 threads)",
        "250.0 ms",
        "3 launched a run, 2 built",
        "4,096 bytes",
        "aten.addmm × 4",
        "aten.sort: no lowering (model.py:3: x.sort())",
        "fold × 1 (constants.py:20)",
        "left to eager",
    ):
        assert part in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.kernels = 4  # type: ignore[misc]
    assert str(Report())


def test_last_report_is_the_latest_of_any_thread() -> None:
    first = Report(kernels=1)
    set_last_report(first)
    assert litz.last_report() is first
    reports = [Report(kernels=number) for number in range(8)]
    threads = [threading.Thread(target=set_last_report, args=(report,)) for report in reports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(last_report() is report for report in reports)
