"""What the functional graph leaves out, restored around the call: an ordered list of wrappers.

Each states what it removes from the problem before tracing and what it restores at run time. `before` turns
the arguments into those the next one sees, first to last; `after` sees what its own `before` was given and the
results, last to first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from litz.capture.forward_mode import runs_as_written
from litz.capture.overlap import entangled, in_place_of_members, length, overlap
from litz.capture.rebuild import rebuilt
from litz.capture.subclasses import form_of, put_together, taken_apart
from litz.errors import RunFailed
from litz.graph.signature import Base, Input, Output, Signature, Subclasses, number
from litz.loop.formula import Measures

Core = Callable[..., Sequence[Any]]


class Eager(Exception):
    """Raised by a wrapper's `before`: these arguments break an assumption of the trace, run the original."""


class PlainTensors:
    """Removes: tensor subclasses, argument or result; the trace has the plain tensors they are made of.

    Restores: the subclasses. Arguments made otherwise than those of the trace go to the user's own function.
    """

    def __init__(self, forms: Subclasses):
        self.forms = forms
        # Those of the last call: of the same parameters Dynamo has made sure that they are made as they were.
        self._seen: list[Callable[[], Any]] = [lambda: None] * len(forms.arguments)

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        for place, (arg, form) in enumerate(zip(args, self.forms.arguments, strict=True)):
            if arg is not None and self._seen[place]() is arg:
                continue
            if form_of(arg) != form:
                raise Eager
            if form is not None and not hasattr(arg, "__metadata_guard__"):  # which may let others pass
                self._seen[place] = weakref.ref(arg)
        return taken_apart(args, self.forms.arguments)

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        made = put_together(results, self.forms.outputs)
        for output, place in self.forms.returned:
            made[output] = args[place]
        return made


@dataclass(frozen=True)
class OneOfEach:
    """Removes: arguments that are the same tensor; the trace has one input for them.

    Restores: nothing, but where other arguments are the same than were, the user's own function runs.
    """

    places: tuple[int, ...]

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        kept: list[Any] = []
        for arg, place in zip(args, self.places, strict=True):
            if place == len(kept):
                kept.append(arg)
            elif kept[place] is not arg:
                raise Eager
        return kept

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        return results


@dataclass(frozen=True)
class SyntheticBases:
    """Removes: arguments that overlap, one of them written to; the trace has one input for the memory they share.

    Restores: the version counters of all of them, and an output that is such an argument itself. Where they lie
    otherwise than they did, the user's own function runs.
    """

    bases: tuple[Base, ...]
    returned: tuple[tuple[int, int], ...] = ()

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        inner = in_place_of_members(args, self.bases)
        if inner is None:
            raise Eager
        return inner

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        apart = [args[place] for base in self.bases if not base.own for place, _ in base.members]
        apart = [t for t in apart if not t.is_inference()]
        if apart:
            torch.autograd.graph.increment_version(apart)
        for output, place in self.returned:
            results[output] = args[place]
        return results


