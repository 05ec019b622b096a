"""The one place for what differs among the torch versions Litz accepts (2.11 to 2.13).

In: the installed torch. Out: answers that hold for all of them. A difference is named here as a function or
a constant, with the versions it applies to; no other module asks for torch's version.
"""

from __future__ import annotations

import re

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 13)


def parse_version(text: str) -> tuple[int, int, int]:
    """`"2.13.0+cpu"` → `(2, 13, 0)`; pre-release and local parts are ignored."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def torch_version() -> tuple[int, int, int]:
    import torch

    return parse_version(torch.__version__)


def recompile_reason() -> str | None:
    """Within a backend's call: what Dynamo found changed since it compiled the function before; None the first time.

    There is no public way to ask; where the private one is not as in the versions known, nothing is said.
    """
    from torch._dynamo import utils

    context = getattr(utils, "get_metrics_context", lambda: None)()
    return getattr(context, "_metrics", {}).get("recompile_reason")


def torch_library() -> str | None:
    """Path of the library that holds ATen, SLEEF and the C shim."""
    return _loaded_library("libtorch_cpu")


def torch_exports(function: str) -> bool:
    """Whether that library has the function for others to call."""
    import ctypes

    path = torch_library()
    return path is not None and hasattr(ctypes.CDLL(path), function)


def openmp_library() -> str | None:
    """Path of the OpenMP runtime torch itself uses, so that kernels share its threads."""
    return _loaded_library("libgomp") or _loaded_library("libomp") or _loaded_library("libiomp5")


def _loaded_library(stem: str) -> str | None:
    import os
    from pathlib import Path

    import torch

    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").rpartition(" ")[2]
                if os.path.basename(path).startswith((stem + ".", stem + "-")):
                    return path
    except OSError:
        pass  # no procfs on this system: look beside torch instead
    for found in sorted((Path(torch.__file__).parent / "lib").glob(stem + "*")):
        return str(found)
    return None


class ReplayTable:
    """What torch 2.11's functionalisation asks of the tracer below it: the node of each tensor it is about to sync.

    2.13 asks through a method that `capture/joint.py` overrides; 2.11 reads `tracer.tensor_tracker` of whatever mode
    stands in the proxy's place. It uses the node to annotate what PyTorch's own tracer would record, so any will do.
    """

    class _Entry:
        node = None

        @property
        def proxy(self) -> ReplayTable._Entry:
            return self

    def __init__(self) -> None:
        self.tensor_tracker = self
        self._entry = self._Entry()

    def __getitem__(self, tensor: object) -> ReplayTable._Entry:
        return self._entry
