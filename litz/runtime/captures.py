"""When calls of a program are captured, and which capture answers a call. Nothing here touches a device.

In: what is known of a call: its key (all that is burnt into a capture besides addresses: numbers, the stream) and the
addresses of its arguments. Out: a capture that holds for it, or that this call is to be captured, and which of its
arguments as *fixed* ones: a capture reads those where they lie, and holds only for calls in which they lie there; all
others are copied into memory of its own before it is replayed. Fixed is what has not moved from call to call:
parameters, buffers, caches.

Whether captures pay is measured, unless they are asked for. The device waits for the host if a call takes the host
about as long to start as the device to finish; then, and only then, a capture may help, and it is kept if it does: if
calls take less time with it than they took without.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

ALIGNMENT = 16  # bytes, that a kernel of a GPU reads at a time: what lies otherwise is copied
_SMALL = 4 << 20  # bytes that are sooner copied at each call than captured anew when they move
_MOST_KEYS = 64  # that are watched
_WAITING = 0.9  # the part of a call's time that the host takes at least where the device waits for it


class Capture(Protocol):
    @property
    def busy(self) -> bool:
        """Whether somebody has results of it that the next replay would write over."""


@dataclass(frozen=True)
class Policy:
    """`asked`: whether the user wants captures wherever they are possible; else they must pay. `calls`: alike ones,
    without an answer, before one is captured; `samples`: calls that are timed; `most`: captures of one program;
    `least`: what a call must start at least; `most_bytes`: of arguments that a replay may copy, and of memory that a
    capture may keep, unless a `share` of the device's is more."""

    asked: bool
    calls: int
    samples: int = 3
    most: int = 16
    least: int = 1
    most_bytes: int | None = None
    share: float = 0.0

    def why_too_large(self, kept: int, copied: int, device: int) -> str | None:
        """`kept`, `copied`: bytes; `device`: those of the device."""
        if self.most_bytes is None:
            return None
        if copied > self.most_bytes:
            return f"{copied / 2**20:,.0f} MiB of arguments would be copied at each call"
        if kept > max(self.most_bytes, self.share * device):
            return f"it would keep {kept / 2**20:,.0f} MiB of memory for itself"
        return None


ASKED_FOR = Policy(True, calls=2)
# A step of training keeps all that its backward will read: of a large device, that may be some GiB.
WHERE_IT_PAYS = Policy(False, calls=4, least=4, most_bytes=1 << 30, share=1 / 16)


def policy_for(mode: str) -> Policy | None:
    """None: nothing is captured."""
    if mode == "max-autotune-no-cudagraphs":
        return None
    return WHERE_IT_PAYS if mode == "default" else ASKED_FOR


@dataclass(frozen=True)
class Time:
    """Seconds: the host's, to start all of a call, and the device's, from its first to its last step."""

    host: float
    device: float

    @property
    def whole(self) -> float:
        return max(self.host, self.device)


@dataclass
class Entry:
    """A capture, and for which addresses it holds."""

    capture: Any
    fixed: tuple[int, ...]  # places among the addresses
    addresses: Any  # of those, as `_read` gives them
    times: list[Time] = field(default_factory=list)
    _read: Callable[[Sequence[int]], Any] = lambda addresses: None

    @classmethod
    def of(cls, capture: Any, fixed: Sequence[int], addresses: Sequence[int]) -> Entry:
        read = itemgetter(*fixed) if fixed else (lambda addresses: None)
        return cls(capture, tuple(fixed), read(addresses), _read=read)

    def holds_for(self, addresses: Sequence[int]) -> bool:
        return self._read(addresses) == self.addresses


@dataclass
class _Alike:
    """Calls with one key."""

    entries: list[Entry] = field(default_factory=list)
    times: list[Time] = field(default_factory=list)  # of calls without a capture
    refused: bool = False
    calls: int = 0  # without an answer, one after the other, by one thread; of these:
    thread: int = 0
    addresses: Sequence[int] = ()  # in the latest
    steady: list[int] = field(default_factory=list)  # in how many before it each argument lay there too
    moved: set[int] = field(default_factory=set)  # arguments that were thought fixed

    def see(self, addresses: Sequence[int], thread: int) -> None:
        # Libraries set themselves up for a thread in its first call, and could not while one is captured.
        if thread != self.thread or len(addresses) != len(self.addresses):
            self.calls, self.steady = 0, [0] * len(addresses)
        else:
            pairs = zip(self.steady, addresses, self.addresses, strict=True)
            self.steady = [n + 1 if now == before else 0 for n, now, before in pairs]
        self.calls, self.thread, self.addresses = self.calls + 1, thread, addresses
        for entry in self.entries:
            at = entry.addresses if len(entry.fixed) > 1 else (entry.addresses,)
            self.moved |= {place for place, was in zip(entry.fixed, at, strict=False) if addresses[place] != was}

    def fixed(self, calls: int, bytes_at: Callable[[int], int]) -> tuple[int, ...]:
        return tuple(
            place
            for place, n in enumerate(self.steady)
            if n >= calls - 1
            and self.addresses[place] % ALIGNMENT == 0
            and not (place in self.moved and bytes_at(place) <= _SMALL)
        )

    def begin_again(self) -> None:
        self.calls, self.addresses, self.steady = 0, (), []