class SeparateInputs:
    """Removes: inputs that overlap one that is written to, where those of the trace did not; and inputs that may not be
    written to, for having been made in inference mode.

    Restores: the user's own function runs on such arguments.
    """

    def __init__(self, signature: Signature):
        self.mutated, self.training = frozenset(signature.mutated), bool(signature.differentiable)
        # Where shapes are fixed, arguments that lie where earlier ones lay are as separate as those were.
        self.remembers = not self.training and not signature.sizes
        self._bytes: dict[int, int] | None = None  # which arguments are tensors, and how many lie between their ends
        self._seen: list[int] = []  # addresses of such arguments

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        if not torch.is_inference_mode_enabled() and any(args[i].is_inference() for i in self.mutated):
            raise Eager
        if self.remembers:
            if self._bytes is None:
                self._bytes = {i: length(arg) for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
            addresses = [args[i].data_ptr() for i in self._bytes]
            if addresses != self._seen:
                self._check_moved(addresses, self._bytes)
                self._seen = addresses
        else:
            self._check(args)
        return args

    def _check_moved(self, addresses: Sequence[int], lengths: Mapping[int, int]) -> None:
        """Of arguments that lie elsewhere than in the last call, whether they overlap others."""
        before = self._seen or [-1] * len(addresses)
        spans = {i: (first, first + n) for (i, n), first in zip(lengths.items(), addresses, strict=True) if n}
        written = {i: spans[i] for i in self.mutated if i in spans}
        for i, first, earlier in zip(lengths, addresses, before, strict=True):
            if first == earlier or i not in spans:
                continue
            _, end = spans[i]
            for j, (other, other_end) in (spans if i in written else written).items():
                if j != i and first < other_end and other < end:
                    raise Eager

    def _check(self, args: Sequence[Any]) -> None:
        owners: dict[int, list[int]] = {}
        ends: dict[int, int] = {}  # of storages, which may lie within each other where other libraries made them
        for position, arg in enumerate(args):
            if isinstance(arg, torch.Tensor):
                storage = arg.untyped_storage()
                first = storage.data_ptr()
                ends[first] = max(ends.get(first, 0), first + storage.nbytes())
                others = owners.setdefault(first, [])
                for other in others:
                    written = position in self.mutated or other in self.mutated
                    if written and entangled(arg, args[other], self.training):
                        raise Eager
                others.append(position)
        around: list[int] = []  # those that reach beyond the beginning of the next
        for first in sorted(owners):
            around = [one for one in around if ends[one] > first]
            if not all(self._apart(args, owners[one], owners[first]) for one in around):
                raise Eager
            around.append(first)

    def _apart(self, args: Sequence[Any], some: Sequence[int], others: Sequence[int]) -> bool:
        """Whether no write to an argument changes another, for two storages of which one reaches into the other."""
        return not any(overlap(args[i], args[j]) for i in some for j in others if {i, j} & self.mutated)

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        return results


class WriteBack:
    """Removes: writes to inputs. Those out of autograd's sight the program stores itself; others it returns.

    Restores: version counters, and the values autograd must see, by copying them in.
    """

    def __init__(self, signature: Signature):
        self.stored = tuple(i for i in signature.mutated if signature.inputs[i].hidden and signature.inputs[i].counted)
        self.returned = signature.returned_mutations
        self.results = signature.results

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        return args

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        if self.stored:
            torch.autograd.graph.increment_version([args[i] for i in self.stored])
        for position, value in zip(self.returned, results[self.results :], strict=True):
            args[position].copy_(value)
        return results[: self.results]


@dataclass(frozen=True)
class Reshape:
    """Removes: inputs that change their own shape or strides in place.

    Restores: the change, before all else, so that autograd saves the input in its final version; the program gets a
    view of it that is as it was. No wrapper further in may refuse the arguments.
    """

    signature: Signature

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        inner = list(args)
        measured = self.signature.measure(args)
        for position, spec in enumerate(self.signature.inputs):
            if spec.reshaped is not None:
                sizes, strides = args[position].shape, args[position].stride()
                window = spec.reshaped.at(measured)
                args[position].as_strided_(window.sizes, window.strides)
                inner[position] = args[position].as_strided(sizes, strides)
        return inner

    def undo(self, args: Sequence[Any], inner: Sequence[Any]) -> None:
        """The program did not finish."""
        for position, spec in enumerate(self.signature.inputs):
            if spec.reshaped is not None:
                args[position].as_strided_(inner[position].shape, inner[position].stride())

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        return results


@dataclass(frozen=True)
class RebuildOutputs:
    """Removes: outputs that are an input, share memory with one or with each other, or are no tensors.

    Restores: the argument itself, views of it or of the result whose memory it is, and plain values.
    """

    signature: Signature

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        return args

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        sizes = self.signature.measure(args)
        return [self._build(output, args, results, sizes) for output in self.signature.outputs]

    @staticmethod
    def _build(output: Output, args: Sequence[Any], results: list[Any], sizes: Measures) -> Any:
        if output.kind == "plain":
            return number(output.value, sizes)
        if output.kind == "input":
            return args[output.index]
        base = args[output.index] if output.kind == "view" else results[output.index]
        if output.through is not None:
            return _Placed.apply(results[output.through], rebuilt(output, base.detach(), sizes))
        if base.requires_grad and not output.needs_grad:
            base = base.detach()
        with torch.no_grad() if output.unrecorded else nullcontext():
            found = rebuilt(output, base, sizes)
        return found.detach() if output.apart else found


class _Placed(torch.autograd.Function):
    """A result, to autograd, in memory that holds the same: a view, which autograd lets no one write to."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.alias.default(memory)  # `view_as` has strides of its own for sizes of one

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return given, None


@dataclass(frozen=True)
class WithoutBits:
    """Removes: conjugation and negation that arguments carry as a bit, which generated code would not see.

    Restores: nothing: outputs that are such an argument are rebuilt further out.
    """

    inputs: tuple[Input, ...]

    def before(self, args: Sequence[Any]) -> Sequence[Any]:
        return [
            arg.resolve_conj().resolve_neg() if spec.lazy else arg for arg, spec in zip(args, self.inputs, strict=True)
        ]

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        return results


class AsTraced:
    """Removes: autocast, whose casts are in the graph.

    Restores: it stays off while the program runs, or operators called from there would cast once more.
    """

    def __init__(self, core: Core):
        self.core = core

    def __call__(self, *args: Any) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return self.core(*args)


class Unrecorded:
    """Removes: gradients, which no result has.

    Restores: none are recorded while the program runs, or operators called from there would give theirs to what comes
    of them, though the function has detached it.
    """

    def __init__(self, core: Core):
        self.core = core

    def __call__(self, *args: Any) -> Sequence[Any]:
        with torch.no_grad():
            return self.core(*args)


def wrappers_for(signature: Signature) -> tuple[Any, ...]:
    """Those that have something to do, outermost first."""
    found: list[Any] = []
    if signature.subclasses is not None:
        found.append(PlainTensors(signature.subclasses))
    if signature.places:
        found.append(OneOfEach(signature.places))
    if signature.bases:
        found.append(SyntheticBases(signature.bases, signature.returned_members))
    if not all(o == Output("fresh", i, needs_grad=o.needs_grad) for i, o in enumerate(signature.outputs)):
        found.append(RebuildOutputs(signature))
    if any(x.lazy for x in signature.inputs):
        found.append(WithoutBits(signature.inputs))
    if signature.mutated:
        found.append(SeparateInputs(signature))
    if any(x.reshaped is not None for x in signature.inputs):
        found.append(Reshape(signature))
    if signature.mutated:
        found.append(WriteBack(signature))
    return tuple(found)


def wrap(core: Core, signature: Signature, eager: Callable[..., Any]) -> Callable[..., Any]:
    """`core` with everything restored that `signature` says was removed; `core` itself if that is nothing."""
    if signature.autocast:
        core = AsTraced(core)
    if signature.unrecorded:
        core = Unrecorded(core)
    wrappers = wrappers_for(signature)
    if signature.recording:
        return Recording(core, wrappers, eager)
    plain = not wrappers and not signature.autocast and not signature.unrecorded and not signature.differentiable
    return core if plain else Wrapped(core, wrappers, eager)


@dataclass(frozen=True)
class Wrapped:
    core: Core
    wrappers: tuple[Any, ...]
    eager: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        if runs_as_written(args):
            return self._as_written(*args)
        seen: list[Sequence[Any]] = []
        inner: Sequence[Any] = args
        try:
            for wrapper in self.wrappers:
                seen.append(inner)
                inner = wrapper.before(inner)
        except Eager:
            return self._as_written(*args)
        try:
            results = list(self.core(*inner))
        except RunFailed as failure:
            for wrapper, given in zip(reversed(self.wrappers), reversed(seen), strict=True):
                if isinstance(wrapper, Reshape):
                    wrapper.undo(given, inner)
            return failure.instead(self._as_written, args)
        for wrapper, given in zip(reversed(self.wrappers), reversed(seen), strict=True):
            results = wrapper.after(given, results)
        return results

    def _as_written(self, *args: Any) -> Any:
        return self.eager(*args)


class Recording(Wrapped):
    """Called where gradients are off, and traced with them on in places: the signature says which results have one."""

    def __call__(self, *args: Any) -> Any:
        with torch.enable_grad():
            return super().__call__(*args)

    def _as_written(self, *args: Any) -> Any:
        with torch.no_grad():
            return self.eager(*args)
