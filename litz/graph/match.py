"""Matching: does a pattern hold at this node, and if not, how near was it?

In: a pattern and a node. Out: the bindings and the matched nodes, or the `Miss` that got furthest.

Candidates are found through an index by the root's operator and then by the operator of one of its
arguments, so that a node is compared with the few rules that could hold there, however many exist.
Matching backtracks (a commuted operand may only turn out wrong later), within a bound on steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx

from litz.graph.pattern import ANY, INSIDE, Arg, Call, ListOf, Outputs, Pattern, Wild, bind, root_of, walk
from litz.graph.sizes import size_of
from litz.loop.exact import spelled

MAX_STEPS = 5000  # of one attempt; a pattern of commuted operands could otherwise try 2^n orders


class Miss(NamedTuple):
    """How far a match came (`matched` nodes), and the node and reason that stopped it."""

    node: fx.Node | None
    why: str
    matched: int


@dataclass(frozen=True)
class Found:
    """What matched: values by name, the calls in the order they matched, and the roots to be replaced."""

    bindings: dict[str, Any]
    nodes: dict[fx.Node, Call]
    outputs: tuple[fx.Node, ...]


@dataclass
class Matcher:
    """`visits` counts the nodes looked at: the cost of matching, free of the machine's moods."""

    visits: int = 0
    _steps: int = field(default=0, init=False)
    _best: Miss = field(default=Miss(None, "", 0), init=False)

    def match(self, pattern: Pattern, root: fx.Node) -> Found | Miss:
        self._steps, self._best = 0, Miss(root, "the operator differs", 0)
        first = root_of(pattern)
        rest = pattern.items[1:] if isinstance(pattern, Outputs) else ()
        for bindings, nodes in self._call(first, root, {}, {}):
            for found in self._outputs(rest, bindings, nodes, (root,)):
                stray = self._stray(found)
                if stray is None:
                    return found
                self._note(stray, "it is also used outside of the match", found.nodes)
        return self._best

    def _note(self, node: fx.Node | None, why: str, nodes: dict[fx.Node, Call]) -> None:
        if len(nodes) >= self._best.matched:
            self._best = Miss(node, why, len(nodes))

    # -- one value ----------------------------------------------------------------------------------
    def _value(
        self, pattern: Pattern, value: Any, b: dict, n: dict, at: fx.Node, name: str
    ) -> Iterator[tuple[dict, dict]]:
        if isinstance(pattern, Wild):
            yield b, n
        elif isinstance(pattern, Arg):
            if pattern.name not in b:
                yield {**b, pattern.name: value}, n
            elif same(b[pattern.name], value):
                yield b, n
            else:
                self._note(at, f"{name} is not the same {pattern.name} as before", n)
        elif isinstance(pattern, Call):
            if isinstance(value, fx.Node):
                yield from self._call(pattern, value, b, n)
            else:
                self._note(at, f"{name} is {value!r} where {_names(pattern)} is expected", n)
        elif isinstance(pattern, ListOf):
            yield from self._list_of(pattern, value, b, n, at, name)
        elif isinstance(pattern, tuple):
            if isinstance(value, (list, tuple)) and len(value) == len(pattern):
                yield from self._all(
                    [(str(i), p, v) for i, (p, v) in enumerate(zip(pattern, value, strict=True))], b, n, at
                )
            else:
                self._note(at, f"{name} is {value!r} where {pattern!r} is expected", n)
        elif same(pattern, value):
            yield b, n
        else:
            self._note(at, f"{name} is {value!r} where {pattern!r} is expected", n)

    def _all(self, todo: list[tuple[str, Any, Any]], b: dict, n: dict, at: fx.Node) -> Iterator[tuple[dict, dict]]:
        if not todo:
            yield b, n
            return
        name, pattern, value = todo[0]
        for b2, n2 in self._value(pattern, value, b, n, at, name):
            yield from self._all(todo[1:], b2, n2, at)

    def _list_of(
        self, pattern: ListOf, value: Any, b: dict, n: dict, at: fx.Node, name: str
    ) -> Iterator[tuple[dict, dict]]:
        if not isinstance(value, (list, tuple)) or len(value) < pattern.least:
            self._note(at, f"{name} is {value!r} where a list of at least {pattern.least} is expected", n)
            return
        own = {p.name for p in walk(pattern.item) if isinstance(p, Arg)} - b.keys()
        seen: dict[str, list[Any]] = {key: [] for key in own}
        for item in value:
            inner = next(self._value(pattern.item, item, b, n, at, name), None)
            if inner is None:
                return
            for key in own:
                seen[key].append(inner[0].get(key))
            n = inner[1]
        yield {**b, **seen}, n

    # -- one call -----------------------------------------------------------------------------------
    def _call(self, pattern: Call, node: fx.Node, b: dict, n: dict) -> Iterator[tuple[dict, dict]]:
        self._steps += 1
        if self._steps > MAX_STEPS:
            self._note(node, f"given up after {MAX_STEPS} steps", n)
            return
        self.visits += 1
        if pattern.name is not None and pattern.name in b:
            if b[pattern.name] is node:
                yield b, n
            else:
                self._note(node, f"it is not the node that matched {pattern.name!r} before", n)
            return
        if node.op != "call_function" or node.target not in pattern.targets:
            self._note(node, f"it is {_described(node)} where {_names(pattern)} is expected", n)
            return
        if isinstance(pattern.users, int) and len(node.users) != pattern.users:
            self._note(node, f"it has {len(node.users)} users where {pattern.users} are expected", n)
            return
        b2 = b if pattern.name is None else {**b, pattern.name: node}
        n2 = {**n, node: pattern}
        actual = bind(node.target, node.args, node.kwargs)
        todo = [(key, p, actual.get(key)) for key, p in pattern.bound(node.target)]
        yield from self._all(todo, b2, n2, node)
        if pattern.commutes and len(todo) >= 2:
            (k0, p0, v0), (k1, p1, v1) = todo[:2]
            if v0 is not v1:
                yield from self._all([(k0, p0, v1), (k1, p1, v0), *todo[2:]], b2, n2, node)

    # -- several outputs ----------------------------------------------------------------------------
    def _outputs(self, rest: Sequence[Any], b: dict, n: dict, roots: tuple[fx.Node, ...]) -> Iterator[Found]:
        if not rest:
            yield Found(b, n, roots)
            return
        pattern = rest[0]
        for candidate in self._roots(pattern, b, n):
            if candidate in roots:
                continue
            for b2, n2 in self._value(pattern, candidate, b, n, candidate, "output"):
                yield from self._outputs(rest[1:], b2, n2, (*roots, candidate))

    def _roots(self, pattern: Pattern, b: dict, n: dict) -> Iterator[fx.Node]:
        """Nodes where a further output may be: climb from something already bound, along the pattern's own path."""
        if isinstance(pattern, Arg):
            bound = b.get(pattern.name)
            if isinstance(bound, fx.Node):
                yield bound
            return
        if isinstance(pattern, Call) and pattern.name in b:
            yield b[pattern.name]
            return
        start, path = _path_to_bound(pattern, b)
        if start is None:
            self._note(None, "a further output shares nothing with those before it", n)
            return
        level = [start]
        for step in path:
            level = list(
                dict.fromkeys(u for x in level for u in x.users if u.op == "call_function" and u.target in step.targets)
            )
            self.visits += len(level)
        if not level:
            self._note(start, f"none of its users leads to {_names(path[-1])}", n)
        yield from level

    @staticmethod
    def _stray(found: Found) -> fx.Node | None:
        """A node that would stay alive for someone else, if its pattern says it must not."""
        for node, pattern in found.nodes.items():
            if (
                pattern.users == INSIDE
                and node not in found.outputs
                and any(user not in found.nodes for user in node.users)
            ):
                return node
        return None


