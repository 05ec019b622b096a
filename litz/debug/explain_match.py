"""`litz.explain_match`: which rules applied to a model, which nearly did, and what stopped them.

In: a model, its arguments, and a rule's or a subject's name. Out: `Matches`, which print well.

The model is captured and rewritten as in a compile, with the user's source lines kept on every node; nothing
is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import fx

from litz.capture.joint import trace_joint
from litz.context import Context
from litz.errors import RuleError
from litz.graph.rewrite import Rule
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.rewrite_pre_grad import rewrite_pre_grad
from litz.graph.rules import SUBJECTS
from litz.options import Options
from litz.report import Firing, NearMiss
from litz.target import detect


@dataclass(frozen=True)
class Matches:
    rule: str
    fired: tuple[Firing, ...]
    near_misses: tuple[NearMiss, ...]  # nearest first

    def __str__(self) -> str:
        lines = [f"{self.rule}: applied {sum(f.times for f in self.fired)} times, nearly {len(self.near_misses)} times"]
        lines += [f"  {f.rule} × {f.times} ({f.file}:{f.line})" for f in self.fired]
        for miss in self.near_misses:
            lines.append(f"  {miss.rule} stopped at {miss.node} after {miss.matched} nodes: {miss.why}")
            lines += [f"    {miss.source}"] if miss.source else []
        return "\n".join(lines)


def explain_match(
    model: Callable[..., Any], *args: Any, rule: str, rules: Sequence[Rule] = (), **kwargs: Any
) -> Matches:
    """What became of `rule` (a rule's name, or a subject such as "attention") on `model(*args, **kwargs)`."""
    wanted = {r.name for r in SUBJECTS.get(rule, ())} | {rule}
    known = {r.name for subject in SUBJECTS.values() for r in subject} | {r.name for r in rules} | set(SUBJECTS)
    if rule not in known:
        raise RuleError(f"there is no rule {rule!r}", hint=f"the rules are {', '.join(sorted(known))}")
    contexts: list[Context] = []

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        training = torch.is_grad_enabled() and any(isinstance(i, torch.Tensor) and i.requires_grad for i in inputs)
        ctx = Context(Options(rules=tuple(rules)), detect())
        function = rewrite_pre_grad(graph_module.forward, inputs, ctx)
        captured = trace_joint(function, inputs, None, {}, training)
        rewrite_joint(captured, ctx)
        contexts.append(ctx)
        return graph_module.forward

    torch.compile(_apart(model), backend=backend)(*args, **kwargs)
    fired = tuple(f for ctx in contexts for f in ctx.firings if f.rule in wanted)
    near = [m for ctx in contexts for m in ctx.near_misses if m.rule in wanted]
    return Matches(rule, fired, tuple(sorted(near, key=lambda m: -m.matched)))


def _apart(model: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the model, with a code object that no other has: Dynamo keeps what it compiles with the
    code, and what the user has compiled stays as it is."""

    def look(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return FunctionType(look.__code__.replace(), globals(), look.__name__, None, look.__closure__)
