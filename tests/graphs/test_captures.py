"""When calls are captured, and which capture answers a call: the rules alone, with captures that do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litz.options import MODES
from litz.runtime.captures import ASKED_FOR, WHERE_IT_PAYS, Captures, Entry, Policy, Time, policy_for

LARGE = 1 << 30


@dataclass
class Nothing:
    busy: bool = False


class Program:
    """Calls, by the rules; `sizes`: bytes of each argument."""

    def __init__(self, policy: Policy = ASKED_FOR, sizes: int | Sequence[int] = 16):
        self.said: list[str] = []
        self.captures = Captures(policy, self.said.append)
        self.sizes = sizes
        self.made: list[Entry] = []

    def call(self, *addresses: int, key: object = 0, thread: int = 1) -> Entry | None:
        """The capture that answers, old or new."""
        found = self.captures.find(key, addresses)
        if found is not None:
            return found
        size = lambda place: self.sizes if isinstance(self.sizes, int) else self.sizes[place]  # noqa: E731
        fixed = self.captures.notice(key, addresses, size, thread)
        if fixed is None:
            return None
        self.made.append(self.captures.add(key, fixed, addresses, Nothing()))
        return self.made[-1]

    def timed_call(self, *addresses: int, without: Time, within: Time | None = None) -> Entry | None:
        entry = self.call(*addresses)
        if self.captures.is_timed(0, entry):
            self.captures.timed(0, entry, without if entry is None else within or without)
        return entry


def test_the_second_of_two_alike_calls_is_captured() -> None:
    program = Program()
    assert program.call(0x100, 0x200) is None
    entry = program.call(0x100, 0x300)
    assert entry is not None and entry.fixed == (0,)
    for moving in (0x200, 0x700, 0x300):
        assert program.call(0x100, moving) is entry


def test_nothing_is_fixed_that_is_not_aligned() -> None:
    program = Program(sizes=LARGE)
    program.call(0x104, 0x200)
    entry = program.call(0x104, 0x200)
    assert entry is not None and entry.fixed == (1,)


def test_calls_without_arguments_are_alike() -> None:
    program = Program()
    assert program.call() is None
    entry = program.call()
    assert entry is not None and entry.fixed == () and program.call() is entry


def test_a_small_argument_that_moves_is_copied_from_then_on() -> None:
    program = Program()
    program.call(0x100, 0x200)
    first = program.call(0x100, 0x200)
    assert first is not None and first.fixed == (0, 1)
    assert program.call(0x100, 0x300) is None
    second = program.call(0x100, 0x300)
    assert second is not None and second.fixed == (0,)
    assert program.call(0x100, 0x900) is second
    assert program.call(0x100, 0x200) is second, "the first is not needed any more"


def test_a_large_argument_that_moves_means_another_capture() -> None:
    program = Program(sizes=LARGE)
    for address in (0x100, 0x900):
        program.call(address)
        entry = program.call(address)
        assert entry is not None and entry.fixed == (0,)
    assert program.call(0x100) is program.made[0] and program.call(0x900) is program.made[1]


def test_captures_are_bounded_and_what_there_is_goes_on() -> None:
    program = Program(sizes=LARGE)
    for number in range(1, 100):
        for _ in range(2):
            program.call(0x100 * number)
    assert len(program.made) == ASKED_FOR.most and program.captures.stopped and not program.captures.is_over
    (said,) = program.said
    assert said.startswith("not captured any more: 16 captures were made")
    assert program.call(0x100) is program.made[0]


def test_keys_that_are_watched_are_bounded() -> None:
    program = Program()
    for key in range(1000):
        assert program.call(0x100, key=key) is None
    assert len(program.captures._alike) == 64
    program.call(0x100, key=999)
    assert len(program.made) == 1


def test_a_capture_whose_results_are_in_use_is_left_alone() -> None:
    program = Program()
    program.call(0x100)
    first = program.call(0x100)
    assert first is not None
    first.capture.busy = True
    assert program.call(0x100) is None
    second = program.call(0x100)
    assert second is not None and second is not first and second.fixed == (0,)
    first.capture.busy = False
    assert program.call(0x100) is first


def test_a_thread_calls_before_it_captures() -> None:
    program = Program()
    program.call(0x100, thread=1)
    assert program.call(0x100, thread=2) is None
    assert program.call(0x100, thread=2) is not None


def test_what_is_refused_stays_refused() -> None:
    program = Program()
    program.call(0x100)
    program.captures.stop("the operator is slow")
    for _ in range(5):
        assert program.call(0x100) is None
    assert program.said == ["not captured: the operator is slow"] and program.captures.is_over


# -- whether it pays --------------------------------------------------------------------------------
def test_a_device_that_is_always_at_work_gains_nothing() -> None:
    program = Program(WHERE_IT_PAYS)
    for _ in range(10):
        assert program.timed_call(0x100, without=Time(host=1e-3, device=5e-3)) is None
    (said,) = program.said
    assert said == "not captured: the device is at work for 5 ms a call, and the host starts one in 1 ms"
    assert not program.captures.is_timed(0, None)


def test_a_device_that_waits_for_the_host_gains() -> None:
    program = Program(WHERE_IT_PAYS)
    without, within = Time(host=3e-3, device=3.1e-3), Time(host=1e-4, device=1e-3)
    found = [program.timed_call(0x100, without=without, within=within) for _ in range(12)]
    assert [entry is None for entry in found] == [True] * 4 + [False] * 8
    assert not program.captures.is_timed(0, found[-1]) and not program.said


def test_a_capture_that_is_no_faster_is_dropped() -> None:
    program = Program(WHERE_IT_PAYS)
    without = Time(host=3e-3, device=2.9e-3)
    found = [program.timed_call(0x100, without=without, within=Time(1e-4, 3e-3)) for _ in range(12)]
    assert [entry is None for entry in found] == [True] * 4 + [False] * 3 + [True] * 5
    assert program.said == ["not captured: a call takes 3 ms with its capture, and 3 ms without"]


def test_times_that_come_late_delay_the_decision() -> None:
    program = Program(WHERE_IT_PAYS)
    for _ in range(20):
        assert program.call(0x100) is None
    for _ in range(3):
        program.captures.timed(0, None, Time(1e-3, 1e-3))
    assert program.call(0x100) is not None


def test_how_much_memory_a_capture_may_keep() -> None:
    gib = 1 << 30
    assert ASKED_FOR.why_too_large(1 << 50, 1 << 50, gib) is None
    for kept, copied, device, said in (
        (gib, gib, 0, None),
        (gib + 1, 0, 16 * gib, "it would keep 1,024 MiB of memory for itself"),
        (5 * gib, 0, 80 * gib, None),
        (5 * gib + 1, 0, 80 * gib, "it would keep 5,120 MiB of memory for itself"),
        (5 * gib, 2 * gib, 80 * gib, "2,048 MiB of arguments would be copied at each call"),
    ):
        assert WHERE_IT_PAYS.why_too_large(kept, copied, device) == said


def test_nothing_is_timed_where_captures_are_asked_for() -> None:
    program = Program()
    for _ in range(4):
        assert not program.captures.is_timed(0, program.call(0x100))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_a_policy(mode: str) -> None:
    wanted = {"default": WHERE_IT_PAYS, "max-autotune-no-cudagraphs": None}.get(mode, ASKED_FOR)
    assert policy_for(mode) is wanted


_CALLS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.sampled_from([0x100, 0x200, 0x304]), min_size=3, max_size=3)), max_size=60
)


@given(_CALLS, st.lists(st.booleans(), max_size=60), st.sampled_from([16, LARGE]))
def test_whatever_answers_holds_for_the_call(calls: list, busy: list[bool], size: int) -> None:
    program = Program(sizes=size)
    for at, (key, addresses) in enumerate(calls):
        entry = program.call(*addresses, key=key)
        if entry is not None:
            taken = entry.addresses if len(entry.fixed) > 1 else (entry.addresses,) * len(entry.fixed)
            assert [addresses[place] for place in entry.fixed] == list(taken)
            assert not entry.capture.busy and all(addresses[place] % 16 == 0 for place in entry.fixed)
            assert entry in program.captures._alike[key].entries
            entry.capture.busy = at < len(busy) and busy[at]
    assert len(program.made) <= ASKED_FOR.most
