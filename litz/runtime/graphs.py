"""Calls of a program on a GPU, answered by replaying what an earlier one has started: CUDA graphs.

In: the calls of an executable. Out: what it would give, from one launch in place of hundreds. `captures.py` says when a
call is captured and which capture answers it; here is what a capture takes and gives.

Nobody's results are ever written over. Those that the user gets are copied out of the capture's memory, to memory that
is his. What only a backward of Litz's own will read is lent to it as it is, and while any of it is in use the capture
answers no other call. A call that no capture holds for runs step by step, as all do at first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from litz.loop.dtype import to_torch
from litz.loop.exact import exact
from litz.loop.formula import Measures
from litz.loop.ir import Call, View
from litz.loop.operator import TORCHS_OWN, operator_named, taken_apart
from litz.runtime.captures import Captures, Entry, Policy
from litz.runtime.copies import copy_all, each_once
from litz.runtime.cuda_graph import NotNow, Recorder, Uncapturable

if TYPE_CHECKING:
    from litz.runtime.executable import Executable
    from litz.runtime.frame import Frame

# Operators whose result the host makes, a few numbers: it does so before each replay, and copies them to where the
# capture reads them. One that takes from the random generator's stream goes before all that the capture draws.
BEFORE_REPLAYS = frozenset(("litz::reserve",))
# In names of operators that ask the device for something before they go on.
_ASK = ("linalg", "cholesky", "geqrf", "ormqr", "triangular_solve", "svd", "eig", "_ctc_loss", "_fused_moving_avg")
_ASKING_TAGS = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")
_MUCH = 1 << 30  # bytes
_use_count = torch._C._storage_Use_Count
_address = torch.Tensor.data_ptr


@dataclass(frozen=True)
class Replays:
    """Whether calls may be captured, and who is told what came of it."""

    policy: Policy
    say: Callable[[str], None]


def why_never(executable: Executable, policy: Policy) -> str | None:
    """What keeps any call of the program from being captured."""
    plan, built = executable.plan, executable.built
    if built.kernels + sum(built.calls.values()) < policy.least:
        return "it starts next to nothing"
    for target in built.calls:
        name = taken_apart(target)
        if target in BEFORE_REPLAYS:
            continue
        if name.namespace not in TORCHS_OWN and name.namespace != "litz":
            return f"{target} is not an operator of torch's, and may do anything on the host"
        tags = {str(tag).rpartition(".")[2] for tag in operator_named(target).tags}
        if any(word in name.name for word in _ASK) or tags.intersection(_ASKING_TAGS):
            return f"{target} waits for the device"
    for item in plan.items:
        if isinstance(item.run, Call) and dict(item.run.kwargs).get("generator") is not None:
            return f"{item.run.target} has a generator of its own"
    apart = plan.draws - BEFORE_REPLAYS
    if apart and plan.draws & BEFORE_REPLAYS:
        return f"random numbers are drawn in kernels and by {min(apart)}: replayed, that would be another order"
    return None


class Graphs:
    """The captures of one executable, and their use. `lends`: places of results that nobody but a backward of Litz's
    own will see."""

    def __init__(self, executable: Executable, replays: Replays, recorder: Recorder):
        plan = executable.plan
        part = executable.built.part
        self.recorder = recorder
        varies = bool(plan.sizes or plan.numbers)
        self.captures = Captures(replays.policy, lambda text: replays.say(f"{part}: {text}"), varies)
        self.lends: Collection[int] = ()
        given = len(plan.inputs) - len(executable.constants)
        # Numbers of the host's are no memory of the device's: they are in the key.
        on_device = {name for name, buffer in plan.buffers.items() if buffer.kind == "input"}
        self.positions = [position for position, name in enumerate(plan.inputs[:given]) if name in on_device]
        self._has_floats = bool(plan.numbers)
        self.written = frozenset(i for i in self.positions if plan.inputs[i] in plan.written)
        self._lock = threading.Lock()
        self._watches: list[tuple[Hashable, Entry | None, Any]] = []
        why = why_never(executable, replays.policy)
        if why is not None:
            self.captures.stop(why)

    def call(
        self, executable: Executable, args: Sequence[Any], own: list[Any] | None, overwrite: bool, measured: Measures
    ) -> list[Any]:
        # While another thread is at it, or the caller is capturing himself, all is as if there were no captures.
        if self.recorder.is_capturing() or self._is_looked_at() or not self._lock.acquire(blocking=False):
            return executable.run(args, own, overwrite, measured)
        try:
            self._read_watches()
            key, addresses = self._key(args, overwrite, measured)
            entry = self.captures.find(key, addresses)
            if entry is None:
                entry = self._capture(executable, key, addresses, args, overwrite, measured)
            watch = self.recorder.stopwatch() if self.captures.is_timed(key, entry) else None
            if entry is not None:
                results = entry.capture.run(executable, args)
                self._watch(key, entry, watch)
                if own is not None:
                    own.clear()
                return results
            if self.captures.is_over:
                executable.graphs = None
        finally:
            self._lock.release()
        results = executable.run(args, own, overwrite, measured)
        self._watch(key, None, watch)
        return results

    def _is_looked_at(self) -> bool:
        """Whether hooks of the user's get what is lent."""
        return bool(self.lends) and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None

    def _key(self, args: Sequence[Any], overwrite: bool, measured: Measures) -> tuple[Hashable, list[int]]:
        stream = self.recorder.stream()
        all_of_them = len(args) == len(self.positions)
        addresses = list(map(_address, args if all_of_them else [args[position] for position in self.positions]))
        # What another capture has lent stays where it is; calls with the loans of one are alike.
        lent = self.recorder.lent(stream)
        loans = frozenset(lent.intersection(addresses)) if lent else None
        numbers = tuple(measured.values())
        return (stream, overwrite, loans, exact(numbers) if self._has_floats else numbers), addresses

    def _capture(
        self, executable: Executable, key: Hashable, addresses: Sequence[int], args: Sequence[Any], overwrite: bool,
        measured: Measures,
    ) -> Entry | None:  # fmt: skip
        bytes_at = lambda place: args[self.positions[place]].nbytes  # noqa: E731
        fixed = self.captures.notice(key, addresses, bytes_at, threading.get_ident())
        if fixed is None:
            return None
        moving = [position for place, position in enumerate(self.positions) if place not in set(fixed)]
        copied = sum(args[position].nbytes for position in moving)
        kept = executable.bytes_for(measured) + copied
        too_large = self.captures.policy.why_too_large(kept, copied, self.recorder.device_bytes)
        if too_large is not None:
            self.captures.refuse(key, too_large)
            return None
        why = self.recorder.why_not or self._why_not_now(executable, args)
        if why is not None:
            self.captures.stop(why)
            return None
        try:
            capture = Captured(self, executable, moving, args, overwrite, measured)
        except NotNow:
            return None
        except (Uncapturable, torch.OutOfMemoryError) as failure:
            self.captures.stop(str(failure).splitlines()[0])
            return None
        if kept > _MUCH:
            self.recorder.give_back_spare_memory()  # of the calls before, which needed as much
        self.captures.say(f"{capture}; {len(fixed)} arguments are taken where they lie")
        return self.captures.add(key, fixed, addresses, capture)

    def _why_not_now(self, executable: Executable, args: Sequence[Any]) -> str | None:
        if any(args[position].device != executable.device.device for position in self.positions):
            return "an argument is on another device"
        if torch.are_deterministic_algorithms_enabled() and any(bound.operator for bound in executable.items):
            return "operators are called, which may wait for the device where torch is asked for determinism"
        return None

    # -- what it takes ------------------------------------------------------------------------------
    def _watch(self, key: Hashable, entry: Entry | None, watch: Any) -> None:
        if watch is not None:
            watch.stop()
            self._watches.append((key, entry, watch))

    def _read_watches(self) -> None:
        for item in list(self._watches):
            key, entry, watch = item
            time = watch.read()
            if time is not None:
                self._watches.remove(item)
                self.captures.timed(key, entry, time)


