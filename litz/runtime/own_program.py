"""Programs that a function of the user's own has compiled (the option `inner_compile`).

In: a split graph, and what the function made of it. Out: an `OwnProgram` in an artefact's place, and `OwnExecutable`,
which is called as an `Executable` is. Nothing of it can be kept for other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from litz.capture.forward_mode import runs_as_written
from litz.errors import CallError, LoweringError, OptionError
from litz.graph.sizes import varies
from litz.report import Built

_NAME = "inner_compile"


@dataclass(frozen=True)
class OwnProgram:
    function: Callable[..., Any]
    built: Built

    def private_outputs(self) -> frozenset[int]:
        """None: whatever it has made of the graph may hold on to what it returns."""
        return frozenset()


class OwnExecutable:
    graphs = None  # no CUDA graphs are captured of it

    def __init__(self, program: OwnProgram):
        self.function, self.built = program.function, program.built
        self.eager: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> list[Any]:
        if self.eager is not None and runs_as_written(args):
            return self.eager(*args)
        results = self.function(*args)
        if not isinstance(results, (tuple, list)):
            kind = type(results).__name__
            raise CallError(f"what {_NAME} has compiled returned a {kind}, where a graph's results are a tuple or list")
        return list(results)

    def consume(self, args: list[Any], overwrite: bool = False) -> list[Any]:
        given = tuple(args)
        args.clear()
        return self(*given)


def compile_by_own(function: Callable[..., Any], graph: fx.GraphModule, part: str) -> OwnProgram:
    """`function` is given the graph and values like its inputs."""
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    if any(map(varies, inputs)):
        raise LoweringError(f"{_NAME} is given graphs of sizes that are known")  # and is, for each combination of them
    graph.recompile()
    try:
        compiled = function(graph, inputs)
    except Exception as error:
        raise OptionError(f"{_NAME} raised {type(error).__name__} for a {part}: {error}", stage=_NAME) from error
    if not callable(compiled):
        raise OptionError(f"{_NAME} returned a {type(compiled).__name__} for a {part}, and not a function", stage=_NAME)
    return OwnProgram(compiled, Built(part, 0, 0, {}, 0))


__all__ = ["OwnExecutable", "OwnProgram", "compile_by_own"]
