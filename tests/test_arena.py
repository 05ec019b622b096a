"""Memory, code and constants of programs: shared while they live, and given back with them."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.fx.graph_module import _loader

from litz.runtime.arena import ARENA, Arena
from litz.runtime.executable import Executable, Frame
from litz.runtime.link import Code


class Caller:
    """Asks the arena for memory, for as long as it exists."""


def test_one_arena_for_programs_that_take_turns() -> None:
    arena, caller = Arena(), Caller()
    arena.expect(caller, 1000)
    arena.expect(caller, 5000)
    forward = arena.take(1000)
    assert forward.size >= 1000 and forward.address % 64 == 0
    arena.give(forward)
    backward = arena.take(5000)
    assert arena.held == 0, "the smaller block made room for the larger"
    arena.give(backward)
    assert arena.take(800) is backward and arena.held == 0


def test_an_arena_for_each_program_that_runs_at_once() -> None:
    arena, caller = Arena(), Caller()
    arena.expect(caller, 1000)
    one, other = arena.take(1000), arena.take(1000)
    assert abs(one.address - other.address) >= 1000
    arena.give(one)
    arena.give(other)
    assert arena.take(900) in (one, other)
    arena.clear()
    assert arena.held == 0 and arena.take(0).memory is None


def test_blocks_leave_with_those_who_needed_them() -> None:
    arena = Arena()
    large, small = Caller(), Caller()
    arena.expect(large, 9000)
    arena.expect(small, 100)
    blocks = arena.take(9000), arena.take(100)
    for block in blocks:
        arena.give(block)
    assert arena.held == 9100
    del large
    assert arena.held == 100
    late = arena.take(100)
    del small
    assert arena.held == 0
    arena.give(late)
    assert arena.held == 0, "nobody is left who could use it"


def test_as_many_blocks_as_callers() -> None:
    arena = Arena()
    callers = [Caller() for _ in range(3)]
    for caller in callers:
        arena.expect(caller, 1000)
    blocks = [arena.take(1000) for _ in callers]
    for block in blocks:
        arena.give(block)
    callers.pop()
    del caller
    assert arena.held == 2000


def test_a_caller_may_die_while_the_arena_is_at_work() -> None:
    """The garbage collector runs where it likes: in the thread that holds the lock, too."""
    arena, kept, dying = Arena(), Caller(), Caller()
    arena.expect(kept, 500)
    arena.expect(dying, 5000)
    arena.give(arena.take(5000))
    block = arena.take(100)
    with arena._lock:
        del dying  # not waited for here
    arena.give(block)
    assert arena.held == 0


def test_threads_share_an_arena() -> None:
    arena = Arena()

    def work(seed: int) -> None:
        for step in range(200):
            caller, size = Caller(), 1000 * (1 + (seed + step) % 3)
            arena.expect(caller, size)
            block = arena.take(size)
            assert block.memory is not None and block.size >= size
            block.memory.fill_(seed)
            assert int(block.memory.min()) == int(block.memory.max()) == seed
            arena.give(block)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, seed) for seed in range(4)]:
            future.result()
    assert arena.held == 0


def test_the_arena_of_a_deleted_model_is_returned() -> None:
    torch._dynamo.reset()
    gc.collect()
    before = ARENA.held
    with torch.no_grad():
        x = torch.randn(512, 1024)
        compiled = torch.compile(lambda x: torch.softmax(x.t().contiguous() @ x, 1).cumsum(1).sin(), backend="litz")
        compiled(x)
        compiled(x)
    grown = ARENA.held
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert grown >= before + (1 << 20) and ARENA.held <= before


def living() -> list[Any]:
    return [x for x in gc.get_objects() if type(x) in (Code, Executable, Frame)]


def test_code_frames_and_constants_of_a_deleted_model_are_released() -> None:
    torch._dynamo.reset()
    gc.collect()
    before = {id(x) for x in living()}
    layer = torch.nn.Linear(16, 16)
    compiled = torch.compile(lambda x: (layer(x) + torch.arange(16.0)).tanh().sum(), backend="litz")
    compiled(torch.randn(4, 16)).backward()
    made = [weakref.ref(x) for x in living() if id(x) not in before]
    assert {type(x()) for x in made} == {Code, Executable, Frame}
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert not [x() for x in made if x() is not None]


def test_graphs_that_nobody_runs_leave_no_text_behind() -> None:
    """fx keeps the Python text of each graph for as long as the process lives."""
    layer = torch.nn.Linear(16, 16)

    def texts(backend: str) -> int:
        torch._dynamo.reset()
        before = len(_loader.eval_cache)
        torch.compile(lambda x: layer(x).tanh().sum(), backend=backend)(torch.randn(4, 16)).backward()
        return len(_loader.eval_cache) - before

    assert texts("litz") <= texts("eager")


@torch.library.custom_op("litz_tests::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    _KEPT.append(x)
    return x.clone()


@kept.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_KEPT: list[torch.Tensor] = []


def test_what_an_operator_of_others_keeps_is_its_own() -> None:
    """It may record what it is given, and memory of the arena is used again, and given back."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (kept((x * 2).sin()) + 1).cos().sum(0)

    _KEPT.clear()
    compiled = torch.compile(function, backend="litz")
    inputs = [torch.randn(64, 64) for _ in range(3)]
    for x in inputs:
        compiled(x)
    for x, seen in zip(inputs, _KEPT, strict=True):
        torch.testing.assert_close(seen, (x * 2).sin())
    _KEPT.clear()
