"""Rules, and applying them.

In: a graph module and a tuple of rules. Out: the same module, rewritten until no rule holds any more.

A rule is a pattern and a function. The function receives the `Match`, makes nodes with `match.call` or
`match.replace_by_example`, and returns what stands for the root (a tuple of them, for several outputs),
or `match.miss(why)` if it declines. Rule sets are tuples: they compose with `+`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from litz.context import Context
from litz.errors import RuleError, source_of
from litz.graph.alias import base
from litz.graph.editor import Editor, Refused
from litz.graph.freeze.frozen import is_frozen
from litz.graph.match import Found, Matcher, Miss, RuleIndex
from litz.graph.order import depends_on, sort_stably
from litz.graph.pattern import Pattern, root_of
from litz.graph.sizes import size_of, sizes
from litz.graph.trace_example import trace_example
from litz.graph.uniform import Constants
from litz.loop.exact import exact

MAX_ROUNDS = 10
WORTH_TELLING = 2  # nodes that must have matched before a failure counts as a near miss


@dataclass(frozen=True)
class Rule:
    pattern: Pattern
    function: Callable[[Match], Any]
    name: str
    extra_check: Callable[[Match], bool] | None = None
    file: str = ""
    line: int = 0
    any_size: bool = False  # whether it also holds where sizes are symbolic: it neither compares nor builds any
    stage: str = "rewrite_joint"  # of STAGES, for rules of a user's own

    def __repr__(self) -> str:
        # Also the rule's share of a cache key: no addresses.
        return f"Rule({self.name!r}, {self.pattern!r}, {self.file}:{self.line})"


Rules = tuple[Rule, ...]
STAGES = ("rewrite_pre_grad", "rewrite_joint", "rewrite_post_grad")  # before autograd, of the whole step, of each part


def for_stage(rules: Sequence[Rule], stage: str) -> Rules:
    return tuple(rule for rule in rules if rule.stage == stage)


def check_stage(stage: str, source: str) -> str:
    if stage not in STAGES:
        raise RuleError(
            f"rules cannot be for the stage {stage!r}", source=source, hint=f"the stages are {', '.join(STAGES)}"
        )
    return stage


def rule(
    pattern: Pattern,
    *,
    name: str | None = None,
    extra_check: Callable[[Match], bool] | None = None,
    any_size: bool = False,
    stage: str = "rewrite_joint",
) -> Callable[[Callable[[Match], Any]], Rule]:
    """Makes a `Rule` of the decorated function. `any_size`: it never looks at a size, so symbolic ones are fine.
    `stage`: where it runs, as one of a user's own."""
    root_of(pattern)

    def decorate(function: Callable[[Match], Any]) -> Rule:
        file, line = place_of(function)
        at = check_stage(stage, f"{file}:{line}")
        return Rule(pattern, function, name or function.__name__.lstrip("_"), extra_check, file, line, any_size, at)

    return decorate


