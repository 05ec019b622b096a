"""`NamedKernels`: which loops stand behind a name that a profiler shows.

In: compiles that its `hooks` watch (`litz.compile(model, after=names.hooks)`). Out: for the name of a generated
function, a line about its kernel, or the whole of it: its loops and, where it is for a GPU, how they are walked there.

A function is named by its text, so one name may stand for many steps of many programs; all of them are the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from litz.codegen.llvm.gpu import as_rendered
from litz.codegen.llvm.naming import Named
from litz.codegen.llvm.render import Rendering
from litz.codegen.plan_gpu import plan_for_gpu
from litz.loop.expr import Axis
from litz.loop.text import print_kernel
from litz.target import GpuTarget, Machine

_MOST_ORIGINS = 6


class NamedKernels:
    def __init__(self) -> None:
        self._found: dict[str, Named] = {}

    @property
    def hooks(self) -> Mapping[str, Callable[[Rendering], None]]:
        """For the option `after`."""
        return {"render": self._take}

    def _take(self, rendering: Rendering) -> None:
        for name, named in rendering.named.items():
            self._found.setdefault(name, named)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def line(self, name: str) -> str:
        """Its axes, and the operators that it was made of."""
        kernel = self._found[name].kernel
        shape = _sizes(kernel.axes) + (f" over {_sizes(kernel.reduced)}" if kernel.reduced else "")
        origins = ", ".join(kernel.origins[:_MOST_ORIGINS])
        more = len(kernel.origins) - _MOST_ORIGINS
        return f"[{shape}] {origins}" + (f" and {more} more" if more > 0 else "")

    def text(self, name: str, target: Machine) -> str:
        """Its loops; and its plan, where the target is a GPU."""
        named = self._found[name]
        kernel = as_rendered(named.kernel) if isinstance(target, GpuTarget) else named.kernel
        loops = print_kernel(kernel, named.buffers)
        return f"{plan_for_gpu(kernel)}\n{loops}" if isinstance(target, GpuTarget) else loops


def _sizes(axes: tuple[Axis, ...]) -> str:
    return "×".join(str(axis.size) for axis in axes) or "1"


__all__ = ["NamedKernels"]
