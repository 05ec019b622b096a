"""Captured calls give what calls give, whatever the user does with arguments and results; CPU programs, on a tape."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz
from litz.codegen.plan import Native
from litz.ops import lower
from litz.runtime import executable, graphs
from litz.runtime.captures import ASKED_FOR, Time
from tests.graphs.tape import Tape, install


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tape]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield install(monkeypatch)
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], mode: str = "reduce-overhead", **options: Any) -> Callable[..., Any]:
    return litz.compile(function, mode=mode, **options)


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def told() -> str:
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    return "\n".join(report.graphs)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1) + x.sum()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16))


# -- arguments and results --------------------------------------------------------------------------
def test_results_are_the_users_own(tape: Tape) -> None:
    run, w = compiled(mixed), torch.randn(8, 8)
    given = [torch.randn(4, 8) for _ in range(6)]
    kept = [run(x, w) for x in given]
    assert (tape.recorded, tape.replays) == (1, 5)
    for x, found in zip(given, kept, strict=True):
        same(found, mixed(x, w))
    assert "forward: captured; at each call 1 arguments (128 bytes) are copied in, and 1 results" in told()
    assert "CUDA graphs:" in str(litz.last_report())


def test_an_argument_that_stays_is_read_where_it_lies(tape: Tape) -> None:
    run, x, w = compiled(mixed), torch.randn(4, 8), torch.randn(8, 8)
    for _ in range(5):
        same(run(x, w), mixed(x, w))
        x.add_(0.5)
        w.mul_(1.25)
    assert (tape.recorded, tape.replays) == (1, 4)
    assert "0 arguments (0 bytes) are copied in" in told()


def test_an_argument_that_moves_is_copied(tape: Tape) -> None:
    run, x, w = compiled(mixed), torch.randn(4, 8), torch.randn(8, 8)
    kept = [x]
    for _ in range(8):
        same(run(kept[-1], w), mixed(kept[-1], w))
        if tape.recorded:
            kept.append(torch.randn(4, 8))
    assert tape.recorded == 2 and tape.replays == 6


def test_parameters_that_move_mean_another_capture(tape: Tape) -> None:
    run, x = compiled(mixed), torch.randn(4, 1025)
    for w in (torch.randn(1025, 1025), torch.randn(1025, 1025)):
        for _ in range(3):
            same(run(x, w), mixed(x, w))
    assert (tape.recorded, tape.replays) == (2, 4)


def test_expanded_arguments_and_ones_with_gaps(tape: Tape) -> None:
    function = lambda x, y: (x * 2 + y).tanh()  # noqa: E731
    run = compiled(function)
    wide, row = torch.randn(4, 16), torch.randn(1, 8)
    for _ in range(6):
        x, y = wide[:, :8], row.expand(4, 8)
        same(run(x, y), function(x, y))
        wide, row = torch.randn(4, 16), torch.randn(1, 8)
    assert tape.replays >= 4


def test_results_that_are_arguments_parts_and_numbers(tape: Tape) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x.exp() + 1
        return x, y, y[1:], x.view(-1), 7, y.sum()

    run = compiled(function)
    for _ in range(5):
        x = torch.randn(4, 8)
        found, wanted = run(x), function(x)
        same(found, wanted)
        assert found[0] is x and found[3].data_ptr() == x.data_ptr()
        assert found[2].data_ptr() == found[1].data_ptr() + 32
    assert tape.replays == 4


@pytest.mark.parametrize("moves", [False, True])
def test_arguments_that_are_written_to(tape: Tape, moves: bool) -> None:
    def function(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:2] = x
        cache.mul_(2)
        return cache.sum() + x

    run = compiled(function)
    mine, theirs, held = torch.randn(4, 8), torch.empty(0), []
    theirs = mine.clone()
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(2, 8)
            same(run(mine, x), function(theirs, x))
            same(mine, theirs)
            if moves:
                held.append(mine)
                mine = mine.clone()
    assert tape.replays >= 4


def test_versions_count_as_the_users_writes_do(tape: Tape) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.data.mul_(2)
        return x + y

    run = compiled(function)
    for _ in range(5):
        x, y = torch.randn(8), torch.randn(8)
        versions = x._version, y._version
        run(x, y)
        eager = torch.randn(8), torch.randn(8)
        before = eager[0]._version, eager[1]._version
        function(*eager)
        assert (x._version - versions[0], y._version - versions[1]) == (
            eager[0]._version - before[0], eager[1]._version - before[1],
        )  # fmt: skip
    assert tape.replays


def test_buffers_of_batch_norm(tape: Tape) -> None:
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    theirs, run = copy.deepcopy(mine), compiled(mine)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 3, 8, 8)
            same(run(x), theirs(x))
    same(dict(mine.named_buffers()), dict(theirs.named_buffers()))
    assert tape.replays


# -- sizes, numbers, modes, streams, threads --------------------------------------------------------
def test_sizes_have_captures_of_their_own(tape: Tape) -> None:
    run = compiled(lambda x: torch.softmax(x, -1) * x.shape[0], dynamic=True)
    for _ in range(4):
        for rows in (3, 5, 9):
            x = torch.randn(rows, 8)
            same(run(x), torch.softmax(x, -1) * rows)
    assert 3 <= tape.recorded <= 6 and tape.replays >= 6


def test_too_many_sizes_are_not_captured(tape: Tape) -> None:
    run = compiled(lambda x: torch.softmax(x, -1) * 2, dynamic=True)
    for rows in range(3, 60):
        for _ in range(3):
            x = torch.randn(rows, 8)
            same(run(x), torch.softmax(x, -1) * 2)
    assert tape.recorded == ASKED_FOR.most
    assert "not captured any more: 16 captures were made" in told()


def test_numbers_are_part_of_the_key(tape: Tape) -> None:
    run, x = compiled(lambda x, scale: x * (3 * scale)), torch.randn(64)
    run(x, 0.5)
    for scale in (1.5, 0.0, -0.0, 3.0) * 4:
        found, wanted = run(x, scale), x * (3 * scale)
        same(found, wanted)
        assert torch.equal(torch.signbit(found), torch.signbit(wanted))
    assert 4 <= tape.recorded <= 8 and tape.replays >= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_numbers_of_the_host_are_part_of_the_key(
    tape: Tape, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """As beside tensors of a GPU: they are burnt into what is captured, wherever they lie."""
    monkeypatch.setattr(
        lower, "_numbers_of_host",
        lambda module: {n for n in module.graph.nodes if n.op == "placeholder" and n.meta["val"].dim() == 0},
    )  # fmt: skip
    step = lambda x, scale: (x * scale).sin() * scale  # noqa: E731
    run, cell = compiled(step), torch.zeros(3, dtype=dtype)
    for number in (1, 0, 3, 2**53, 2**53 + 1) * 4:
        x = torch.randn(64, dtype=torch.float64, requires_grad=True)
        scale = cell[1].fill_(number)  # in the same place, and not at a multiple of 16 bytes
        results = []
        for function in (run, step):
            out = function(x, scale)
            results.append((out.detach(), *torch.autograd.grad(out.sum(), x)))
        same(*results)
    assert tape.recorded >= 8 and tape.replays >= 8


def test_modes_of_the_caller(tape: Tape) -> None:
    run, w = compiled(mixed), torch.randn(8, 8)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad) * 3:
        x = torch.randn(4, 8)
        with mode():
            found = run(x, w)
            assert found.is_inference() == (mode is torch.inference_mode)
        same(found.clone(), mixed(x, w))
        assert not found.requires_grad
    assert tape.replays >= 3


def test_a_stream_has_captures_of_its_own(tape: Tape) -> None:
    run, w = compiled(mixed), torch.randn(8, 8)
    for stream in (0, 0, 0, 7, 7, 7, 0, 7):
        tape.now = stream
        x = torch.randn(4, 8)
        same(run(x, w), mixed(x, w))
    assert (tape.recorded, tape.replays) == (2, 6) and tape.pools.keys() == {0, 7}


def test_a_user_who_is_capturing_is_left_alone(tape: Tape) -> None:
    run, x, w = compiled(mixed), torch.randn(4, 8), torch.randn(8, 8)
    for capturing in (False, False, True, True, False):
        tape.capturing, before = capturing, tape.replays
        same(run(x, w), mixed(x, w))
        assert not capturing or tape.replays == before
    assert tape.replays == 2


def test_threads(tape: Tape) -> None:
    run, w = compiled(mixed), torch.randn(8, 8)
    for _ in range(3):
        run(torch.randn(4, 8), w)
    wrong = []

    def work() -> None:
        for _ in range(50):
            x = torch.randn(4, 8)
            found = run(x, w)
            if not torch.allclose(found, mixed(x, w), rtol=1e-4, atol=1e-5):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and tape.replays > 2


# -- training ---------------------------------------------------------------------------------------
def step(run: Callable[..., Any], module: nn.Module, x: torch.Tensor, times: int = 1) -> list[torch.Tensor]:
    for _ in range(times):
        run(x).square().mean().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def test_training(tape: Tape) -> None:
    mine = model()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (mine, theirs)]
    replays, kept = [], []
    for _ in range(12):
        kept.append(x := torch.randn(8, 16))
        for optimizer in optimizers:
            optimizer.zero_grad()
        same(step(run, mine, x), step(theirs, theirs, x))
        for optimizer in optimizers:
            optimizer.step()
        replays.append(tape.replays)
    assert replays[-1] - replays[-5] == 8, "a forward and a backward at each step"
    assert "forward: captured" in told() and "backward: captured" in told()


def test_gradients_that_are_kept_are_not_written_over(tape: Tape) -> None:
    mine = model()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    for _ in range(4):
        x = torch.randn(8, 16)
        same(step(run, mine, x, times=2), step(theirs, theirs, x, times=2))  # added up
    kept, wanted = [], []
    for _ in range(4):
        x = torch.randn(8, 16, requires_grad=True)
        kept.append(torch.autograd.grad(run(x).sin().sum(), [x, *mine.parameters()]))
        wanted.append(torch.autograd.grad(theirs(x).sin().sum(), [x, *theirs.parameters()]))
    same(kept, wanted)


def test_several_forwards_before_their_backwards(tape: Tape) -> None:
    mine = model()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    for _ in range(8):
        given = [torch.randn(8, 16) for _ in range(3)]
        grads = []
        for call, module in ((run, mine), (theirs, theirs)):
            module.zero_grad()
            losses = [call(x).square().mean() for x in given]
            losses[1].backward(retain_graph=True)
            (losses[0] + losses[2] + losses[1]).backward()
            grads.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        same(*grads)
    assert tape.recorded >= 4, "as many forwards as are in use at a time"


def test_a_graph_that_is_never_run_backwards(tape: Tape) -> None:
    mine = model()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    kept = [(x, run(x)) for x in torch.randn(6, 8, 16).unbind()]
    for x, found in kept:
        same(found, theirs(x))
    for x, found in kept[::-1]:
        (got,) = torch.autograd.grad(found.sum(), [mine[0].weight], retain_graph=True)
        (want,) = torch.autograd.grad(theirs(x).sum(), [theirs[0].weight])
        same(got, want)


def test_hooks_on_saved_tensors_see_tensors_of_their_own(tape: Tape) -> None:
    mine = model()
    run = compiled(mine)
    step(run, mine, torch.randn(8, 16), times=3)
    held: list[torch.Tensor] = []
    before = tape.replays
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        loss = run(torch.randn(8, 16)).sum()
    assert held and tape.replays == before
    copies = [t.clone() for t in held]
    step(run, mine, torch.randn(8, 16), times=2)
    same(held, copies)
    loss.backward()


def test_batch_norm_in_training(tape: Tape) -> None:
    mine = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    theirs, run = copy.deepcopy(mine), compiled(mine)
    for _ in range(6):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        for call, module in ((run, mine), (theirs, theirs)):
            module.zero_grad()
            F.cross_entropy(call(x), y).backward()
        same([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
        same(dict(mine.named_buffers()), dict(theirs.named_buffers()))
    assert tape.replays


class Words(nn.Module):
    """With operators that are called as they are, between stretches of native code."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(11, 16), nn.Linear(16, 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words).cumsum(1)
        x = x + torch.sort(x, -1)[0]
        return F.cross_entropy(self.last(x).flatten(0, 1), words.flatten())


