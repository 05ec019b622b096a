"""Plants the fault that `PLANTED_FAULT` names in Litz, in every process that has this folder on its path.

Python imports a module of this name when it starts. Nothing of Litz knows of it: the fault is in place as soon as
`litz.pipeline` has been imported, as if it were written there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

_LAST = "litz.pipeline"  # which imports every stage


class _Planting(importlib.abc.Loader):
    def __init__(self, real: Any):
        self.real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        from benchmarks.planted.faults import FAULTS

        FAULTS[os.environ["PLANTED_FAULT"]].plant()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != _LAST:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Planting(spec.loader)
        return spec


if os.environ.get("PLANTED_FAULT"):
    sys.meta_path.insert(0, _Finder())
