"""`litz.explain`: a model compiled and run once more to be looked at, and a page about it.

In: a model and its arguments. Out: an `Explanation`, and the page as one HTML file.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

import litz
from litz.debug.step import Subject, mean_square
from litz.errors import CaptureError, OptionError
from litz.explanation.breaks import counted_breaks, counted_since, with_breaks
from litz.explanation.excerpts import excerpts_for
from litz.explanation.explanation import Explanation, Made
from litz.explanation.gather import Gathering
from litz.explanation.page import write_page
from litz.graph.rules import SUBJECTS
from litz.options import Options
from litz.watch import watching

_MOST_SECONDS = 0.1  # of what compiling took, for runs after the first


def explain(
    model: Callable[..., Any],
    *args: Any,
    path: str | Path | None = "litz_explain.html",
    options: Mapping[str, Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles `model` and calls it with the other arguments, a few times, and writes the page to `path`.

    `options` are those of `litz.compile`. `after` is given each result: `lambda loss: loss.backward()`. Without it,
    where results need gradients, those of their sum are asked for, so that the backward is there to be seen. Gradients
    of parameters are left as they were. A model that is compiled already is seen anew.
    """
    Options.parse(dict(options or {}))
    if not callable(model):
        raise OptionError(f"a {type(model).__name__} cannot be called", hint="give a module or a function")
    written = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    gathering, before = Gathering(), counted_breaks()
    compiled = torch.compile(written, backend=_own_backend(options))
    step = _step(compiled, args, kwargs, after)
    # Dynamo counts what other backends have compiled of a function among its limit: so many pages would be the last.
    unlimited = torch._dynamo.config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20)
    subject = Subject(written, args, kwargs, mean_square)
    with watching(gathering), subject.undisturbed(), unlimited:
        subject.forget()
        first = _seconds(step)
        times = [_seconds(step)]
        while sum(times) + times[0] < _MOST_SECONDS * first and len(times) < 10:
            times.append(_seconds(step))
        explanation = explained(gathering, _name_of(written), before, first, min(times))
    if path is not None and explanation.pieces:
        write_page(explanation, Path(path))
    refuse_nothing(explanation)
    return explanation


def explained(
    gathering: Gathering, title: str, before: Mapping[str, int], first: float | None = None, step: float | None = None
) -> Explanation:
    """`before`: the graph breaks that Dynamo had counted before."""
    pieces, breaks = with_breaks(gathering.pieces(), counted_since(before))
    target = str(gathering.watched[0].ctx.target) if gathering.watched else ""
    return Explanation(
        title=title,
        made=Made(litz.__version__, torch.__version__, platform.python_version(), target),
        pieces=pieces,
        breaks=breaks,
        excerpts=excerpts_for(pieces, breaks),
        lines=gathering.texts.lines,
        texts=gathering.texts.texts,
        attention_rules=tuple(rule.name for rule in SUBJECTS["attention"]),
        first_call=first,
        step=step,
    )


def refuse_nothing(explanation: Explanation) -> None:
    """There is no program to be explained: say why."""
    if any(piece.stages and piece.left_to_eager is None for piece in explanation.pieces):
        return
    why = [f"{piece.source or 'a graph'}: {piece.left_to_eager}" for piece in explanation.pieces if piece.left_to_eager]
    why += [f"{one.source or 'a graph break'}: {one.why.splitlines()[0]}" for one in explanation.breaks]
    raise CaptureError(
        "nothing was compiled" + (": " + "; ".join(why) if why else ": no graph came from it"),
        hint='a model has to be called, and to compute with tensors; in a script, by torch.compile(…, backend="litz")',
    )


def _own_backend(options: Mapping[str, Any] | None) -> Callable[..., Any]:
    """A backend that no other compile has used: Dynamo then compiles anew, and leaves what it has alone."""
    from litz.capture.backend import litz as backend

    return lambda graph_module, inputs: backend(graph_module, inputs, options=options)


def _step(
    compiled: Callable[..., Any], args: Any, kwargs: Any, after: Callable[[Any], Any] | None
) -> Callable[[], None]:
    def step() -> None:
        result = compiled(*args, **kwargs)
        if after is not None:
            after(result)
            return
        needing = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        if needing and torch.is_grad_enabled():
            torch.autograd.backward(needing, [torch.ones_like(t) for t in needing])

    return step


def _seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _name_of(model: Any) -> str:
    return type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", repr(model))


__all__ = ["explain", "explained", "refuse_nothing"]