def test_operators_between_native_stretches(tape: Tape) -> None:
    mine = Words()
    theirs, run = copy.deepcopy(mine), compiled(mine)
    for _ in range(6):
        words = torch.randint(0, 11, (3, 5))
        for call, module in ((run, mine), (theirs, theirs)):
            module.zero_grad()
            call(words).backward()
        same([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
    assert tape.replays >= 6 and litz.last_report().calls


# -- what goes wrong --------------------------------------------------------------------------------
def test_a_capture_that_fails_leaves_the_program_running(tape: Tape) -> None:
    run, w = compiled(mixed), torch.randn(8, 8)
    tape.fails = torch.OutOfMemoryError("out of memory\nand a page of figures")
    for _ in range(5):
        x = torch.randn(4, 8)
        same(run(x, w), mixed(x, w))
    assert tape.recorded == 0 and told() == "forward: not captured: OutOfMemoryError: out of memory"


def test_a_device_that_captures_nothing(tape: Tape) -> None:
    run, x, w = compiled(mixed), torch.randn(4, 8), torch.randn(8, 8)
    tape.why_not = "another allocator"
    for _ in range(4):
        same(run(x, w), mixed(x, w))
    assert tape.recorded == 0 and told() == "forward: not captured: another allocator"


def test_another_thread_that_captures_is_waited_for(tape: Tape) -> None:
    run, x, w = compiled(mixed), torch.randn(4, 8), torch.randn(8, 8)
    tape.busy = True
    for _ in range(4):
        same(run(x, w), mixed(x, w))
    tape.busy = False
    same(run(x, w), mixed(x, w))
    assert tape.recorded == 1


def test_programs_that_cannot_be_captured_say_why(tape: Tape) -> None:
    run = compiled(lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(8)).sum())
    for _ in range(4):
        run(torch.randn(8, 8))
    assert tape.recorded == 0 and "linalg_cholesky_ex waits for the device" in told()


def test_never(tape: Tape) -> None:
    run, x, w = compiled(mixed, mode="max-autotune-no-cudagraphs"), torch.randn(4, 8), torch.randn(8, 8)
    for _ in range(4):
        same(run(x, w), mixed(x, w))
    assert tape.recorded == 0 and told() == ""


@pytest.mark.parametrize(
    ("without", "within", "said"),
    [
        (Time(1e-3, 5e-3), None, "forward: not captured: the device is at work for 5 ms a call"),
        (Time(1e-3, 1e-3), Time(1e-4, 2e-4), "forward: captured; at each call 1 arguments"),
        (Time(1e-3, 1e-3), Time(1e-4, 2e-3), "forward: not captured any more: a call takes 2 ms with its capture"),
    ],
)
def test_by_default_where_it_pays(tape: Tape, without: Time, within: Time | None, said: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.softmax(x @ w, -1)
        return x

    tape.times = lambda: within if tape.recorded else without
    run, w = compiled(function, mode="default"), torch.randn(8, 8)
    for _ in range(12):
        x = torch.randn(4, 8)
        same(run(x, w), function(x, w))
    assert said in told() and tape.recorded == (within is not None)


# -- ownership --------------------------------------------------------------------------------------
def test_captures_die_with_their_program(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[weakref.ref] = []
    init = graphs.Captured.__init__
    monkeypatch.setattr(
        graphs.Captured, "__init__", lambda self, *args: (init(self, *args), captured.append(weakref.ref(self)))[0]
    )
    mine = model()
    run = compiled(mine)
    step(run, mine, torch.randn(8, 16), times=4)
    assert len(captured) >= 2 and tape.pools[0].lent
    found = run(torch.randn(8, 16))
    wanted = torch.autograd.grad(found.sum(), [mine[0].weight], retain_graph=True)
    del run
    torch._dynamo.reset()
    gc.collect()
    assert captured[0]() is not None, "its loans are in use"
    same(torch.autograd.grad(found.sum(), [mine[0].weight]), wanted)
    del found
    gc.collect()
    assert not any(ref() for ref in captured) and not tape.pools[0].lent


def test_what_the_host_makes_is_made_before_each_replay(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few numbers that an operator gives, and kernels read."""
    drawn: list[float] = []

    def numbers(count: int, *, device: torch.device) -> torch.Tensor:
        if device.type == "meta":
            return torch.empty(count, device=device)
        drawn.append(len(drawn) + 1.0)
        return torch.full((count,), drawn[-1])

    library = torch.library.Library("litz", "FRAGMENT")
    library.define("counted(SymInt count, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("counted", numbers, "CompositeExplicitAutograd")
    monkeypatch.setattr(graphs, "BEFORE_REPLAYS", frozenset(("litz::counted",)))
    counted = torch.ops.litz.counted.default
    cell = lambda x: counted(8, device=x.device)  # noqa: E731
    run = compiled(lambda x: (x + 1).exp() * cell(x) + cell(x))
    x = torch.randn(4, 8)
    for call in range(5):
        same(run(x), (x + 1).exp() * (2 * call + 1) + (2 * call + 2))
    assert drawn == [float(n) for n in range(1, 11)], "once a call, in order"
    assert tape.replays == 4


def test_a_program_has_native_stretches(tape: Tape) -> None:
    """The tape records those alone; were there none, these tests would show nothing."""
    made: list[Any] = []
    kept = executable.Executable._bind
    executable.Executable._bind = lambda self, item: (made.append(item), kept(self, item))[1]  # type: ignore
    try:
        compiled(mixed)(torch.randn(4, 8), torch.randn(8, 8))
    finally:
        executable.Executable._bind = kept  # type: ignore[method-assign]
    assert made and all(isinstance(item.run, Native) for item in made)
