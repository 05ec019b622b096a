"""A frozen program as a callable: its constants are made of the arguments it is first given, and watched.

In: a compiled function with a `Recipe`. Out: a callable that takes all the caller's arguments, as the user's function
does. The recipe is followed once. A call that brings another tensor for one that is frozen, or one that was written to
since, has it followed again, with a warning: results are always those of the weights as they are. A write that torch
does not count (through `.data`) is not noticed.

Where the originals were released there is nothing to follow the recipe on, and such a call is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from litz.capture.apart import apart_from_caller
from litz.capture.forward_mode import carries_tangents
from litz.errors import CallError
from litz.graph.recipe import Argument, Computed, Constant, Recipe, Step
from litz.runtime.layout import on_device
from litz.runtime.released import is_released, release

Ready = Callable[[Sequence[torch.Tensor], Callable[..., Any]], Callable[..., Any]]
_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_address = torch.Tensor.data_ptr


class Keeping(NamedTuple):
    """`names`: of the caller's arguments that are parameters or buffers. `releases`: whether their memory is given up.
    `tell`: where to say that constants were made again."""

    names: Mapping[int, str]
    releases: bool
    tell: Callable[[str], None]


class _Frozen(NamedTuple):
    """`tensors`: of which the constants were made, as they were then; none is kept that was released."""

    tensors: tuple[torch.Tensor, ...]
    versions: list[int]
    addresses: list[int]
    run: Callable[..., Any]


class FrozenProgram:
    def __init__(self, recipe: Recipe, ready: Ready, eager: Callable[..., Any], keeping: Keeping):
        """`ready(constants, eager)` is the program with these constants, for the arguments that are left; `eager` takes
        all of them."""
        self.recipe, self.keeping = recipe, keeping
        self._ready, self._eager = ready, eager
        self._now: _Frozen | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        given = [args[place] for place in self.recipe.frozen]
        now = self._now
        if now is None or not self._are_as_they_were(now, given):
            if carries_tangents(given) or any(args[place] is not args[first] for place, first in self.recipe.again):
                return self._eager(*args)  # tangents would be lost, or what was one tensor is two
            now = self.freeze(args)
        return now.run(*[args[place] for place in self.recipe.kept])

    def freeze(self, args: Sequence[Any]) -> _Frozen:
        """Makes the constants of these arguments."""
        given = tuple(args[place] for place in self.recipe.frozen)
        with self._lock:
            before = self._now
            if before is not None:
                if self._are_as_they_were(before, given):
                    return before  # another thread was here
                self._say_what_changed(before, given)
            self._refuse_released(given)
            run = self._in_eager(args)
            if self._suits(args):
                run = self._ready(constants_of(self.recipe, args), run)
            found = _Frozen(given, list(map(_version, given)), list(map(_address, given)), run)
            if self.keeping.releases:
                for place, tensor in zip(self.recipe.frozen, given, strict=True):
                    if not is_released(tensor):  # a tied one comes twice
                        release(tensor, self._name(place))
            self._now = found
            return found

    def _are_as_they_were(self, now: _Frozen, given: Sequence[Any]) -> bool:
        if not all(map(is_, given, now.tensors)):
            return False
        if self.keeping.releases:
            return True  # they raise when they are touched
        return list(map(_version, given)) == now.versions and list(map(_address, given)) == now.addresses

    def _suits(self, args: Sequence[Any]) -> bool:
        """Whether what the program was compiled for is still true of the values."""
        changed = [place for place in self.recipe.zeros if bool(args[place].any())]
        if changed:
            self.keeping.tell(
                f"{self._names(changed)} was zero when the program was compiled, and is not now: calls run the model "
                "as it is. Call `torch._dynamo.reset()` to have it compiled for these weights"
            )
        return not changed

    def _say_what_changed(self, before: _Frozen, given: Sequence[Any]) -> None:
        replaced = [p for p, old, new in zip(self.recipe.frozen, before.tensors, given, strict=True) if old is not new]
        if self.keeping.releases:
            raise CallError(
                f"{self._names(replaced)} was replaced, and the program was compiled with freeze='discard': what its "
                "constants were made of is released, so that they cannot be made again",
                hint="load all weights before the first call, or use freeze=True; to compile anew, build the model "
                "again and call `torch._dynamo.reset()`",
            )
        changed = replaced or [
            place
            for place, tensor, version, address in zip(
                self.recipe.frozen, given, before.versions, before.addresses, strict=True
            )
            if tensor._version != version or tensor.data_ptr() != address
        ]
        what = "was replaced" if replaced else "was written to"
        self.keeping.tell(
            f"{self._names(changed)} {what} since the program was frozen: its constants are made again. Where weights "
            "change often, leave `freeze` out"
        )

    def _refuse_released(self, given: Sequence[Any]) -> None:
        gone = [place for place, x in zip(self.recipe.frozen, given, strict=True) if is_released(x)]
        if gone:
            raise CallError(
                f"{self._names(gone)} was released by a program that was compiled with freeze='discard', and another "
                "one would be made of it",
                hint="use freeze=True for a model that is compiled more than once (for other shapes, or in pieces that "
                "share weights)",
            )

    def _names(self, places: Sequence[int]) -> str:
        first = self._name(places[0])
        return first if len(places) == 1 else f"{first} (and {len(places) - 1} more)"

    def _name(self, place: int) -> str:
        return self.keeping.names.get(place, f"argument {place}")

    def _in_eager(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The user's function of the arguments that are left."""
        held = {} if self.keeping.releases else {place: args[place] for place in self.recipe.frozen}
        count = len(args)

        def call(*kept: Any) -> Any:
            if self.keeping.releases:
                raise CallError(
                    "the program cannot serve this call, nor can eager: freeze='discard' released the weights",
                    hint="use freeze=True",
                )
            passed = held | dict(zip(self.recipe.kept, kept, strict=True))
            return self._eager(*(passed[place] for place in range(count)))

        return call