def place_of(function: Any) -> tuple[str, int]:
    """File and line of a function, without reading its source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


@dataclass
class Match:
    """What matched, and the means to build the replacement."""

    rule: Rule
    found: Found
    editor: Editor
    ctx: Context
    constants: Constants
    declined: Miss | None = None

    @property
    def root(self) -> fx.Node:
        return self.found.outputs[0]

    @property
    def outputs(self) -> tuple[fx.Node, ...]:
        return self.found.outputs

    def __getitem__(self, name: str) -> Any:
        return self.found.bindings[name]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node, with its value computed and the root's source line."""
        return self.editor.call(target, args, kwargs, self._place(), self.root)

    def full(self, size: Sequence[int], value: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
        return self.call(torch.ops.aten.full.default, list(size), value, dtype=dtype, device=device, pin_memory=False)

    def constant(self, tensor: torch.Tensor) -> fx.Node:
        return self.editor.constant(tensor, self._place(), self.root)

    def replace_by_example(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Traces `function` on the values of `args` and copies its nodes in; what it returns, as nodes."""
        traced = self.trace(function, args)
        nodes = [a for a in args if isinstance(a, fx.Node)]
        return self.editor.inline(traced, nodes, self._place(), self.root)

    def trace(self, function: Callable[..., Any], args: Sequence[Any]) -> fx.GraphModule:
        """`function` as a graph over the nodes among `args`; the other arguments are burnt in."""
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        key = (identity(function), *(metadata(v) for v in values))
        return self.editor.example(key, lambda: trace_example(function, values, self.editor.mode))

    def stand_for(self, node: fx.Node) -> None:
        """The replacement takes the place of `node`, to which the root's result goes, instead of the root's."""
        self.found = replace(self.found, outputs=(node,))

    def uniform(self, node: Any) -> Any:
        """The value every element of the node has, if that can be proved, else None."""
        return self.constants.uniform(node)

    def is_frozen(self, node: Any) -> bool:
        """Whether it is computed of frozen inputs alone: the same at every call."""
        return isinstance(node, fx.Node) and is_frozen(node, self.constants.frozen)

    def miss(self, why: str, node: fx.Node | None = None) -> None:
        """Declines, and says why; `return match.miss(...)`."""
        self.declined = Miss(node or self.root, why, len(self.found.nodes))

    def _place(self) -> fx.Node:
        # With several outputs, all inputs are there before the last; the order is mended afterwards.
        return max(self.found.outputs) if len(self.found.outputs) > 1 else self.root


def identity(function: Any) -> Any:
    """Equal for functions that do the same: a lambda made anew at each match, over equal values, is one function."""
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    try:
        seen = tuple(cell.cell_contents for cell in function.__closure__ or ())
        key = (code, seen, function.__defaults__)
        hash(key)
    except (TypeError, ValueError):
        return object()
    # Equal numbers of different types are different arguments.
    return (*key, tuple(type(value) for value in seen))


def metadata(value: Any) -> Any:
    """What tracing can tell about a value, to be compared and hashed."""
    if isinstance(value, torch.Tensor):
        return (sizes(value.shape), sizes(value.stride()), value.dtype, value.device, value.requires_grad)
    if isinstance(value, (list, tuple)):
        return tuple(metadata(v) for v in value)
    return exact(size_of(value))


@dataclass
class Outcome:
    """What `apply_rules` did: firings, nodes visited, rounds."""

    fired: int = 0
    visits: int = 0
    rounds: int = 0
    errors: list[str] = field(default_factory=list)


def apply_rules(
    graph_module: fx.GraphModule, rules: Rules, ctx: Context, *, recompile: bool = True, subgraphs: bool = True
) -> Outcome:
    """Applies the rules until none holds, subgraphs first. The graph is edited in place."""
    outcome = Outcome()
    for child in graph_module.children():
        if subgraphs and isinstance(child, fx.GraphModule):
            apply_rules(child, rules, ctx)
    _Run(graph_module, rules, ctx, outcome).rounds()
    if outcome.fired:
        if ctx.options.verify:
            graph_module.graph.lint()
        if recompile:
            graph_module.recompile()
    return outcome


class _Run:
    def __init__(self, graph_module: fx.GraphModule, rules: Rules, ctx: Context, outcome: Outcome):
        self.graph, self.ctx, self.outcome = graph_module.graph, ctx, outcome
        self.index, self.matcher = RuleIndex(rules), Matcher()
        self.editor = Editor(graph_module)
        self.constants = Constants(graph_module)
        self.failed: set[tuple[str, str]] = set()

    def rounds(self) -> None:
        for _ in range(MAX_ROUNDS):
            self.outcome.rounds += 1
            fired = self.outcome.fired
            self.constants.forget()
            for node in reversed(list(self.graph.nodes)):
                self.matcher.visits += 1
                if not node._erased:
                    self.visit(node)
            if self.outcome.fired == fired:
                break
        self.outcome.visits = self.matcher.visits

    def visit(self, node: fx.Node) -> None:
        for candidate in self.index.candidates(node):
            found = self.matcher.match(candidate.pattern, node)
            if isinstance(found, Miss):
                self.missed(candidate, node, found)
            elif self.fire(candidate, found):
                return

    def fire(self, candidate: Rule, found: Found) -> bool:
        match = Match(candidate, found, self.editor, self.ctx, self.constants)
        key = (candidate.name, match.root.name)
        if key in self.failed:
            return False
        if not candidate.any_size and any(is_symbolic(n.meta.get("val")) for n in found.nodes):
            # Comparing a symbolic size would fix it, and the program would no longer serve the others.
            self.missed(candidate, match.root, Miss(match.root, "its sizes are symbolic", len(found.nodes)))
            return False
        self.editor.created.clear()
        try:
            if candidate.extra_check is not None and not candidate.extra_check(match):
                declined = match.declined or Miss(match.root, "the extra check said no", len(found.nodes))
                self.missed(candidate, match.root, declined, told=match.declined is not None)
                return False
            # Asked only now, since a unit of fuel is a rewrite and not an attempt; the function may still decline.
            if self.ctx.fuel == 0:
                return False
            results = candidate.function(match)
            if results is None:
                if match.declined is not None:
                    self.missed(candidate, match.root, match.declined, told=True)
                self.editor.undo()
                return False
            self.replace(match, results)
        except Exception as error:
            self.editor.undo()
            self.failed.add(key)
            why = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            if isinstance(error, Refused) and "share memory" in why:
                return False
            place = f"{candidate.file}:{candidate.line}"
            text = f"rule {candidate.name!r} ({place}) was not applied at {match.root.name}: {why}"
            self.outcome.errors.append(text)
            self.ctx.note(text)
            return False
        self.ctx.spend(f"{candidate.name} at {key[1]}")
        self.ctx.fired(candidate.name, candidate.file, candidate.line)
        self.outcome.fired += 1
        return True

    def replace(self, match: Match, results: Any) -> None:
        results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        outputs = match.outputs
        if len(results) != len(outputs):
            raise Refused(f"{len(results)} results where the pattern has {len(outputs)} outputs")
        for old, new in zip(outputs, results, strict=True):
            self.editor.check(old, new)
        if len(outputs) > 1:
            refuse_cycles(outputs, results)
        made = set(self.editor.created)
        for old, new in zip(outputs, results, strict=True):
            if old is not new:
                owner = base(new)  # a new view may be one of something older, a constant stays from call to call
                self.editor.replace(old, new, fresh=owner in made and owner.op != "get_attr")
        if len(outputs) > 1:
            sort_stably(self.graph)

    def missed(self, candidate: Rule, node: fx.Node, miss: Miss, told: bool = False) -> None:
        """`told`: the rule itself gave the reason, so it is worth recording however little matched."""
        if told or miss.matched >= WORTH_TELLING:
            stopped = miss.node if miss.node is not None else node
            self.ctx.missed(candidate.name, str(stopped.name), miss.why, miss.matched, source_of(stopped))


def is_symbolic(value: Any) -> bool:
    """Whether a tensor's sizes are known only at run time."""
    if isinstance(value, (tuple, list)):
        return any(is_symbolic(v) for v in value)
    return isinstance(value, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in value.shape)


def refuse_cycles(outputs: Sequence[fx.Node], results: Sequence[fx.Node]) -> None:
    """A new result may depend on an output it does not stand for (a gradient on the loss), but not in a circle."""
    earliest = min(outputs)
    needs = [{j for j, old in enumerate(outputs) if depends_on(new, old, earliest)} for new in results]
    for _ in outputs:
        needs = [own | {k for j in own for k in needs[j]} for own in needs]
    for position, own in enumerate(needs):
        if position in own:
            raise Refused(f"the replacement of {outputs[position].name} would depend on itself")
