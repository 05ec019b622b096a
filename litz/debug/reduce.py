"""Smaller graphs: every node, input and size that is not needed for a failure, away.

In: a `Reproduction`, and whether another one still shows the same. Out: the smallest that was found.

A node that is taken out becomes an input, with the value it had, if others need it; so a graph may lose its beginning,
its end, or its middle. Nodes go in large runs first, then in ever smaller ones.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.debug.given import Given, copied, describe
from litz.debug.graph_text import graph_module
from litz.debug.reproduction import Reproduction

Shows = Callable[[Reproduction], bool]
Ahead = Callable[[list[Reproduction]], None]
_SMALL = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)  # sizes to try, besides halves
_MOST_TRIED = 6  # for one size
_PLACES = 8  # that a graph is looked at in, before its halves are


# -- nodes -------------------------------------------------------------------------------------------
def without_nodes(
    whole: Reproduction, shows: Shows, folder: Path, ahead: Ahead = lambda candidates: None
) -> Reproduction:
    """As few nodes as show it: each of what is left is needed. `ahead` is told of what will be asked about, if the
    answers before are no."""
    values = _Values(whole).computed()
    calls = [node for node in whole.graph.nodes if node.op.startswith("call")]

    def first_of(parts: Sequence[Sequence[fx.Node]]) -> tuple[Reproduction, Sequence[fx.Node]] | None:
        """The first of these parts that shows it. They are tried two at a time."""
        for at in range(0, len(parts), 2):
            made = [(_part(whole, part, values, folder), part) for part in parts[at : at + 2]]
            graphs = [(graph, part) for graph, part in made if graph is not None]
            ahead([graph for graph, _ in graphs])
            for graph, part in graphs:
                if shows(graph):
                    return graph, part
        return None

    best, kept = whole, calls
    # What fails is often in one place; a small part is tried in a fraction of the time that a half takes.
    width = -(-len(calls) // _PLACES)
    places = [calls[at : at + width] for at in range(0, len(calls), width)] if len(calls) > _PLACES else []
    found = first_of(places)
    if found is not None:
        best, kept = found[0], [*found[1]]
    run = max(1, len(kept) // 2)
    while kept:
        before = len(kept)
        at = 0
        while at < len(kept):
            starts = range(at, len(kept), run)
            found = first_of([fewer for start in starts if (fewer := kept[:start] + kept[start + run :])])
            if found is None:
                break
            best, fewer = found[0], [*found[1]]
            at = next(place for place, node in enumerate(kept) if node not in fewer)
            kept = fewer
        if run == 1 and len(kept) == before:
            break
        run = max(1, min(run // 2, len(kept) // 2))
    return best


class _Values(fx.Interpreter):
    """What each node gives, before anything later writes to it."""

    def __init__(self, reproduction: Reproduction):
        super().__init__(graph_module(reproduction.graph, reproduction.inner))
        self.reproduction = reproduction
        self.seen: dict[str, Any] = {}

    def computed(self) -> dict[str, Any]:
        inputs = inputs_of(self.reproduction)
        torch.manual_seed(0)
        self.run(*inputs)
        return self.seen

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        self.seen[n.name] = pytree.tree_map(copied, found)
        return found


def inputs_of(reproduction: Reproduction) -> list[Any]:
    """The inputs themselves, as its text makes them."""
    torch.manual_seed(0)
    space = {"torch": torch, "here": reproduction.folder}
    return [eval(given.text(), space) for given in reproduction.given]


def _part(whole: Reproduction, kept: Sequence[fx.Node], values: dict[str, Any], folder: Path) -> Reproduction | None:
    """The graph of these nodes alone; None where one of them takes what cannot be an input."""
    keep, graph = set(kept), fx.Graph()
    given: list[Given] = []
    copies: dict[fx.Node, Any] = {}
    placeholders = [node for node in whole.graph.nodes if node.op == "placeholder"]
    own = dict(zip(placeholders, whole.given, strict=True))
    needed = {used: None for node in whole.graph.nodes if node in keep for used in node.all_input_nodes}
    for node in needed:
        if node in keep:
            continue
        if node.op == "get_attr":
            continue
        value = values.get(node.name)
        if node not in own and not isinstance(value, torch.Tensor):
            if isinstance(value, (bool, int, float)):
                copies[node] = value
                continue
            return None
        copies[node] = graph.placeholder(node.name)
        given.append(own[node] if node in own else describe(value, folder, keep=True))
    for node in whole.graph.nodes:
        if node in keep or (node.op == "get_attr" and node in needed):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results = {used for node in whole.graph.nodes if node.op == "output" for used in node.all_input_nodes}
    ends = [node for node in kept if node in results or not any(user in keep for user in node.users)]
    graph.output(tuple(copies[node] for node in ends))
    return replace(whole, graph=graph, given=tuple(given))


def without_results(whole: Reproduction, shows: Shows) -> Reproduction:
    """Only the result that shows it."""
    return next(filter(shows, _of_one_result(whole)), whole)


def _of_one_result(whole: Reproduction) -> Iterator[Reproduction]:
    (output,) = (node for node in whole.graph.nodes if node.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    for result in (r for r in results if isinstance(r, fx.Node) and len(results) > 1):
        graph, copies = _copy(whole.graph)
        (end,) = (node for node in graph.nodes if node.op == "output")
        end.args = ((copies[result],),)
        yield _alive(replace(whole, graph=graph))


def bypassing(whole: Reproduction, shows: Shows) -> Reproduction:
    """Nodes that stand between an operand of the same form and what uses it, away."""
    best, tried = whole, True
    while tried:
        tried = False
        values = _Values(best).computed()
        for node in reversed([n for n in best.graph.nodes if n.op.startswith("call")]):
            for operand in node.all_input_nodes:
                if not _alike(values.get(node.name), values.get(operand.name)):
                    continue
                graph, copies = _copy(best.graph)
                copies[node].replace_all_uses_with(copies[operand])
                graph.erase_node(copies[node])
                smaller = _alive(replace(best, graph=graph))
                if smaller.calls and shows(smaller):
                    best, tried = smaller, True
                    break
            if tried:
                break
    return best


# -- graphs inside -----------------------------------------------------------------------------------
def without_graphs_inside(whole: Reproduction, shows: Shows) -> Reproduction:
    """A call that is given a graph, as what that graph does; in graphs that stay, calls as one of their operands."""
    best = whole
    while (found := next(filter(shows, _simpler_inside(best)), None)) is not None:
        best = found
    return best


def _simpler_inside(whole: Reproduction) -> Iterator[Reproduction]:
    for name, graph in whole.graphs.items():
        for node in graph.nodes:
            for inner in [used for used in node.all_input_nodes if used.op == "get_attr"]:
                simpler = _in_place(graph, node, whole.inner[inner.target])
                if simpler is not None:
                    yield _with_graph(whole, name, simpler)
    for name, graph in whole.graphs.items():
        if name == "forward":
            continue
        for node in reversed([n for n in graph.nodes if n.op.startswith("call")]):
            for operand in (used for used in node.all_input_nodes if used.op != "get_attr"):
                simpler, copies = _copy(graph)
                copies[node].replace_all_uses_with(copies[operand])
                simpler.erase_node(copies[node])
                yield _with_graph(whole, name, simpler)


def _with_graph(whole: Reproduction, name: str, graph: fx.Graph) -> Reproduction:
    if name == "forward":
        return _alive(replace(whole, graph=graph))
    _clear(graph)
    return replace(whole, inner={**whole.inner, name: graph})


def _in_place(graph: fx.Graph, call: fx.Node, inner: fx.Graph) -> fx.Graph | None:
    """The graph with what is inside in the place of the call, whose last operands are those of the inside; None where
    they are too few."""
    made, copies = _copy(graph)
    there = copies[call]
    flat = [a for a in pytree.arg_tree_leaves(*there.args) if not (isinstance(a, fx.Node) and a.op == "get_attr")]
    taken = [node for node in inner.nodes if node.op == "placeholder"]
    if len(flat) < len(taken):
        return None
    own: dict[fx.Node, Any] = dict(zip(taken, flat[len(flat) - len(taken) :], strict=True))
    with made.inserting_before(there):
        for node in inner.nodes:
            if node.op.startswith("call") or node.op == "get_attr":
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), own.__getitem__)
                own[node] = made.create_node(node.op, node.target, args, kwargs)
    (end,) = (node for node in inner.nodes if node.op == "output")
    results = fx.node.map_arg(end.args[0], own.__getitem__)
    for user in list(there.users):
        if user.target is operator.getitem and isinstance(result := results[user.args[1]], fx.Node):
            user.replace_all_uses_with(result)
            made.erase_node(user)
        elif user.op == "output" and isinstance(results, (tuple, list)):
            before = user.args[0] if isinstance(user.args[0], (tuple, list)) else (user.args[0],)
            user.args = (tuple(chain.from_iterable(results if one is there else (one,) for one in before)),)
        else:
            user.args, user.kwargs = fx.node.map_arg(  # type: ignore[assignment]
                (user.args, user.kwargs), lambda node: results if node is there else node
            )
    made.erase_node(there)
    return made


def _alike(a: Any, b: Any) -> bool:
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return tensors and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _copy(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        copies[node] = made.node_copy(node, copies.__getitem__)
    return made, copies


def _alive(reproduction: Reproduction) -> Reproduction:
    """Without nodes and inputs that nothing needs."""
    graph, given = reproduction.graph, list(reproduction.given)
    _clear(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for place in reversed(range(len(placeholders))):
        if not placeholders[place].users:
            graph.erase_node(placeholders[place])
            del given[place]
    return replace(reproduction, graph=graph, given=tuple(given))


def _clear(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and (node.op == "get_attr" or (node.op.startswith("call") and not _writes(node))):
            graph.erase_node(node)


def _writes(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return "out" in node.kwargs or name == "setitem" or (name.endswith("_") and not name.endswith("__"))


def sharing_inputs(whole: Reproduction, shows: Shows) -> Reproduction:
    """Inputs of one form as one, and arguments that may be None left out."""
    best = whole
    for place in reversed(range(len(whole.given))):
        if place >= len(best.given):
            continue
        alike = (earlier for earlier in range(place) if _one_form(best.given[earlier], best.given[place]))
        for other in (*alike, None):
            fewer = _with_input_as(best, place, other)
            if fewer is not None and shows(fewer):
                best = fewer
                break
    return best


def _one_form(a: Given, b: Given) -> bool:
    return a.is_tensor and (a.sizes, a.dtype, a.device, a.strides) == (b.sizes, b.dtype, b.device, b.strides)


def _with_input_as(whole: Reproduction, place: int, other: int | None) -> Reproduction | None:
    """With another input, or None, where that one is used."""
    graph, copies = _copy(whole.graph)
    placeholders = [copies[node] for node in whole.graph.nodes if node.op == "placeholder"]
    node = placeholders[place]
    if other is not None:
        node.replace_all_uses_with(placeholders[other])
    elif any(user.op == "output" or user.all_input_nodes == [node] for user in node.users):
        return None  # which takes nothing else
    else:
        for user in list(node.users):
            user.args, user.kwargs = fx.node.map_arg(  # type: ignore[assignment]
                (user.args, user.kwargs), lambda n: None if n is node else n
            )
    graph.erase_node(node)
    return replace(whole, graph=graph, given=(*whole.given[:place], *whole.given[place + 1 :]))


# -- inputs ------------------------------------------------------------------------------------------
def described(whole: Reproduction, shows: Shows) -> Reproduction:
    """Inputs that are kept as they are, described, as far as that still shows it; and gradients, if none is needed."""
    best = whole
    for change in (_not_kept, _without_gradient):
        all_at_once = replace(best, given=tuple(map(change, best.given)))
        if all_at_once.given == best.given:
            continue
        if shows(all_at_once):
            best = all_at_once
            continue
        for place, given in enumerate(best.given):
            one = replace(best, given=(*best.given[:place], change(given), *best.given[place + 1 :]))
            if one.given != best.given and shows(one):
                best = one
    return best


def _not_kept(given: Given) -> Given:
    return replace(given, kept=None)


def _without_gradient(given: Given) -> Given:
    return replace(given, requires_grad=False)


# -- sizes -------------------------------------------------------------------------------------------
def with_smaller_sizes(whole: Reproduction, shows: Shows) -> Reproduction:
    """Each size that inputs have, everywhere at once, as small as shows it; first the largest."""
    best, done = whole, set[int]()
    while True:
        sizes = {s for given in best.given if given.kept is None for s in given.sizes if s > 1} - done
        if not sizes:
            return best
        size = max(sizes)
        done.add(size)
        trials = [s for s in _SMALL if s < size][: _MOST_TRIED - 1]
        for smaller in dict.fromkeys([*trials, size // 2]):
            found = next(filter(shows, _resized(best, size, smaller)), None)
            if found is not None:
                best = found
                if smaller in trials:
                    done.add(smaller)
                break


def _resized(whole: Reproduction, size: int, smaller: int) -> Iterator[Reproduction]:
    """With one size in the place of the other; and then also where it is a factor."""
    for factor in (False, True):

        def new(value: Any) -> Any:
            if type(value) is not int or value <= 0 or value % size or (value != size and not factor):  # noqa: B023
                return value
            return value // size * smaller

        if factor and not any(s != size and s % size == 0 for given in whole.given for s in given.sizes):
            return
        graphs = {name: _copy(graph)[0] for name, graph in whole.graphs.items()}
        for node in (node for graph in graphs.values() for node in graph.nodes):
            node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), new)  # type: ignore[misc]
        given = tuple(_resize(each, new) for each in whole.given)
        yield replace(whole, graph=graphs.pop("forward"), inner=graphs, given=given)


_RANGE = re.compile(r"torch\.randint\((-?\d+), (\d+),")


def _resize(given: Given, new: Callable[[int], int]) -> Given:
    if not given.is_tensor or given.kept is not None:
        return given
    made = given.resized(tuple(map(new, given.sizes)))
    return replace(made, fill=_RANGE.sub(lambda m: f"torch.randint({m[1]}, {max(new(int(m[2])), 1)},", made.fill))


__all__ = [
    "bypassing", "described", "inputs_of", "sharing_inputs", "with_smaller_sizes", "without_graphs_inside",
    "without_nodes", "without_results",
]  # fmt: skip