class Captured:
    """All of a call on the device, to be replayed: with these arguments copied in, the others where they lay."""

    def __init__(
        self, graphs: Graphs, executable: Executable, moving: Sequence[int], args: Sequence[Any], overwrite: bool,
        measured: Measures,
    ):  # fmt: skip
        self._measured, self._shown = measured, executable.shown_for(measured)
        self._moving = tuple(moving)
        self._sort_results(executable, graphs.lends)
        given = list(args)
        # Of no mode of the caller's: other calls, made in other modes, use the same memory.
        with torch.inference_mode(False), torch.no_grad():
            for position in moving:
                given[position] = _blank(args[position])
            self._cells = [_Cell(executable, at, measured) for at in _made_before(executable)]
            items = list(executable.items)
            for cell in self._cells:
                items[cell.at] = items[cell.at]._replace(operator=cell.place)
            names = (*self._copied_names, *self._lent_names)
            run = lambda: executable.run_for(names, items, given, overwrite, measured)  # noqa: E731
            draws = bool(executable.plan.draws - BEFORE_REPLAYS)
            self._graph, made = graphs.recorder.record(graphs.recorder.stream(), run, draws)
        self._inner = [_once(given[position]) for position in moving]
        self._back = [place for place, position in enumerate(moving) if position in graphs.written]
        results, self._lent = made[: len(self._copied_names)], made[len(self._copied_names) :]
        self._sources = [_once(tensor) for tensor in results]
        self._forms = [(tuple(t.shape), t.stride(), t.dtype) for t in results]
        whole = zip((*self._inner, *self._sources), (*(given[i] for i in moving), *results), strict=True)
        self._plain = all(once is all_of_it for once, all_of_it in whole)
        self._loans = [tensor.untyped_storage()._cdata for tensor in self._lent]
        addresses = [tensor.data_ptr() for tensor in self._lent]
        self._graph.pool.lent.update(addresses)
        weakref.finalize(self, self._graph.pool.lent.difference_update, addresses).atexit = False

    def _sort_results(self, executable: Executable, lends: Collection[int]) -> None:
        """By buffer: those that are an argument or a constant, those that are lent, and those that are copied."""
        plan, given = executable.plan, len(executable.plan.inputs) - len(executable.constants)
        positions = {name: position for position, name in enumerate(plan.inputs) if name is not None}
        views = [(place, output.buffer) for place, output in enumerate(plan.outputs) if isinstance(output, View)]
        names = dict.fromkeys(name for _, name in views)
        self._same = [(name, positions[name]) for name in names if name in positions and positions[name] < given]
        self._constant = {
            name: executable.constants[positions[name] - given]
            for name in names
            if name in positions and positions[name] >= given
        }
        seen = {name for place, name in views if place not in lends}
        made = [name for name in names if name not in positions]
        self._copied_names = [name for name in made if name in seen]
        self._lent_names = [name for name in made if name not in seen]

    @property
    def busy(self) -> bool:
        alone = _uses_of_one()
        return any(_use_count(storage) > alone for storage in self._loans)

    def run(self, executable: Executable, args: Sequence[Any]) -> list[Any]:
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            # First of all memory for the results: after what can fail comes what can be seen.
            empty = executable.device.empty
            results = [empty(*form) for form in self._forms]
            outer, targets = [args[position] for position in self._moving], results
            if not self._plain:
                outer, targets = [*map(_once, outer)], [*map(_once, results)]
            copy_all(self._inner, outer)
            for cell in self._cells:
                cell.fill(executable, self._measured)
            self._graph.replay()
            for place in self._back:
                outer[place].data.copy_(self._inner[place])  # whoever asked for the write counts it, or does not
            copy_all(targets, self._sources)
        tensors = dict(zip(self._copied_names, results, strict=True))
        tensors.update(zip(self._lent_names, (tensor.detach() for tensor in self._lent), strict=True))
        tensors.update((name, args[position]) for name, position in self._same)
        tensors.update(self._constant)
        return executable.results(self._shown, tensors, self._measured)

    def __str__(self) -> str:
        moved = sum(t.nbytes for t in self._inner), sum(t.nbytes for t in self._sources)
        return (
            f"captured; at each call {len(self._inner)} arguments ({moved[0]:,} bytes) are copied in, and "
            f"{len(self._sources)} results ({moved[1]:,} bytes) out"
        )


