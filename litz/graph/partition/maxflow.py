"""Maximum flow, and the minimum cut it proves.

In: edges with integer capacities. Out: the set of vertices on the source's side, of several cuts the one nearest to
the sink. OR-Tools finds it where it is installed; Dinic's algorithm, written out here, finds the same one elsewhere.
(SciPy's flows are numbers of 32 bits, too few for bytes.)
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any

INFINITE = 1 << 60


class FlowNetwork:
    def __init__(self) -> None:
        self.vertices = 0
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.capacities: list[int] = []

    def vertex(self) -> int:
        self.vertices += 1
        return self.vertices - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        self.tails.append(tail)
        self.heads.append(head)
        self.capacities.append(capacity)

    def minimum_cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        """The flow's value, and the vertices from which the sink is out of reach when it is maximal."""
        solver = installed_solver()
        return self._by_dinic(source, sink) if solver is None else self._by_solver(solver(), source, sink)

    def _by_solver(self, solver: Any, source: int, sink: int) -> tuple[int, set[int]]:
        import numpy

        solver.add_arcs_with_capacity(
            numpy.array(self.tails), numpy.array(self.heads), numpy.array(self.capacities, dtype=numpy.int64)
        )
        status = solver.solve(source, sink)
        if status != solver.OPTIMAL:  # sums of capacities that its numbers do not hold
            return self._by_dinic(source, sink)
        return solver.optimal_flow(), set(range(self.vertices)) - {sink, *solver.get_sink_side_min_cut()}

    def _by_dinic(self, source: int, sink: int) -> tuple[int, set[int]]:
        return Residual(self).minimum_cut(source, sink)


class Residual:
    """What room edges have left, by Dinic's algorithm: along shortest paths, until none leads to the sink."""

    def __init__(self, network: FlowNetwork):
        self.edges: list[list[int]] = [[] for _ in range(network.vertices)]  # vertex -> edge numbers
        self.head: list[int] = []
        self.room: list[int] = []  # edge e ^ 1 is the reverse of e
        for tail, head, capacity in zip(network.tails, network.heads, network.capacities, strict=True):
            self.edges[tail].append(len(self.head))
            self.edges[head].append(len(self.head) + 1)
            self.head += (head, tail)
            self.room += (capacity, 0)

    def minimum_cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        total = 0
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return total, set(range(len(self.edges))) - self._reaching(sink)
            total += self._blocking_flow(source, sink, level)

    def _reaching(self, sink: int) -> set[int]:
        found, todo = {sink}, [sink]
        while todo:
            for e in self.edges[todo.pop()]:
                if self.room[e ^ 1] and self.head[e] not in found:
                    found.add(self.head[e])
                    todo.append(self.head[e])
        return found

    def _levels(self, source: int, sink: int) -> list[int]:
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            v = queue.popleft()
            for e in self.edges[v]:
                w = self.head[e]
                if self.room[e] and level[w] < 0:
                    level[w] = level[v] + 1
                    queue.append(w)
        return level

    def _blocking_flow(self, source: int, sink: int, level: list[int]) -> int:
        """Push along shortest paths until none is left, without recursion: graphs are thousands deep."""
        head, room = self.head, self.room
        following = [0] * len(self.edges)
        path: list[int] = []
        pushed = 0
        v = source
        while True:
            if v == sink:
                amount = min(room[e] for e in path)
                pushed += amount
                for e in path:
                    room[e] -= amount
                    room[e ^ 1] += amount
                # Go back to before the first edge that is full now.
                full = next(i for i, e in enumerate(path) if not room[e])
                v = head[path[full] ^ 1]
                del path[full:]
                continue
            edges = self.edges[v]
            while following[v] < len(edges):
                e = edges[following[v]]
                if room[e] and level[head[e]] == level[v] + 1:
                    break
                following[v] += 1
            if following[v] < len(edges):
                e = edges[following[v]]
                path.append(e)
                v = head[e]
            elif path:
                e = path.pop()
                v = head[e ^ 1]
                following[v] += 1
            else:
                return pushed


@lru_cache(maxsize=1)
def installed_solver() -> Any | None:
    """A maker of OR-Tools' solvers."""
    try:
        from ortools.graph.python.max_flow import SimpleMaxFlow
    except ImportError:
        return None
    return SimpleMaxFlow


__all__ = ["INFINITE", "FlowNetwork", "Residual", "installed_solver"]
