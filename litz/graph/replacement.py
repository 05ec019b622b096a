"""`register_replacement`: a rule from two functions that compute the same.

In: a search function, a replacement, and example inputs. Out: a `Rule` that finds every occurrence of the
first, whatever its shapes and scalars, and puts the second in its place.

At registration both are traced and their results compared: a replacement that changes the shape, the type
or the number of results is refused there, with the difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.errors import RuleError
from litz.graph.editor import alike, described
from litz.graph.match import Matcher, Miss
from litz.graph.pattern import Pattern, arg_names
from litz.graph.rewrite import Match, Rule, check_stage, identity, metadata, place_of
from litz.graph.sizes import size_of
from litz.graph.trace_example import forward_only, joint, jvp
from litz.graph.trace_pattern import pattern_of

TraceFn = Callable[..., fx.GraphModule]


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    trace_fn: TraceFn = forward_only,
    *,
    name: str | None = None,
    extra_check: Callable[[Match], bool] | None = None,
    scalar_workaround: Mapping[str, Any] | None = None,
    exclusive_arg_names: Sequence[str] = (),
    pass_lists: Sequence[list[Rule]] = (),
    skip_duplicates: bool = False,
    pattern: Pattern | None = None,
    stage: str = "rewrite_joint",
) -> Rule:
    """The rule, which is also appended to each of `pass_lists`.

    `trace_fn` is `forward_only`, `joint` (forward and backward at once) or `jvp`. `scalar_workaround` gives
    example values for arguments that are numbers: choose values that occur nowhere else. Arguments in
    `exclusive_arg_names` must not be used outside of the match. `pattern` is one traced before (`litz.save_patterns`).
    `stage`: "rewrite_joint", or "rewrite_post_grad" for the forward and the backward each by itself, after the split.
    """
    file, line = place_of(search_fn)
    if check_stage(stage, f"{file}:{line}") == "rewrite_pre_grad":
        raise RuleError(
            "what is traced are ATen operators, and there are none before autograd",
            source=f"{file}:{line}",
            hint="write the pattern down: litz.rule(pattern, stage='rewrite_pre_grad')",
        )
    spec = _Replacement(
        search_fn,
        replace_fn,
        tuple(example_inputs),
        trace_fn,
        dict(scalar_workaround or {}),
        tuple(exclusive_arg_names),
    )
    if pattern is None:
        pattern = spec.checked_pattern()
    checked = _both(spec.check, extra_check)
    # Search and replacement are traced on the values of each match: what they ask of sizes holds there.
    name = name or search_fn.__name__.lstrip("_")
    made = Rule(pattern, spec.apply, name, checked, file, line, any_size=True, stage=stage)
    for rules in pass_lists:
        if any(other.pattern == pattern and other.name == made.name for other in rules):
            if skip_duplicates:
                continue
            raise RuleError(
                f"the rule {made.name!r} is in the list already",
                source=f"{file}:{line}",
                hint="pass skip_duplicates=True",
            )
        rules.append(made)
    return made


def _both(first: Callable[[Match], bool], second: Callable[[Match], bool] | None) -> Callable[[Match], bool]:
    return first if second is None else lambda match: first(match) and second(match)


class _Replacement:
    def __init__(
        self, search: Callable[..., Any], replace: Callable[..., Any], examples: tuple[Any, ...], trace: TraceFn,
        scalars: dict[str, Any], exclusive: tuple[str, ...],
    ):  # fmt: skip
        self.search, self.replace, self.examples, self.trace = search, replace, examples, trace
        self.scalars, self.exclusive = scalars, exclusive
        parameters = list(inspect.signature(search).parameters)
        self.names = [p for p in parameters if p not in scalars]
        if len(self.names) != len(examples):
            raise self._error(f"{len(examples)} example inputs for the arguments {', '.join(self.names)}")
        self.parameters = parameters

    def _error(self, text: str) -> RuleError:
        file, line = place_of(self.search)
        return RuleError(f"rule {self.search.__name__!r}: {text}", source=f"{file}:{line}")

    # -- at registration ----------------------------------------------------------------------------
    def checked_pattern(self) -> Pattern:
        values = self.values(dict(zip(self.names, self.examples, strict=True)) | self.scalars)
        graphs = []
        for function in (self.search, self.replace):
            try:
                graphs.append(self.trace(function, values, FakeTensorMode(allow_non_fake_inputs=True)))
            except Exception as error:
                raise self._error(f"tracing {function.__name__} failed: {type(error).__name__}: {error}") from error
        before, after = (_results(graph) for graph in graphs)
        if len(before) != len(after):
            raise self._error(f"the replacement has {len(after)} results where the search function has {len(before)}")
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            if not alike(old, new):
                raise self._error(
                    f"result {position} of the replacement is {described(new)} where {described(old)} is needed"
                )
        names = self.input_names(graphs[0])
        pattern = pattern_of(graphs[0], names, self.scalars, exact=False)
        unused = [n for n in (*names, *self.scalars) if n not in arg_names(pattern)]
        if unused:
            raise self._error(f"the arguments {', '.join(unused)} do not occur in what was traced")
        return pattern

    def values(self, by_name: Mapping[str, Any]) -> list[Any]:
        return [by_name[p] for p in self.parameters]

    def input_names(self, graph: fx.GraphModule) -> list[str]:
        """Names of the traced graph's inputs: the function's tensors, then the tangents."""
        count = sum(node.op == "placeholder" for node in graph.graph.nodes)
        own = [n for n, e in zip(self.names, self.examples, strict=True) if isinstance(e, torch.Tensor)]
        return own + [f"tangent_{i}" for i in range(count - len(own))]

    # -- at a match ---------------------------------------------------------------------------------
    def check(self, match: Match) -> bool:
        """The second match: traced again on the real values, nothing ignored."""
        for name in self.exclusive:
            node = match[name]
            if isinstance(node, fx.Node) and any(user not in match.found.nodes for user in node.users):
                match.miss(f"{name} is also used elsewhere", node)
                return False
        traced = self._traced(match, self.search)
        if traced is None:
            return False
        actual = {name: match[name] for name in self.scalars}
        exact = pattern_of(traced, self.input_names(traced), _tellable(actual), exact=True)
        found = Matcher().match(exact, match.root)
        if isinstance(found, Miss):
            match.declined = found._replace(why=f"with the real values: {found.why}")
            return False
        return found.outputs == match.outputs

    def apply(self, match: Match) -> Any:
        traced = self._traced(match, self.replace)
        if traced is None:
            return None
        nodes = [match[name] for name in self.input_names(traced)]
        return match.editor.inline(traced, nodes, max(match.outputs), match.root)

    def _traced(self, match: Match, function: Callable[..., Any]) -> fx.GraphModule | None:
        bound = {p: match[p] for p in self.parameters}
        values = [v.meta.get("val") if isinstance(v, fx.Node) else v for v in self.values(bound)]
        if any(
            isinstance(bound[n], fx.Node) != isinstance(e, torch.Tensor)
            for n, e in zip(self.names, self.examples, strict=True)
        ):
            match.miss("an argument is a tensor where a number was traced, or the other way round")
            return None
        key = (identity(function), self.trace, *(metadata(v) for v in values))
        return match.editor.example(key, lambda: self.trace(function, values, match.editor.mode))


def _tellable(scalars: dict[str, Any]) -> dict[str, Any]:
    """Scalars that may be recognised by value: 0 and 1 occur everywhere, and are compared as they are."""
    return {name: value for name, value in scalars.items() if size_of(value) not in (0, 1, -1, 2)}


def _results(graph: fx.GraphModule) -> list[Any]:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    found = output.args[0]
    return [
        r.meta.get("val") if isinstance(r, fx.Node) else r
        for r in (found if isinstance(found, (tuple, list)) else (found,))
    ]


__all__ = ["forward_only", "joint", "jvp", "register_replacement"]