def _made_before(executable: Executable) -> list[int]:
    """Items that are operators which the host runs before each replay."""
    runs = [bound.item.run for bound in executable.items]
    return [at for at, run in enumerate(runs) if isinstance(run, Call) and run.target in BEFORE_REPLAYS]


class _Cell:
    """Where a capture reads what such an operator, the item `at`, has made."""

    def __init__(self, executable: Executable, at: int, measured: Measures):
        run = executable.items[at].item.run
        assert isinstance(run, Call) and run.results[0] is not None
        view, self.at = run.results[0], at
        self._buffer, self._slot = view.buffer, executable.slots[view.buffer]
        sizes, strides = ([n.at(measured) for n in numbers] for numbers in (view.sizes, view.strides))
        self._memory = torch.empty_strided(sizes, strides, dtype=to_torch(view.dtype), device=executable.device.device)

    def place(self, frame: Frame) -> None:
        """In place of the operator."""
        frame.tensors[self._buffer] = self._memory
        frame.slots[self._slot] = self._memory.data_ptr()

    def fill(self, executable: Executable, measured: Measures) -> None:
        self._memory.copy_(executable.made_by(self.at, measured))


def _blank(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _once(value: torch.Tensor) -> torch.Tensor:
    found = each_once(value)
    if found is None:
        raise Uncapturable("elements of an argument or result overlap, so that it cannot be copied")
    return found


@lru_cache(maxsize=1)
def _uses_of_one() -> int:
    """What is counted for the storage of a tensor that only we have."""
    tensor = torch.empty(1, device="cpu")
    return _use_count(tensor.untyped_storage()._cdata)


__all__ = ["BEFORE_REPLAYS", "Captured", "Graphs", "Replays", "why_never"]