# -- following a recipe ------------------------------------------------------------------------------
def constants_of(recipe: Recipe, args: Sequence[Any]) -> list[torch.Tensor]:
    """The constants, in the recipe's order. One that is an argument shares its memory."""
    with apart_from_caller():
        made: dict[int, Any] = {}
        values: dict[int, torch.Tensor] = {}
        last = _last_uses(recipe)
        for number, constant in enumerate(recipe.constants):
            if isinstance(constant.value, Argument):
                values[number] = _lying(args[constant.value.place].detach(), constant)
        device = next((args[place].device for place in recipe.frozen), torch.device("cpu"))
        wanted: dict[int, list[int]] = {}
        for number, constant in enumerate(recipe.constants):
            if isinstance(constant.value, Computed):
                wanted.setdefault(constant.value.step, []).append(number)
        for at, step in enumerate(recipe.steps):
            made[at] = _taken(step, args, made, device)
            for number in wanted.get(at, ()):
                constant = recipe.constants[number]
                assert isinstance(constant.value, Computed)
                values[number] = _lying(_part(made, constant.value), constant)
            for used in last.get(at, ()):
                made.pop(used, None)  # in float64, all at once would be several times the model
        return [values[number] for number in range(len(recipe.constants))]


def _part(made: Mapping[int, Any], value: Computed) -> torch.Tensor:
    return made[value.step] if value.index is None else made[value.step][value.index]


def _taken(step: Step, args: Sequence[Any], made: Mapping[int, Any], device: torch.device) -> Any:
    def value(x: Any) -> Any:
        if isinstance(x, Argument):
            return args[x.place].detach()
        if isinstance(x, Computed):
            return _part(made, x)
        return on_device(x, device) if isinstance(x, torch.Tensor) else x

    return step.target(*pytree.tree_map(value, step.args), **pytree.tree_map(value, dict(step.kwargs)))


def _last_uses(recipe: Recipe) -> dict[int, list[int]]:
    """By step: the steps whose results nobody needs after it, itself among them."""
    last: dict[int, int] = {}
    for at, step in enumerate(recipe.steps):
        last[at] = at
        for leaf in pytree.tree_leaves((step.args, dict(step.kwargs))):
            if isinstance(leaf, Computed):
                last[leaf.step] = at
    found: dict[int, list[int]] = {}
    for step_number, at in last.items():
        found.setdefault(at, []).append(step_number)
    return found


def _lying(value: torch.Tensor, constant: Constant) -> torch.Tensor:
    """The value as the program expects it to lie."""
    if tuple(value.shape) != constant.sizes:
        raise CallError(f"a constant is {tuple(value.shape)}, and the program was made for {constant.sizes}")
    if value.stride() == constant.strides:
        return value
    room = torch.empty_strided(constant.sizes, constant.strides, dtype=value.dtype, device=value.device)
    return room.copy_(value)


__all__ = ["FrozenProgram", "Keeping", "constants_of"]
