"""A graph, its inputs and the options it is compiled with, as a Python file that shows how that fails.

In: a graph as a backend of `torch.compile` gets it. Out: a `Reproduction`, which has a text; and from a file with such
a text, or a folder that is one as a package, the `Reproduction`. The text needs torch and Litz alone, and what its
`setup` imports.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx

from litz.capture.lift_state import lift_state
from litz.debug.given import Given, describe
from litz.debug.graph_text import (
    Unwritable,
    inner_graphs,
    modules_of,
    path_of,
    reached,
    read_graphs,
    write_graph,
)
from litz.errors import ParseError
from litz.graph.rewrite import Rule

_BEGIN, _END = "# setup", "# end of setup"
_WIDE = 116  # columns of a line


@dataclass(frozen=True)
class Reproduction:
    """`setup` is Python that is run first, such as imports of operators of your own. `slower_than`: how many times
    eager's time is a failure, if being slow may be one. `folder`: where what is kept of inputs lies. `inner`: graphs
    that calls are given, as those of `cond` are."""

    graph: fx.Graph
    given: tuple[Given, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    setup: str = ""
    slower_than: float | None = None
    folder: Path | None = None
    inner: Mapping[str, fx.Graph] = field(default_factory=dict)

    @property
    def graphs(self) -> Mapping[str, fx.Graph]:
        """With those inside that are called, by the names of their functions."""
        return {"forward": self.graph, **reached(self.graph, self.inner)}

    @property
    def calls(self) -> int:
        return sum(node.op.startswith("call") for graph in self.graphs.values() for node in graph.nodes)

    def text(self, title: str = "A graph, and inputs of it.", files: Path | None = None) -> str:
        """`files`: the folder with what is kept, which is then written into the text."""
        beside = files is None and any(given.kept for given in self.given)
        inputs = [given.text() if files is None else given.within(files) for given in self.given]
        modules = {name for graph in self.graphs.values() for name in modules_of(graph)} | {*_modules_of(self.options)}
        modules |= {name for name in ("base64", "zlib") if any(f"{name}." in each for each in inputs)}
        imports = sorted(f"import {name}" for name in modules) + ["from litz.debug.reproduce import main"]
        imports += ["from pathlib import Path"] if beside else []
        how = {"options": _spelled(self.options)} if self.options else {}
        how |= {"slower_than": repr(self.slower_than)} if self.slower_than is not None else {}
        functions = [write_graph(graph, name, method=True) for name, graph in self.graphs.items()]
        lines = [f'"""{title}"""', *([_BEGIN, *self.setup.splitlines(), _END] if self.setup else []), *imports]
        lines += ["here = Path(__file__).parent"] if beside else []
        lines += ["", "class Graph(torch.nn.Module):"]
        lines += textwrap.indent("\n".join(functions), "    ").split("\n")
        lines += ["", "def inputs():", "    return [", *_packed(inputs), "    ]", ""]
        lines += [f"how = {{{', '.join(f'{name!r}: {value}' for name, value in how.items())}}}"]
        return "\n".join([*lines, 'if __name__ == "__main__":', "    main(Graph(), inputs, **how)", ""])

    @staticmethod
    def of(graph_module: fx.GraphModule, inputs: Sequence[Any], folder: Path, **how: Any) -> Reproduction:
        """What is small enough of the inputs is kept in the folder; the rest is described."""
        lifted, state = lift_state(_alone(graph_module, inputs))
        given = tuple(describe(x, folder, keep=True) for x in (*inputs, *state.values()))
        if not torch.is_grad_enabled():
            given = tuple(replace(each, requires_grad=False) for each in given)
        graph, inner = inner_graphs(lifted)
        return Reproduction(graph, given, folder=folder, inner=inner, **how)

    @staticmethod
    def read(path: Path, folder: Path) -> Reproduction:
        """`path`: a file or a package; what its inputs keep goes to `folder`."""
        file = path / "__init__.py" if path.is_dir() else path
        if not file.is_file():
            raise ParseError(f"there is no reproduction at {path}", hint="litz.debug_compile makes such a folder")
        try:
            text, space = file.read_text(), load(file)
        except Exception as error:  # whatever somebody else's file does
            raise ParseError(
                f"{file} is no reproduction: it raised {type(error).__name__}: {error}",
                hint="litz.debug_compile makes folders that can be read, and litz minify files",
            ) from error
        missing = [name for name in ("Graph", "inputs", "how") if name not in space]
        if missing:
            raise ParseError(f"{file} does not define {missing[0]}: it was not made by litz.debug_compile")
        setup = text.partition(f"{_BEGIN}\n")[2].partition(f"\n{_END}\n")[0] if f"{_BEGIN}\n" in text else ""
        torch.manual_seed(0)
        given = tuple(describe(x, folder, keep=True) for x in space["inputs"]())
        graph, inner = read_graphs(text)
        return Reproduction(graph, given, setup=setup, folder=folder, inner=inner, **space["how"])


def load(file: Path) -> dict[str, Any]:
    """What the file defines. Nothing is kept of it: the next one may have the same name."""
    module = ModuleType("litz_reproduction")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    return vars(module)


def _alone(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """The graph as calls of functions and methods: modules it calls are looked into, by Dynamo."""
    if not any(node.op == "call_module" for node in graph_module.graph.nodes):
        return graph_module
    found: list[fx.GraphModule] = []

    def backend(captured: fx.GraphModule, given: Sequence[Any]) -> Any:
        names = {id(x): place for place, x in enumerate(inputs)}
        found.append(_with_inputs_of(captured, [names.get(id(x)) for x in given], given, len(inputs)))
        return captured.forward

    torch._dynamo.reset()
    torch.compile(graph_module, backend=backend, fullgraph=True)(*inputs)
    return found[0]


def _with_inputs_of(
    captured: fx.GraphModule, places: Sequence[int | None], given: Sequence[Any], count: int
) -> fx.GraphModule:
    """The captured graph with the inputs of the one it was captured from; all others are state of its own."""
    root, graph = torch.nn.Module(), fx.Graph()
    own = [graph.placeholder(f"input_{place}") for place in range(count)]
    copies: dict[fx.Node, fx.Node] = {}
    placeholders = [node for node in captured.graph.nodes if node.op == "placeholder"]
    for node, place, value in zip(placeholders, places, given, strict=True):
        if place is None:
            root.register_buffer(node.name, value.detach().requires_grad_(value.requires_grad))
        copies[node] = graph.get_attr(node.name) if place is None else own[place]
    for node in captured.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            setattr(root, node.target, getattr(captured, node.target))
    return fx.GraphModule(root, graph)


# -- options -----------------------------------------------------------------------------------------
def _spelled(value: Any) -> str:
    match value:
        case bool() | int() | str() | None:
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        case Mapping():
            return f"{{{', '.join(f'{_spelled(k)}: {_spelled(v)}' for k, v in value.items())}}}"
        case tuple() | list():
            return f"({''.join(_spelled(v) + ', ' for v in value)})"
        case Rule():
            return _place_of(value)
    return path_of(value)


def _place_of(value: Any) -> str:
    """The name under which a module has the value."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and (own := getattr(module, "__dict__", None)) is not None:
            for key, held in list(own.items()):
                if held is value:
                    return f"{name}.{key}"
    raise Unwritable(f"no module has {value!r} under a name", hint="move it from the script to a module")


def _modules_of(options: Any) -> Iterator[str]:
    match options:
        case Mapping():
            for item in (*options.keys(), *options.values()):
                yield from _modules_of(item)
        case tuple() | list():
            for item in options:
                yield from _modules_of(item)
        case bool() | int() | float() | str() | None:
            pass
        case _:
            yield (_place_of if isinstance(options, Rule) else path_of)(options).rpartition(".")[0]


def _packed(items: Sequence[str]) -> list[str]:
    """As many to a line as it holds."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > _WIDE - 12:
            lines.append("")
        lines[-1] += f" {item}," if lines[-1] else f"{item},"
    return [f"        {line}" for line in lines if line]


__all__ = ["Reproduction", "load"]