def _path_to_bound(pattern: Any, bindings: dict[str, Any]) -> tuple[fx.Node | None, list[Call]]:
    """A bound node below `pattern`, the one with fewest users, and the calls from it up to the pattern."""
    best: tuple[fx.Node | None, list[Call]] = (None, [])

    def visit(p: Any, above: list[Call]) -> None:
        nonlocal best
        named = bindings.get(p.name) if isinstance(p, (Arg, Call)) and p.name is not None else None
        if isinstance(named, fx.Node) and above and (best[0] is None or len(named.users) < len(best[0].users)):
            best = (named, list(reversed(above)))
        if isinstance(p, Call) and named is None:
            for child in (*p.args, *(v for _, v in p.kwargs)):
                visit(child, [*above, p])
        elif isinstance(p, tuple):
            for child in p:
                visit(child, above)

    visit(pattern, [])
    return best


def same(a: Any, b: Any) -> bool:
    """Equality of arguments: nodes by identity, lists by element, symbolic numbers by their form; True is not 1, and
    0.0 not -0.0, but 2 is 2.0."""
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return a is b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    a, b = size_of(a), size_of(b)
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return spelled(a) == spelled(b)
    return bool(a == b)


def _names(pattern: Call) -> str:
    return " or ".join(str(t) for t in pattern.targets)


def _described(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else f"a {node.op} ({node.target})"


class RuleIndex:
    """Rules by root operator, then by the operator of an argument that must be a call."""

    def __init__(self, rules: Sequence[Any]):
        self.rules = tuple(rules)
        self._by_root: dict[Any, dict[Any, list[int]]] = {}
        for position, rule in enumerate(self.rules):
            root = root_of(rule.pattern)
            inner = next((a for a in root.args if isinstance(a, Call)), None)
            for target in root.targets:
                table = self._by_root.setdefault(target, {})
                for key in inner.targets if inner is not None else (None,):
                    table.setdefault(key, []).append(position)

    def candidates(self, node: fx.Node) -> list[Any]:
        """The rules that may hold at the node, in the order of the rule set."""
        if node.op != "call_function":
            return []
        table = self._by_root.get(node.target)
        if table is None:
            return []
        positions = list(table.get(None, ()))
        if len(table) > (1 if positions else 0):
            for target in {i.target for i in node.all_input_nodes if i.op == "call_function"}:
                positions += table.get(target, ())
            positions = sorted(set(positions))
        return [self.rules[p] for p in positions]


__all__ = ["ANY", "INSIDE", "Found", "RuleIndex", "Matcher", "Miss", "same"]