class Captures:
    """The captures of one program. Not for two threads at a time."""

    def __init__(self, policy: Policy, say: Callable[[str], None], varies: bool = True):
        """`say` is told what came of it. `varies`: calls may differ in sizes, so that what holds of some need not hold
        of others."""
        self.policy, self.say, self._varies = policy, say, varies
        self._alike: dict[Hashable, _Alike] = {}
        self._made = 0
        self.stopped = False  # no more are made

    @property
    def is_over(self) -> bool:
        """There are none, and there will be none."""
        return self.stopped and not any(alike.entries for alike in self._alike.values())

    def find(self, key: Hashable, addresses: Sequence[int]) -> Entry | None:
        alike = self._alike.get(key)
        if alike is not None:
            for entry in alike.entries:
                if entry.holds_for(addresses) and not entry.capture.busy:
                    return entry
        return None

    def notice(
        self, key: Hashable, addresses: Sequence[int], bytes_at: Callable[[int], int], thread: int
    ) -> tuple[int, ...] | None:
        """A call that no capture holds for. If it is to be captured: the places of the arguments to be taken where they
        lie."""
        if self.stopped:
            return None
        alike = self._watched(key)
        if alike is None or alike.refused:
            return None
        alike.see(addresses, thread)
        if alike.calls < self.policy.calls or not self._may_pay(key, alike):
            return None
        if self._made >= self.policy.most:
            self.stop(f"{self._made} captures were made, and sizes, numbers or addresses of arguments still change")
            return None
        fixed = alike.fixed(self.policy.calls, bytes_at)
        # The new one will hold wherever one does that takes more for fixed; whose memory it may have, then.
        alike.entries = [e for e in alike.entries if not set(e.fixed) > set(fixed) or e.capture.busy]
        return fixed

    def _watched(self, key: Hashable) -> _Alike | None:
        found = self._alike.get(key)
        if found is None:
            if len(self._alike) >= _MOST_KEYS:
                idle = next((k for k, alike in self._alike.items() if not alike.entries), None)
                if idle is None:
                    return None
                del self._alike[idle]
            found = self._alike[key] = _Alike()
        return found

    def _may_pay(self, key: Hashable, alike: _Alike) -> bool:
        if self.policy.asked:
            return True
        if len(alike.times) < self.policy.samples:
            return False
        host, device = min(t.host for t in alike.times), min(t.device for t in alike.times)
        if host >= _WAITING * device:
            return True
        busy, started = f"{device * 1e3:.3g} ms", f"{host * 1e3:.3g} ms"
        self.refuse(key, f"the device is at work for {busy} a call, and the host starts one in {started}")
        return False

    def add(self, key: Hashable, fixed: Sequence[int], addresses: Sequence[int], capture: Capture) -> Entry:
        alike = self._alike[key]
        entry = Entry.of(capture, fixed, addresses)
        alike.entries.append(entry)
        alike.begin_again()
        self._made += 1
        return entry

    def refuse(self, key: Hashable, why: str) -> None:
        """Such calls are not captured any more."""
        self._alike[key].refused = True
        self._alike[key].entries.clear()
        if self._varies:
            self.say(f"not captured: {why}")
        else:
            self.stop(why)

    def stop(self, why: str) -> None:
        if not self.stopped:
            self.stopped = True
            self.say(f"not captured: {why}" if self._made == 0 else f"not captured any more: {why}")

    # -- what it takes ------------------------------------------------------------------------------
    def is_timed(self, key: Hashable, entry: Entry | None) -> bool:
        """Whether this call's time is wanted."""
        if self.policy.asked or (self.stopped and entry is None):
            return False
        alike = self._alike.get(key)
        if alike is None or alike.refused:
            return False
        # Not of the first call, in which libraries and the allocator set themselves up.
        return len(alike.times if entry is None else entry.times) < self.policy.samples and (
            entry is not None or alike.calls > 1
        )

    def timed(self, key: Hashable, entry: Entry | None, time: Time) -> None:
        alike = self._alike.get(key)
        if alike is None:
            return
        (alike.times if entry is None else entry.times).append(time)
        if entry is None or len(entry.times) != self.policy.samples or entry not in alike.entries:
            return
        before, after = (min(t.whole for t in times) for times in (alike.times, entry.times))
        if after >= before:
            self.refuse(key, f"a call takes {after * 1e3:.3g} ms with its capture, and {before * 1e3:.3g} ms without")


__all__ = ["ALIGNMENT", "ASKED_FOR", "WHERE_IT_PAYS", "Capture", "Captures", "Entry", "Policy", "Time", "policy_for"]
