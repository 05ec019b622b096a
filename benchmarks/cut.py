"""The split of a deep model: its minimum cut beside networkx's, and how both grow, with the whole compile.

`make bench-cut`, or `python -m benchmarks.cut [--layers 90,450] [--without-networkx] [--without-compile]`. The model is
a decoder of so many layers, which are 10,000 and 50,000 nodes of a joint graph. `choose` is the choice of what is
kept, from the joint graph on, and `split` has the two graphs written too; `cut` is the part of it that networkx can
do: from the nodes, their prices and tolls to the values that are kept. `networkx` is given the same nodes, makes its
own graph of them, and must find a cut of the same value; `compile` is the first call and its backward, in Dynamo and
out of it. All are seconds of the processor, by a process of its own each. The bars: at least 20 times faster than
networkx, and for five times the nodes at most seven times the seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from benchmarks.process import THREADS, in_fresh_process, without_caches
from benchmarks.scaling import measure as measured_compile
from benchmarks.scaling import transformer
from benchmarks.table import figure, ratio, render
from litz.graph.partition.mincut import Problem
from litz.graph.signature import Joint

FASTER, GROWTH = 20.0, 7.0
_PATIENCE = 1800.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="90,450")
    parser.add_argument("--without-networkx", action="store_true")
    parser.add_argument("--without-compile", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "LAYERS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        what, layers = options.one[0], int(options.one[1])
        sys.setrecursionlimit(100_000)  # Dynamo recurses along chains
        print(json.dumps({"cut": cut, "networkx": by_networkx, "compile": compiled}[what](layers)))
        return 0
    asked = [
        "cut",
        *([] if options.without_networkx else ["networkx"]),
        *([] if options.without_compile else ["compile"]),
    ]
    columns = []
    for layers in options.layers.split(","):
        found: dict[str, Any] = {}
        for what in asked:
            one = in_fresh_process(
                "benchmarks.cut", "--one", what, layers, environment=without_caches(), limit=_PATIENCE
            )
            print(f"{layers} layers, {what}: {one}", file=sys.stderr, flush=True)
            found |= {f"{what}: {k}" if k == "failed" else k: v for k, v in one.items()}
        columns.append(found)
    return _report(columns, options.layers.split(","))


def _report(columns: list[dict[str, Any]], layers: list[str]) -> int:
    rows = []
    growths = {}
    for name in ("nodes", "value", "networkx_value", "cut", "networkx", "choose", "split", "compile"):
        values = [column.get(name) for column in columns]
        growth = ratio(values[-1], values[0])
        if name in ("cut", "choose", "split", "compile") and growth is not None:
            growths[name] = growth
        digits = ",.0f" if name == "nodes" or name.endswith("value") else ".3f"
        rows.append([name, *(figure(v, digits) for v in values), figure(growth, ".1f")])
    print(render(["", *(f"{n} layers" for n in layers), "growth"], rows))
    missed = [f"{name} grows {growth:.1f} times" for name, growth in growths.items() if growth > GROWTH]
    for column in columns:
        faster = ratio(column.get("networkx"), column.get("cut"))
        if faster is not None:
            print(f"{column['nodes']:,} nodes: {faster:.0f} times faster than networkx")
            if faster < FASTER:
                missed.append(f"only {faster:.0f} times faster than networkx")
            if column["networkx_value"] != column["value"]:
                missed.append("networkx finds another value")
    failed = [f"{name} {column[name]}" for column in columns for name in column if name.endswith("failed")]
    print(f"missed: {', '.join([*missed, *failed]) or 'none'}")
    return 1 if missed or failed else 0


def joint_of(layers: int) -> Joint:
    from litz.capture.joint import trace_joint
    from litz.ops.decompose import decompositions

    program = transformer(layers)
    module: Any = program.function
    names = [name for name, _ in module.named_parameters()]

    def function(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    return trace_joint(function, [*program.inputs, *module.parameters()], None, decompositions(), True)


def cut(layers: int) -> dict[str, Any]:
    from litz.graph.partition.extract import split_at
    from litz.graph.partition.mincut import SINK, SOURCE, minimum_cut, network_of
    from litz.graph.partition.sides import sides_of
    from litz.graph.partition.split import Policy, choose

    torch.set_num_threads(THREADS)
    small = joint_of(1)
    choose(small, sides_of(small), Policy())  # what a process loads once
    joint = joint_of(layers)
    choosing, choice = _seconds(lambda: choose(joint, sides_of(joint), Policy()))
    problem, toll = _problem(joint)
    cutting, _ = _seconds(lambda: minimum_cut(problem, toll))
    value, _ = network_of(problem, toll)[0].minimum_cut(SOURCE, SINK)
    begun = time.process_time()
    split_at(joint, sides_of(joint), choice.kept)
    writing = time.process_time() - begun
    nodes = len(joint.graph.graph.nodes)
    return {"nodes": nodes, "value": value, "cut": cutting, "choose": choosing, "split": choosing + writing}


def by_networkx(layers: int) -> dict[str, Any]:
    """Each value two vertices, and each reader an edge, as PyTorch's own partitioner has them."""
    import networkx

    problem, toll = _problem(joint_of(layers))
    begun = time.process_time()
    value, _ = networkx.minimum_cut(_graph_of(problem, toll), "source", "sink")
    return {"networkx": time.process_time() - begun, "networkx_value": value}


