"""Patterns: what a rule looks for, as frozen values.

In: operators and argument names. Out: values that compare, hash and print as the Python that rebuilds them,
so that a pattern can be written to a file and loaded without tracing anything.

    call(aten.mul.Tensor, Arg("x"), call(aten.sigmoid.default, Arg("x")), commutes=True)

A plain Python value in a pattern stands for itself. An argument that is left out must have its default.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Union

import torch

INSIDE = "inside"  # every use of the node is by another node of the match (the default, except for outputs)
ANY = "any"


@dataclass(frozen=True)
class Arg:
    """Any value, given to the rule under its name. The same name twice must be the same value."""

    name: str


@dataclass(frozen=True)
class Wild:
    """Any value, of no interest."""


@dataclass(frozen=True)
class ListOf:
    """A list of any length, each element matching `item`; an `Arg` inside binds the list of what it saw."""

    item: Pattern
    least: int = 1


@dataclass(frozen=True)
class Call:
    """A call of one of `targets`.

    `name` binds the node, and the same name twice must be the same node. `users` is INSIDE, ANY or a count.
    `commutes` also tries the first two arguments the other way round.
    """

    targets: tuple[Any, ...]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    name: str | None = None
    users: str | int = INSIDE
    commutes: bool = False
    _bound: dict[Any, list[tuple[str, Any]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def bound(self, target: Any) -> list[tuple[str, Any]]:
        """The argument patterns by the names `target` has for them, defaults filled in."""
        found = self._bound.get(target)
        if found is None:
            found = self._bound[target] = list(bind(target, self.args, dict(self.kwargs)).items())
        return found


@dataclass(frozen=True)
class Outputs:
    """Several results at once. The first is the root that the search starts from."""

    items: tuple[Any, ...]


Pattern = Union[Arg, Wild, ListOf, Call, Outputs, Any]


def call(
    target: Any, *args: Any, name: str | None = None, users: str | int = INSIDE, commutes: bool = False, **kwargs: Any
) -> Call:
    """A `Call`; `target` is an operator or a tuple of them. `...` as the last argument: the rest may be anything."""
    targets = target if isinstance(target, tuple) else (target,)
    return Call(
        targets,
        tuple(_frozen(a) for a in args),
        tuple((k, _frozen(v)) for k, v in kwargs.items()),
        name,
        users,
        commutes,
    )


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


_SCHEMAS: dict[Any, tuple[tuple[str, Any, bool], ...] | None] = {}


def _parameters(target: Any) -> tuple[tuple[str, Any, bool], ...] | None:
    """Name, default and whether there is one, for each argument of an ATen operator."""
    if target not in _SCHEMAS:
        schema = target._schema if isinstance(target, torch._ops.OpOverload) else None
        _SCHEMAS[target] = schema and tuple((a.name, a.default_value, a.has_default_value()) for a in schema.arguments)
    return _SCHEMAS[target]


def bind(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name with defaults filled in, so that no spelling of a call differs from another."""
    parameters = _parameters(target)
    if parameters is None:
        return {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    rest = len(args) > 0 and args[-1] is ...
    if rest:
        args = args[:-1]
    bound: dict[str, Any] = {}
    for position, (name, default, has_default) in enumerate(parameters):
        if position < len(args):
            bound[name] = args[position]
        elif name in kwargs:
            bound[name] = kwargs[name]
        elif rest:
            bound[name] = Wild()
        elif has_default:
            bound[name] = _frozen(default)
    return bound


def children(pattern: Pattern) -> Iterator[Pattern]:
    if isinstance(pattern, Call):
        yield from pattern.args
        yield from (value for _, value in pattern.kwargs)
    elif isinstance(pattern, Outputs):
        yield from pattern.items
    elif isinstance(pattern, ListOf):
        yield pattern.item
    elif isinstance(pattern, tuple):
        yield from pattern


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and all it contains, parents first."""
    yield pattern
    for child in children(pattern):
        yield from walk(child)


def root_of(pattern: Pattern) -> Call:
    """The call a search starts from."""
    root = pattern.items[0] if isinstance(pattern, Outputs) else pattern
    if not isinstance(root, Call):
        raise ValueError(f"a pattern must start from a call, not from {root!r}")
    return root


def arg_names(pattern: Pattern) -> tuple[str, ...]:
    """The names of all `Arg`s, in the order they are met."""
    return tuple(dict.fromkeys(p.name for p in walk(pattern) if isinstance(p, Arg)))


def source(pattern: Any) -> str:
    """Python that rebuilds the pattern, given `aten`, `operator`, `torch` and this module's names."""
    if isinstance(pattern, Call):
        names = [_target_source(t) for t in pattern.targets]
        parts = [names[0] if len(names) == 1 else f"({', '.join(names)})", *(source(a) for a in pattern.args)]
        parts += [f"{key}={source(value)}" for key, value in pattern.kwargs]
        parts += [f"{key}={value!r}" for key, value in (("name", pattern.name),) if value is not None]
        parts += [f"users={pattern.users!r}"] if pattern.users != INSIDE else []
        parts += ["commutes=True"] if pattern.commutes else []
        return f"call({', '.join(parts)})"
    if isinstance(pattern, Outputs):
        return f"Outputs({source(pattern.items)})"
    if isinstance(pattern, ListOf):
        return f"ListOf({source(pattern.item)}, {pattern.least})"
    if isinstance(pattern, tuple):
        return f"({', '.join(source(p) for p in pattern)}{',' if len(pattern) == 1 else ''})"
    if isinstance(pattern, float) and (pattern != pattern or pattern in (float("inf"), float("-inf"))):
        return f"float({str(pattern)!r})"
    if isinstance(pattern, torch.device):
        return f"torch.{pattern!r}"
    return "..." if pattern is ... else repr(pattern)


def _target_source(target: Any) -> str:
    name = getattr(target, "__name__", "")
    for module, where in (("operator", operator), ("torch", torch), ("torch.nn.functional", torch.nn.functional)):
        if name and getattr(where, name, None) is target:
            return f"{module}.{name}"
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.split("::")[-1]
        overload = target._overloadname or "default"
        return (
            f"aten.{name}.{overload}"
            if target.namespace == "aten"
            else f"torch.ops.{target.namespace}.{name}.{overload}"
        )
    raise ValueError(f"{target} cannot be written to a file")
