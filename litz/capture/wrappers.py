"""What the functional graph leaves out, restored around the call: an ordered list of wrappers.

Each states what it removes from the problem before tracing and what it restores at run time. `before`
sees the arguments first to last, `after` sees arguments and results last to first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.graph.signature import Output, Signature

Core = Callable[..., Sequence[Any]]


class Eager(Exception):
    """Raised by a wrapper's `before`: these arguments break an assumption of the trace, run the original."""


@dataclass(frozen=True)
class SeparateInputs:
    """Removes: inputs that share memory with one that is written to, which tracing takes for independent.

    Restores: the user's own function runs on such arguments.
    """

    mutated: tuple[int, ...]

    def before(self, args: Sequence[Any]) -> None:
        owners: dict[int, int] = {}
        for position, arg in enumerate(args):
            if isinstance(arg, torch.Tensor):
                key = arg.untyped_storage().data_ptr()
                other = owners.setdefault(key, position)
                if key and other != position and (position in self.mutated or other in self.mutated):
                    raise Eager

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        return results


@dataclass(frozen=True)
class WriteBack:
    """Removes: writes to inputs. Those out of autograd's sight the program stores itself; others it returns.

    Restores: version counters, and the values autograd must see, by copying them in.
    """

    signature: Signature

    def before(self, args: Sequence[Any]) -> None:
        pass

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        stored = [args[i] for i in self.signature.mutated if self.signature.inputs[i].hidden]
        stored = [t for t in stored if not t.is_inference()]
        if stored:
            torch.autograd.graph.increment_version(stored)
        count = self.signature.results
        for position, value in zip(self.signature.returned_mutations, results[count:], strict=True):
            args[position].copy_(value)
        return results[:count]


@dataclass(frozen=True)
class RebuildOutputs:
    """Removes: outputs that are an input, share memory with one or with each other, or are no tensors.

    Restores: the argument itself, views of it or of the result whose memory it is, and plain values.
    """

    outputs: tuple[Output, ...]

    def before(self, args: Sequence[Any]) -> None:
        pass

    def after(self, args: Sequence[Any], results: list[Any]) -> list[Any]:
        return [self._build(output, args, results) for output in self.outputs]

    @staticmethod
    def _build(output: Output, args: Sequence[Any], results: list[Any]) -> Any:
        if output.kind == "plain":
            return output.value
        if output.kind == "input":
            return args[output.index]
        base = args[output.index] if output.kind == "view" else results[output.index]
        window = output.window
        if window is None:
            return base
        return base.as_strided(window.sizes, window.strides, base.storage_offset() + window.offset)


def wrap(core: Core, signature: Signature, eager: Callable[..., Any]) -> Callable[..., Any]:
    """`core` with everything restored that `signature` says was removed; `core` itself if that is nothing."""
    wrappers: list[Any] = []
    if signature.mutated:
        wrappers += [SeparateInputs(signature.mutated), WriteBack(signature)]
    if not all(o.kind == "fresh" and o.index == i for i, o in enumerate(signature.outputs)):
        wrappers.insert(0, RebuildOutputs(signature.outputs))
    return Wrapped(core, tuple(wrappers), eager) if wrappers else core


@dataclass(frozen=True)
class Wrapped:
    core: Core
    wrappers: tuple[Any, ...]
    eager: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        try:
            for wrapper in self.wrappers:
                wrapper.before(args)
        except Eager:
            return self.eager(*args)
        results = list(self.core(*args))
        for wrapper in reversed(self.wrappers):
            results = wrapper.after(args, results)
        return results
