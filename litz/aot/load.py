"""`litz.load`: a file of `litz.aot_compile` in, a callable out. Nothing is compiled, nor is the model's code needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.aot.package import Package
from litz.aot.shared_library import container_in
from litz.capture.forward_mode import carries_tangents
from litz.errors import CacheError, CallError, RunFailed, UnsupportedPlatform
from litz.runtime.artifact import Compiled
from litz.runtime.bind import bind
from litz.runtime.container import unpack
from litz.runtime.encode import Unreadable
from litz.runtime.layout import on_device
from litz.target import GpuTarget, detect


def load(path: str | Path) -> Loaded:
    """Raises before any of it runs where the file is damaged, of another format, or for another processor."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CacheError(f"{file} cannot be read: {error}") from error
    try:
        found = unpack(container_in(data))
    except Unreadable as error:
        raise CacheError(f"{file} is no model that this version of Litz can load: {error}") from error
    if not isinstance(found, Package):
        raise CacheError(f"{file} holds no model: it is an entry of a cache")
    level = _for_this_processor(found, file)
    device = _device_for(level, file)
    moved = {id(c): on_device(c, device) for c in found.constants}  # tied parameters stay one tensor
    found = replace(found, constants=tuple(moved[id(c)] for c in found.constants))
    return Loaded(found, level, str(file), device)


def _for_this_processor(package: Package, file: Path) -> Compiled:
    here = detect(None)
    for level in package.levels:
        target = level.forward.target.host
        if target.arch == here.arch and target.features_needed <= here.features_needed:
            return level
    least = package.levels[-1].forward.target.host
    lacking = sorted(least.features_needed - here.features_needed)
    without = f", and this one lacks {', '.join(lacking)}" if least.arch == here.arch else ""
    raise UnsupportedPlatform(
        f"{file} is for {least.arch} processors with {least.isa}{without}.",
        hint='compile it with options={"cpu_levels": [...]} for the processors it is to run on',
    )


def _device_for(level: Compiled, file: Path) -> torch.device:
    """Where it runs: on a GPU, the current one, if that can run it."""
    if not isinstance(level.forward.target, GpuTarget):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UnsupportedPlatform(
            f"{file} is for a GPU of NVIDIA's, and torch finds none here.",
            hint="load it where `torch.cuda.is_available()`, or compile the model on the CPU",
        )
    major, minor = torch.cuda.get_device_capability()
    for kernel in level.forward.kernels:
        kernel.check_runs_on(10 * major + minor)
    return torch.device("cuda", torch.cuda.current_device())


class Loaded:
    """A model that was compiled ahead of time: called with such arguments as it was compiled for."""

    def __init__(self, package: Package, level: Compiled, name: str, device: torch.device):
        self.package, self.level, self.name, self.device = package, level, name, device
        self._arguments = pytree.treespec_loads(package.arguments_form)
        self._outputs = None if package.outputs_form is None else pytree.treespec_loads(package.outputs_form)
        self._positional = list(self._names_by_position())
        self._run = bind(level, None, self._refuse)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self.package.inputs_for(self._flat(args, kwargs))
        elsewhere = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.device != self.device), None)
        if elsewhere is not None:
            raise CallError(f"{self.name} was loaded on {self.device}, and an argument is on {elsewhere}")
        if carries_tangents(inputs):
            raise CallError(
                f"{self.name} is called inside forward-mode differentiation, and has no derivative",
                hint="make a file of its derivative: litz.aot_compile(lambda x, t: torch.func.jvp(f, (x,), (t,)), …)",
            )
        try:
            with torch.no_grad():
                results = self._run(*inputs)
        except CallError as error:
            failure = error.__context__
            if isinstance(failure, RunFailed):  # for which `_refuse` was asked for something in its place
                raise failure.error from None
            raise
        return tuple(results) if self._outputs is None else pytree.tree_unflatten(results, self._outputs)

    def _flat(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        for name in self._positional[len(args) :]:
            if name is None or name not in kwargs:
                break
            args = (*args, kwargs.pop(name))
        names = self._arguments.child(1).context
        unknown = [name for name in kwargs if name not in names]
        missing = [name for name in names if name not in kwargs]
        if unknown or missing:
            told = f"there is no argument {unknown[0]!r}" if unknown else f"the argument {missing[0]!r} is missing"
            if unknown and unknown[0] in self._positional:
                twice = unknown[0] in self._positional[: len(args)]
                told = f"{unknown[0]!r} is given twice"
                told = told if twice else f"the argument {self._positional[len(args)]!r} is missing"
            raise CallError(f"{self.name}: {told}; it was compiled for {self.signature}")
        flat, form = pytree.tree_flatten(_in_order((args, {name: kwargs[name] for name in names}), self._arguments))
        if form != self._arguments:
            raise CallError(f"{self.name}: its arguments come otherwise than it was compiled for: {self.signature}")
        return flat

    def _names_by_position(self) -> Iterator[str | None]:
        """The names of arguments that were given by their position; None of one that is not a single value."""
        leaves = iter(self.package.arguments)
        for child in self._arguments.child(0).children():
            names = [next(leaves).name for _ in range(child.num_leaves)]
            yield names[0] if child.is_leaf() else None

    @property
    def signature(self) -> str:
        return "; ".join(map(str, self.package.arguments))

    def _refuse(self, *_: Any) -> Any:
        raise CallError(
            f"{self.name}: arguments share memory, or are related otherwise than when it was compiled",
            hint="give it tensors of their own (`clone`)",
        )

    def __repr__(self) -> str:
        return f"<{self.name}, compiled by Litz for {self.signature}>"


def _in_order(value: Any, form: pytree.TreeSpec) -> Any:
    """With dictionaries in the order they had when it was compiled."""
    parts = form.children()
    if type(value) is dict and form.type is dict and value.keys() == set(form.context):
        return {key: _in_order(value[key], part) for key, part in zip(form.context, parts, strict=True)}
    if type(value) in (tuple, list) and form.type is type(value) and len(parts) == len(value):
        return type(value)(_in_order(each, part) for each, part in zip(value, parts, strict=True))
    return value


__all__ = ["Loaded", "load"]
