"""A program run once: what it returns, its gradients, what it leaves in its inputs, what it raises.

In: the namespace of a program's source, and one of its cases. Out: an `Outcome`.

In training, something may happen around the forward: "hooks" pack what is saved and give it back laid out otherwise;
"written", arguments are written to before the backward, out of autograd's sight, so that the gradients tell what was
read then (of results, one that eager lays out otherwise is a copy); "batched", several tangents come at once, and "in
turn" the same one after the other.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from tests.fuzz.numbers import numbers
from tests.fuzz.program import FuzzProgram
from tests.opinfo.samples import tangent

SEED = 1234
Space = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    returned: list[Any]
    gradients: list[Any]
    inputs: list[Any]  # as they are afterwards
    error: type[Exception] | None = None
    message: str = ""

    @property
    def everything(self) -> list[Any]:
        return [*self.returned, *self.gradients, *self.inputs]


_MODULES: deque[str] = deque(maxlen=64)
_numbers = itertools.count()


def namespace(source: str, given: Callable[..., torch.Tensor] = numbers) -> Space:
    """The program's module. Dynamo may look it up by its name, for as long as it is likely to be of use."""
    module = ModuleType(f"drawn_{next(_numbers)}")
    if len(_MODULES) == _MODULES.maxlen:
        sys.modules.pop(_MODULES[0], None)
    _MODULES.append(module.__name__)
    sys.modules[module.__name__] = module
    found: Space = module.__dict__
    exec(source, found)
    found["numbers"] = given
    return found


def cases_of(space: Space) -> list[tuple[Any, ...]]:
    return space.get("CASES") or [()]


def is_traced(space: Space) -> bool:
    """Whether the program goes through Dynamo."""
    return "CASES" in space or "base" in space


@contextmanager
def mode_of(space: Space) -> Iterator[None]:
    """Gradients on or off, as the program is meant to run."""
    with warnings.catch_warnings(), torch.set_grad_enabled("base" in space or bool(space.get("TRAINING"))):
        warnings.simplefilter("ignore")
        yield


def run(space: Space, case: tuple[Any, ...], program: Callable[..., list[Any]] | None = None) -> Outcome:
    """`program` in place of the source's own, for the same inputs."""
    program = program or space["program"]
    given = space["inputs"](*case)
    taken = [_leaf(x) for x in given] if space.get("TRAINING") else given
    torch.manual_seed(SEED)
    try:
        with _hooks() if space.get("AROUND") == "hooks" else nullcontext():
            returned = list(program(*taken))
        if space.get("AROUND") == "written":
            _write(taken)
        gradients = _gradients(returned, taken, space.get("AROUND")) if space.get("TRAINING") else []
    except Exception as error:
        return Outcome([], [], given, type(error), str(error))
    return Outcome([r.detach() if isinstance(r, torch.Tensor) else r for r in returned], gradients, given)


def _leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.is_floating_point())


def _hooks() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(
        lambda t: (t.detach().reshape(-1).clone(), t.shape), lambda packed: packed[0].view(packed[1])
    )


def _write(values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if all(stride or size < 2 for size, stride in zip(value.shape, value.stride(), strict=True)):
            value.data.mul_(-0.5)


def _gradients(returned: Sequence[Any], taken: Sequence[Any], around: str | None) -> list[Any]:
    used = [r for r in returned if isinstance(r, torch.Tensor) and r.requires_grad]
    wanted = [t for t in taken if isinstance(t, torch.Tensor) and t.requires_grad]
    if not used or not wanted:
        return [None] * len(wanted)
    tangents = [tangent(r) for r in used]
    twice = [torch.stack([t, t * -2]) for t in tangents]
    if around == "in turn":
        each = [
            torch.autograd.grad(used, wanted, [t[i] for t in twice], allow_unused=True, retain_graph=True)
            for i in range(2)
        ]
        return [None if a is None else torch.stack([a, b]) for a, b in zip(*each, strict=True)]
    batched = around == "batched"
    found = torch.autograd.grad(
        used, wanted, twice if batched else tangents, allow_unused=True, is_grads_batched=batched
    )
    return [None if g is None else g.contiguous() for g in found]  # how a gradient lies in memory is nobody's promise


def runs(program: FuzzProgram) -> bool:
    """Whether eager takes all of it, gradients included; a statement that is meant to raise may, in the last case."""
    space = namespace(str(program))
    with mode_of(space):
        errors = [run(space, case).error for case in cases_of(space)]
    return not any(errors[:-1] if any(line.raises for line in program.lines) else errors)


__all__ = ["Outcome", "Space", "cases_of", "is_traced", "mode_of", "namespace", "run", "runs"]
