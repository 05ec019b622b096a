"""Compiled code against eager: whose turn it is, what the times say, and what becomes of it."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

import litz
from litz.capture import never_slower as guard
from litz.capture.never_slower import Racing, bytes_of_eager
from litz.capture.race import COMPILED, EAGER, MARGIN, MOST_CALLS, TURNS, WARM, Race, Verdict
from litz.context import Context
from litz.options import Options
from litz.report import Occasion
from litz.runtime.executable import Executable
from litz.target import detect
from tests.graph.test_trials import Kept


# -- the race alone -----------------------------------------------------------------------------------
def run(compiled: Callable[[], float], eager: Callable[[], float]) -> tuple[Race, list[str]]:
    race, ran = Race(), []
    for _ in range(2 * MOST_CALLS):
        if race.verdict is not None:
            break
        runner, counts = race.next(())
        ran.append(runner)
        if counts:
            race.took((), runner, (compiled if runner == COMPILED else eager)())
    return race, ran


def test_the_first_calls_are_compiled_and_then_they_take_turns() -> None:
    _, ran = run(lambda: 1.0, lambda: 1.0)
    assert ran[:WARM] == [COMPILED] * WARM
    # One call of eager's counts for nothing.
    assert ran[WARM:] == [COMPILED, EAGER, EAGER, *[COMPILED, EAGER] * (TURNS - 1)]


def test_the_faster_wins() -> None:
    assert run(lambda: 1.0, lambda: 0.9)[0].verdict == Verdict(EAGER, 1.0, 0.9)
    assert run(lambda: 0.9, lambda: 1.0)[0].verdict == Verdict(COMPILED, 0.9, 1.0)
    assert run(lambda: MARGIN, lambda: 1.0)[0].verdict == Verdict(COMPILED, MARGIN, 1.0)  # by chance, perhaps


def test_one_turn_is_enough_where_eager_is_slower_by_far() -> None:
    race, ran = run(lambda: 1.0, lambda: 2.0)
    assert race.verdict == Verdict(COMPILED, 1.0, 2.0)
    assert ran.count(EAGER) == 2
    assert run(lambda: 2.0, lambda: 1.0)[1].count(EAGER) == TURNS + 1


@given(st.lists(st.floats(1, 1.5), min_size=20, max_size=20), st.booleans())
def test_a_slow_call_now_and_then_decides_nothing(noise: list[float], eager_wins: bool) -> None:
    times = iter(noise)
    some = [0]

    def noisy(best: float) -> Callable[[], float]:
        def took() -> float:
            some[0] += 1
            return best if some[0] % 4 in (0, 3) else best * next(times)

        return took

    race, _ = run(noisy(1.2 if eager_wins else 1.0), noisy(1.0 if eager_wins else 1.2))
    assert race.verdict is not None and race.verdict.winner == (EAGER if eager_wins else COMPILED)


def test_calls_of_different_sizes_are_not_compared() -> None:
    race = Race()
    for call in range(MOST_CALLS):
        runner, _ = race.next(call)
        assert runner == COMPILED
    assert race.verdict is None
    race.next(0)
    assert race.verdict == Verdict(COMPILED) and "compared" in str(race.verdict)


def test_sizes_that_come_again_are() -> None:
    race, took = Race(), {(COMPILED, 8): 2.0, (EAGER, 8): 1.0, (COMPILED, 9): 4.0, (EAGER, 9): 3.0}
    for call in range(MOST_CALLS):
        sizes = 8 + call % 2
        runner, counts = race.next(sizes)
        if counts:
            race.took(sizes, runner, took[runner, sizes])
        if race.verdict is not None:
            break
    assert race.verdict is not None and race.verdict.winner == EAGER


def test_a_forward_is_not_compared_with_a_whole_step() -> None:
    race = Race()
    for _ in range(TURNS):
        race.took((), COMPILED, 3.0, parts=2)
        race.took((), EAGER, 1.0, parts=1)
    assert race.verdict is None
    for _ in range(TURNS):
        race.took((), EAGER, 4.0, parts=2)
    assert race.verdict == Verdict(COMPILED, 3.0, 4.0)


# -- functions, by a clock that they themselves turn ------------------------------------------------
class Turned:
    """A clock. What it showed is known only later, as on a device."""

    def __init__(self) -> None:
        self.now, self.usable, self.late = 0.0, True, 0

    def mark(self) -> float:
        return self.now

    def milliseconds(self, begin: float, end: float) -> float | None:
        self.late += 1
        return None if self.late % 3 == 1 else end - begin

    def may_be_used(self) -> bool:
        return self.usable


class Contest:
    """A function of x and w, and one that claims to be its compiled form; each takes its time."""

    def __init__(self, compiled: float, eager: float, training: bool = False, backward: float = 0.0, **about: Any):
        self.clock, self.ran = Turned(), []
        self.ctx = Context(Options(), detect(1), about.get("cache"), occasion=Occasion(training=training))
        self.ctx.key = about.get("key")
        graph = fx.symbolic_trace(lambda x, w: (torch.tanh(x * w),))
        run_graph = graph.forward

        def taking(name: str, forward: float, back: float) -> Callable[..., Any]:
            def run(x: torch.Tensor, w: torch.Tensor) -> Any:
                self.ran.append(name)
                (out,) = run_graph(_Takes.apply(x, self, back) if training else x, w)
                self.clock.now += forward
                return (out,)

            return run

        graph.forward = taking(EAGER, eager, 0.0)
        given = [torch.ones(3), torch.ones(3)]
        self.racing = Racing(taking(COMPILED, compiled, backward), graph.forward, given, self.ctx, self.clock)

    def step(self, backward: bool = False) -> None:
        x, w = torch.ones(3, requires_grad=backward), torch.full((3,), 2.0, requires_grad=backward)
        (out,) = self.racing(x, w)
        torch.testing.assert_close(out, torch.tanh(torch.full((3,), 2.0)))
        if backward:
            out.sum().backward()
            torch.testing.assert_close(x.grad, 2 * (1 - out.detach() ** 2))


class _Takes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, contest: Contest, back: float) -> torch.Tensor:
        ctx.contest, ctx.back = contest, back
        return x.clone()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        ctx.contest.clock.now += ctx.back
        return tangent, None, None


def test_what_is_slower_is_left_to_eager_and_said() -> None:
    contest = Contest(compiled=2.0, eager=1.0)
    compiled = weakref.ref(contest.racing.compiled)
    with pytest.warns(UserWarning, match="left to eager: timed against eager"):
        for _ in range(20):
            contest.step()
    assert contest.ran[-5:] == [EAGER] * 5
    left = contest.ctx.report().left_to_eager
    assert left is not None and "2.000 ms" in left and "1.000" in left
    assert compiled() is None  # nor does anyone keep the memory of its captured calls


def test_what_is_faster_is_kept_and_said() -> None:
    contest = Contest(compiled=1.0, eager=1.2)
    for _ in range(20):
        contest.step()
    assert contest.ran[-5:] == [COMPILED] * 5 and contest.ran.count(EAGER) == TURNS + 1
    assert contest.ctx.report().left_to_eager is None
    assert any("1.000 ms a call compiled, 1.200 in eager" in note for note in contest.ctx.notes)


def test_each_call_is_run_once() -> None:
    contest = Contest(compiled=1.0, eager=1.0)
    for _ in range(30):
        contest.step()
    assert len(contest.ran) == 30


@pytest.mark.parametrize(("backward", "winner"), [(0.0, COMPILED), (5.0, EAGER)])
def test_of_a_training_step_the_backward_counts(backward: float, winner: str) -> None:
    contest = Contest(compiled=1.0, eager=2.0, training=True, backward=backward)
    for _ in range(25):
        contest.step(backward=True)
    assert contest.ran[-5:] == [winner] * 5


def test_forwards_alone_are_compared_where_no_backward_comes() -> None:
    contest = Contest(compiled=2.0, eager=1.0, training=True, backward=5.0)
    for _ in range(40):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3)
        contest.racing(x, w)
    assert contest.ran[-5:] == [EAGER] * 5


def test_hooks_are_gone_afterwards() -> None:
    contest = Contest(compiled=1.0, eager=1.2, training=True)
    w = torch.ones(3, requires_grad=True)
    for _ in range(25):
        (out,) = contest.racing(torch.ones(3, requires_grad=True), w)
        out.sum().backward()
    assert contest.ran[-1] == COMPILED and not contest.racing._pending
    node = torch.autograd.graph.get_gradient_edge(w).node
    del out
    gc.collect()
    calls = contest.clock.late
    node.register_prehook(lambda gradients: None).remove()
    (w * 2).sum().backward()
    assert contest.clock.late == calls


def test_nothing_is_timed_while_the_device_records() -> None:
    contest = Contest(compiled=2.0, eager=1.0)
    contest.clock.usable = False
    for _ in range(30):
        contest.step()
    assert contest.ran == [COMPILED] * 30
    contest.clock.usable = True
    for _ in range(20):
        contest.step()
    assert contest.ran[-1] == EAGER


def test_eager_is_not_run_where_it_might_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Racing, "_has_room", lambda self: False)
    contest = Contest(compiled=2.0, eager=1.0)
    for _ in range(20):
        contest.step()
    assert EAGER not in contest.ran
    assert any("more memory than there is" in note for note in contest.ctx.notes)


def test_another_process_knows() -> None:
    cache = Kept()
    contest = Contest(compiled=2.0, eager=1.0, cache=cache, key="k")
    for _ in range(20):
        contest.step()
    ctx = Context(Options(never_slower=True), detect(1), cache, "k")
    own = fx.symbolic_trace(lambda x: x + 1).forward
    with pytest.warns(UserWarning, match="as found earlier"):
        settled = guard.never_slower(lambda x: "compiled", own, [torch.ones(2)], ctx)
    assert settled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert ctx.left_to_eager is not None and "as found earlier" in ctx.left_to_eager
    other = Context(Options(never_slower=True), detect(1), cache, "another")
    assert isinstance(guard.never_slower(lambda x: x, own, [torch.ones(2)], other), Racing)


def test_what_is_not_raced() -> None:
    compiled, own = (lambda x: x), fx.symbolic_trace(lambda x: x + 1).forward
    for options in (Options(), Options(never_slower=False), Options(never_slower=True, verify=True),
                    Options(never_slower=True, fuel=3)):  # fmt: skip
        assert guard.never_slower(compiled, own, [torch.ones(2)], Context(options, detect(1))) is compiled
    torch.use_deterministic_algorithms(True)
    try:
        ctx = Context(Options(never_slower=True), detect(1))
        assert guard.never_slower(compiled, own, [torch.ones(2)], ctx) is compiled
        assert "same each time" in ctx.notes[0]
    finally:
        torch.use_deterministic_algorithms(False)


# -- memory, and the whole -----------------------------------------------------------------------------
def test_what_eager_needs() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.exp, (x,))
    b = graph.call_function(torch.exp, (a,))
    c = graph.call_function(torch.exp, (b,))
    graph.output((c,))
    for node in (x, a, b, c):
        node.meta["example_value"] = torch.empty(100)
    module = fx.GraphModule(torch.nn.Module(), graph)
    assert bytes_of_eager(module.forward, training=True) == 1200
    assert bytes_of_eager(module.forward, training=False) == 800


@pytest.mark.parametrize("training", [False, True])
def test_a_program_that_is_slow_on_purpose(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: Executable, *args: Any) -> Any:
        time.sleep(0.002)
        return call(self, *args)

    call = Executable._call
    monkeypatch.setattr(Executable, "_call", slow)
    counter = torch.zeros(1)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return (torch.dropout(x * w, 0.5, True) + counter).sum()

    torch._dynamo.reset()
    compiled = litz.compile(function, never_slower=True)
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=training)
    results = []
    for run_it in (compiled, function):
        torch.manual_seed(0)
        counter.zero_()
        w.grad = None
        found = []
        for _ in range(25):
            out = run_it(x, w)
            if training:
                out.backward()
            found.append(out.detach())
        results.append([torch.stack(found), counter.clone(), *([w.grad] if training else [])])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)
    reasons = [report.left_to_eager for report in litz.reports() if report.left_to_eager]
    assert "timed against eager on its first calls" in reasons[-1]
