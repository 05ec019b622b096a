"""`litz.debug_compile`: compile a graph, and save it so that whatever goes wrong with it can be made small.

In: a graph and its inputs, as a backend of `torch.compile` gets them. Out: what Litz compiles of it; a folder that can
be imported, with the graph as Python and its inputs, kept or described; and, printed, the lines that minimise it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from litz.debug.reproduction import Reproduction
from litz.errors import OptionError
from litz.frontdoor import compile
from litz.options import Options

_SCRIPT = """\
# Litz saved {calls} calls and {inputs} inputs ({kept} kept as they are) in {place}
# If what it compiles is wrong, paste this into Python, or run `litz minify {place}`:
from litz.debug.minify import minify
print(minify({place!r}))
"""


def debug_compile(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    folder: Path | str = "litz_debug",
    setup: str = "",
    **options: Any,
) -> Callable[..., Any]:
    """Itself a backend: `torch.compile(model, backend=litz.debug_compile)` saves every graph of a model.

    Each graph gets a folder of its own in `folder`. `setup` is Python that a process needs before it can run the graph,
    such as the import of operators of your own. The options are those of `litz.compile`.
    """
    from litz.capture.backend import litz

    Options.parse(options)
    if not isinstance(graph_module, fx.GraphModule):
        raise OptionError(
            f"litz.debug_compile takes a graph, not a {type(graph_module).__name__}",
            hint="torch.compile(model, backend=litz.debug_compile) calls it with each graph of a model",
        )
    place = _free(Path(folder).absolute())
    reproduction = Reproduction.of(graph_module, inputs, place, options=options, setup=setup)
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(reproduction.text(f"Saved by litz.debug_compile: {reproduction.calls} calls."))
    kept = sum(given.kept is not None for given in reproduction.given)
    print(_SCRIPT.format(calls=reproduction.calls, inputs=len(reproduction.given), kept=kept, place=str(place)))
    if any(node.op == "call_module" for node in graph_module.graph.nodes):
        return compile(graph_module, **options)  # Dynamo looks into the modules
    return litz(graph_module, inputs, options=options)


def _free(folder: Path) -> Path:
    """One that is not there yet."""
    taken = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return folder / next(name for n in range(len(taken) + 1) if (name := f"graph_{n}") not in taken)


__all__ = ["debug_compile"]
