"""Context and Report: fuel, timings, records, and the latest report of the process."""

from __future__ import annotations

import dataclasses
import threading
import warnings

import pytest
import torch

import litz
from litz.capture import leave
from litz.context import Context
from litz.options import Options
from litz.report import HISTORY, Built, History, Report
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
    ctx.built.append(Built("forward", 3, 2, {"aten.sort": 1, "aten.addmm": 4}, 4096))
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


def test_the_history_keeps_the_latest_in_the_order_of_compiles() -> None:
    history = History(most=4)
    assert history.latest is None and history.all() == ()
    for number in range(6):
        history.keep(number, Report(kernels=number))
    again = Report(kernels=30)
    history.keep(3, again)
    assert [report.kernels for report in history.all()] == [2, 30, 4, 5] and history.latest is again
    mark = history.mark()
    history.keep(4, Report())  # of a compile that had begun
    assert history.since(mark) == ()
    for number in range(6, 9):
        history.keep(number, Report(kernels=number))
    assert [report.kernels for report in history.since(mark)] == [6, 7, 8]
    history.clear()
    assert history.latest is None


def test_the_history_takes_reports_from_any_thread() -> None:
    history = History()
    reports = [Report(kernels=number) for number in range(8)]
    threads = [threading.Thread(target=history.keep, args=(i, report)) for i, report in enumerate(reports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(report) for report in history.all()} == {id(report) for report in reports}


def test_every_compile_of_the_process_has_a_report_that_says_what_it_is_and_why() -> None:
    HISTORY.clear()
    torch._dynamo.reset()
    weight = torch.randn(4, 4, requires_grad=True)

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = (x @ weight).sin()
        torch._dynamo.graph_break()
        return y.cos()

    compiled = torch.compile(broken, backend="litz")
    compiled(torch.randn(3, 4)).sum().backward()
    first = litz.reports()
    assert len(first) == 2
    assert all(r.occasion.training and r.occasion.why == "the first call" for r in first)
    assert [{b.part for b in r.built} for r in first] == [{"forward", "backward"}] * 2
    assert all("test_context.py" in (r.occasion.source or "") for r in first)
    with torch.no_grad():
        compiled(torch.randn(5, 4))
    later = litz.reports()[2:]
    assert later and not any(r.occasion.training for r in later)
    assert all(r.occasion.why != "the first call" for r in later)
    assert "inference, forward of" in later[0].title and later[0].occasion.why in str(later[0])


def test_what_is_left_to_eager_names_the_line_of_the_user() -> None:
    torch._dynamo.reset()
    leave._warned.clear()

    def refused(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3, device="meta") + x.sin()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.compile(refused, backend="litz")(torch.ones(3, device="meta"))
    (said,) = [w for w in seen if "left to eager" in str(w.message)]
    assert said.filename == __file__
    report = litz.last_report()
    assert report is not None and report.left_to_eager is not None and "meta" in report.left_to_eager


def test_options_without_effect_say_so() -> None:
    (said,) = Options(mode="max-autotune").without_effect()
    assert "mode='max-autotune'" in said
    assert Options().without_effect() == Options(mode="reduce-overhead").without_effect() == []
    leave._warned.clear()
    with pytest.warns(UserWarning, match="mode='max-autotune' has no effect yet"):
        litz.compile(lambda x: x + 1, mode="max-autotune")(torch.ones(2))
