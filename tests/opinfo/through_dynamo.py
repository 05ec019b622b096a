"""A case through the front door, as users get it: by way of Dynamo, with all that Litz compiles on the way watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

import litz
from litz.capture.backend import litz as backend_of_litz
from litz.context import Context
from tests.opinfo.samples import Case, Derivative, with_gradients

_PER_SIZE = "compiled for each combination of sizes: "


class Watched:
    """A backend for `torch.compile`, and the `Context` of every compile while it is watched. Litz's own failures are
    raised, not left to eager."""

    def __init__(self) -> None:
        self.graphs = 0
        self.contexts: list[Context] = []

    def backend(self, graph_module: Any, example_inputs: Any) -> Any:
        self.graphs += 1
        return backend_of_litz(graph_module, example_inputs, options={"verify": True})

    @contextmanager
    def watching(self) -> Iterator[None]:
        begin = Context.__post_init__

        def noted(ctx: Context) -> None:
            begin(ctx)
            self.contexts.append(ctx)

        with mock.patch.object(Context, "__post_init__", noted):
            yield

    @property
    def left_to_eager(self) -> list[str]:
        return [ctx.left_to_eager for ctx in self.contexts if ctx.left_to_eager is not None]

    @property
    def per_size(self) -> list[str]:
        """Why a graph was compiled for each combination of sizes."""
        notes = [note for ctx in self.contexts for note in ctx.notes]
        return [note.removeprefix(_PER_SIZE) for note in notes if note.startswith(_PER_SIZE)]

    @property
    def calls(self) -> tuple[str, ...]:
        return tuple(sorted({name for ctx in self.contexts for built in ctx.built for name in built.calls}))

    @property
    def kernels(self) -> int:
        return sum(built.kernels for ctx in self.contexts for built in ctx.built)


def by_litz_jvp(case: Case) -> Callable[..., Any]:
    """The case's function, differentiated by `litz.jvp` and not by torch."""

    def by(function: Any, primals: Any, tangents: Any) -> Any:
        return litz.jvp(function, verify=True)(primals, tangents)

    assert isinstance(case.call, Derivative)
    return replace(case, call=replace(case.call, by=by)).function


class _Name(str):
    __repr__ = str.__str__


def flat(case: Case) -> Callable[..., Any]:
    """The operator as a function of all its arguments' leaves, written out: Dynamo takes longer over a tree of them
    than over the operator."""
    names = [_Name(f"a{i}") for i in range(len(case.leaves))]
    args, kwargs = pytree.tree_unflatten(names, case.spec)
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    space: dict[str, Any] = {"call": case.call}
    exec(f"def run({', '.join(names)}):\n    return call({', '.join(given)})", space)
    return space["run"]


def executable(case: Case, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of leaves as one of the case's tensors, that gives what `case.function` does."""

    def forward(*tensors: torch.Tensor) -> list[Any]:
        leaves = list(case.leaves)
        for position, tensor in zip(case.positions, tensors, strict=True):
            leaves[position] = tensor
        return pytree.tree_leaves(function(*leaves))

    if case.backward:
        return lambda *tensors: with_gradients(forward, case.differentiated(tensors))
    return forward


__all__ = ["Watched", "by_litz_jvp", "executable", "flat"]
