"""Plants the fault that `PLANTED_FAULT` names in Litz, in every process that has this folder on its path.

Python imports a module of this name when it starts. Nothing of Litz knows of it: the fault is in place as soon as
`litz.pipeline` has been imported, as if it were written there.

With `FOR_TORCHS_MINIFIER`, what Litz compiles is a function that has the parameters of its graph, which torch's own
minifier asks for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def _plant(_: ModuleType) -> None:
    from benchmarks.planted.faults import FAULTS

    FAULTS[os.environ["PLANTED_FAULT"]].plant()


def _give_parameters(backend: Any) -> None:
    real = backend.litz

    def litz(graph_module: Any, inputs: Any, **how: Any) -> Callable[..., Any]:
        compiled = real(graph_module, inputs, **how)

        def run(*args: Any) -> Any:
            return compiled(*args)

        for name in ("zero_grad", "named_parameters", "named_buffers"):
            setattr(run, name, getattr(graph_module, name))
        return run

    backend.litz = litz


class _Changed(importlib.abc.Loader):
    def __init__(self, real: Any, change: Callable[[ModuleType], None]):
        self.real, self.change = real, change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        self.change(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]):
        self.changes = changes

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Changed(spec.loader, self.changes[name])
        return spec


_CHANGES = {
    "PLANTED_FAULT": ("litz.pipeline", _plant),
    "FOR_TORCHS_MINIFIER": ("litz.capture.backend", _give_parameters),
}
sys.meta_path.insert(0, _Finder({name: change for key, (name, change) in _CHANGES.items() if os.environ.get(key)}))