def _graph_of(problem: Problem, toll: Callable[[fx.Node], int]) -> Any:
    import networkx

    from litz.graph.partition.maxflow import INFINITE
    from litz.graph.partition.mincut import wanted_of

    graph = networkx.DiGraph()

    def edge(tail: Any, head: Any, capacity: int) -> None:
        if capacity >= INFINITE:
            graph.add_edge(tail, head)  # without a capacity it is infinite
        else:
            graph.add_edge(tail, head, capacity=capacity)

    sides = problem.sides
    wanted, given = wanted_of(problem)
    for node in problem.nodes:
        edge((node, 0), (node, 1), problem.prices[node])
        known = node.op == "placeholder" or node in given
        cost = INFINITE if known else 0 if sides.only_in_backward(node) else toll(node)
        if cost:
            edge("source", (node, 0), cost)
        if node in wanted:
            edge((node, 1), "sink", INFINITE)
    inside = set(problem.nodes)
    for node in problem.nodes:
        owner = sides.owner(node)
        for user in node.users:
            if user in inside and sides.owner(user) is not owner:
                private = owner in sides.seen and not sides.reads_what_is_seen(user)
                edge((owner, 0 if private else 1), (user, 0), INFINITE)
    return graph


def _problem(joint: Joint) -> tuple[Problem, Callable[[fx.Node], int]]:
    """What is cut where nothing is asked for."""
    from litz.graph.partition.again import Rules, forbidden, is_possible
    from litz.graph.partition.maxflow import INFINITE
    from litz.graph.partition.mincut import problem_of
    from litz.graph.partition.sides import sides_of

    sides = sides_of(joint)
    problem = problem_of(joint, sides)
    never = {n for n in problem.nodes if not is_possible(n)} | forbidden(problem.nodes, sides, Rules()).keys()
    return problem, lambda node: INFINITE if node in never else 0


def compiled(layers: int) -> dict[str, Any]:
    found = measured_compile("transformer", layers, True)
    return {"compile": found["stages"]["processor"], "stages": found["stages"]} if "stages" in found else found


def _seconds(function: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """The processor's, at best; Python's collector of cycles rests, as it does in every compile."""
    from litz.capture.collector import COLLECTOR

    best = float("inf")
    with COLLECTOR.rests():
        for _ in range(times):
            begun = time.process_time()
            result = function()
            best = min(best, time.process_time() - begun)
    return best, result


if __name__ == "__main__":
    sys.exit(main())
