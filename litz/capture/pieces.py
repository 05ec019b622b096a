"""Functions that Dynamo runs in pieces, and whether the pieces are worth it.

In: a graph that ends or begins in the middle of a function, or is of a function called from such a one. Out: its
compiled form, watched: if the function's pieces are not worth it, it runs as it was written from then on.

A piece costs its entry, guards and all, at every call, and saves what its operators would have cost in eager. What the
pieces of a function save together is compared with what they cost once they are known, when the function has been
entered a number of times: one that is called that often is a part that a model is made of, and counts as often.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.compat import Captured, Place, captured_now, leave_code
from litz.context import Context

# Microseconds: what it costs to enter a piece, and to ask first whether the arguments are those of another capture of
# it; what eager spends on an operator besides its work.
_ENTRY, _GUARDS, _OPERATOR, _VIEW = 20.0, 8.0, 3.0, 1.5
_BYTES_PER_MICROSECOND = 1e4
_GROWTH = 64  # later calls may come with so many times the elements of the first
_ENTRIES = 16  # after so many of them a function is judged
_CAPTURES = 4  # after so many of one piece, for other arguments each, no more are compiled if they are not worth it
_UNKNOWN = 1024  # elements of a dimension that depends on data
# Operators that are called as they are, or cost about the same either way.
_HEAVY = ("conv", "linear", "mm", "matmul", "einsum", "attention", "lstm", "gru", "rnn", "_weight_norm", "fft", "sort")

_IN_PLACE = {getattr(operator, f"i{name}") for name in dir(operator) if hasattr(operator, f"i{name}")}
_IN_PLACE |= {operator.iand, operator.ior, operator.setitem}


class Function:
    """A function of the user's, and what each piece of it gains a call."""

    def __init__(self, code: CodeType):
        self.code = weakref.ref(code)
        self.gains: dict[int, list[float]] = {}  # by the identity of the piece's code, one a capture
        self.alone = True  # all that it calls is torch's own, as far as was seen
        self.entered = 0
        self.left = False

    @property
    def gain(self) -> float:
        return sum(max(gains) - _GUARDS * (len(gains) - 1) for gains in self.gains.values())

    @property
    def is_not_worth_it(self) -> bool:
        return self.left or (self.gain < 0 and max(map(len, self.gains.values())) > _CAPTURES)

    def enter(self, ctx: Context) -> None:
        self.entered += 1
        if self.entered == _ENTRIES and self.gain < 0 and not self.left:
            self._leave(ctx)

    def _leave(self, ctx: Context) -> None:
        """From its next call on the function runs as it was written; what it calls is captured by itself."""
        self.left = True
        ctx.note(
            f"run as it was written from here on: its pieces, {len(self.gains)} of them, cost "
            f"{-self.gain:.0f} microseconds a call more than they save"
        )
        ctx.publish()
        code = self.code()
        if code is not None:
            leave_code(code, with_all_it_calls=self.alone)


class Functions:
    """Those met so far. A piece that goes on after a break is called by the piece before it."""

    def __init__(self) -> None:
        self._by_code: dict[int, tuple[weakref.ref[CodeType], Function]] = {}
        self._by_place: dict[Place, Function] = {}

    def of(self, captured: Captured) -> Function:
        code, caller = captured.code, captured.callers[0] if captured.callers else None
        before = None if caller is None else self._by_place.get(caller)
        known, function = self._by_code.get(id(code), (None, None))
        forgotten = function is not None and function.left and function.code() is code  # by Dynamo, which asks again
        if function is None or known is None or known() is not code or forgotten:
            function = before if before is not None and captured.goes_on else Function(code)
            self._by_code[id(code)] = weakref.ref(code), function
        if before is not None and before is not function and not function.alone:
            before.alone = False
        self._by_place[captured.place] = function
        return function


_FUNCTIONS = Functions()  # process-wide, as are Dynamo's own caches, which it is about


class Piece:
    """One graph of such a function."""

    def __init__(self, function: Function, code: CodeType, gain: float):
        self.function = function
        self.first = function.code() is code
        function.gains.setdefault(id(code), []).append(gain)

    def watched(self, compiled: Callable[..., Any], ctx: Context) -> Callable[..., Any]:
        return _Watched(compiled, self.function, ctx) if self.first else compiled


class _Watched:
    """The first piece of a function, by which it is entered."""

    def __init__(self, compiled: Callable[..., Any], function: Function, ctx: Context):
        self.compiled, self.function, self.ctx = compiled, function, ctx

    def __call__(self, *args: Any) -> Any:
        self.function.enter(self.ctx)
        return self.compiled(*args)


def piece_of(graph_module: fx.GraphModule) -> Piece | None:
    """The piece that Dynamo is about to have compiled; None where it is all of the function the user compiled."""
    captured = captured_now()
    if captured is None:
        return None
    broken = getattr(getattr(graph_module, "compile_subgraph_reason", None), "graph_break", False)
    if not broken and not captured.callers and not captured.goes_on:
        return None
    function = _FUNCTIONS.of(captured)
    function.alone = function.alone and all(map(_calls_no_one, captured.arguments.values()))
    return Piece(function, captured.code, gain_of(graph_module.graph))


def _calls_no_one(argument: object) -> bool:
    """Whether the argument brings no code of the user's with it, beyond that of its own class."""
    if isinstance(argument, torch.nn.Module):
        parts = (part for part in argument.modules() if part is not argument)
        return all(type(part).__module__.startswith("torch.nn.") for part in parts)
    return isinstance(argument, torch.Tensor) or not callable(argument)


# -- what is gained --------------------------------------------------------------------------------
def gain_of(graph: fx.Graph) -> float:
    """Microseconds that a call saves if the graph is compiled, the entry into it taken off."""
    return sum(_saved(node) for node in graph.nodes if node.op.startswith("call")) - _ENTRY


def _saved(node: fx.Node) -> float:
    """What eager spends on the node that compiled code does not: a dispatch, and a result that only passes by."""
    made = _tensors(node)
    if not made or _is_heavy(node):
        return 0.0
    if _is_view(node, made):
        return _VIEW
    moved = 2 * _GROWTH * sum(_elements(t) * t.element_size() for t in made) if _passes_by(node) else 0
    return _OPERATOR + moved / _BYTES_PER_MICROSECOND


def _passes_by(node: fx.Node) -> bool:
    """Whether the result, and what is a view of it, is read by operators that a kernel may be made of, and no other."""
    for user in node.users:
        if not user.op.startswith("call") or _is_heavy(user):
            return False
        made = _tensors(user)
        if made and _is_view(user, made) and not _passes_by(user):
            return False
    return True


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """What the node makes, or writes to."""
    made = node.args[0] if node.target is operator.setitem else node
    value = made.meta.get("example_value") if isinstance(made, fx.Node) else None
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def _is_heavy(node: fx.Node) -> bool:
    return any(part in _name(node) for part in _HEAVY)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _is_view(node: fx.Node, made: list[torch.Tensor]) -> bool:
    if _name(node).endswith("_") or node.target in _IN_PLACE:
        return False
    given = {t.untyped_storage()._cdata for used in node.all_input_nodes for t in _tensors(used) if _is_dense(t)}
    return all(_is_dense(t) and t.untyped_storage()._cdata in given for t in made)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _elements(tensor: torch.Tensor) -> int:
    total = 1
    for size in tensor.shape:
        hint = size if isinstance(size, int) else size.node.hint if size.node.has_hint() else None
        total *= _UNKNOWN if hint is None else hint
    return total


def is_little(nodes: Sequence[fx.Node]) -> bool:
    """Whether the nodes compute nothing but views, sizes and a number or two, of whatever size their tensors are."""
    made = [(node, tensors) for node in nodes if (tensors := _tensors(node))]
    computing = [tensors for node, tensors in made if not _is_view(node, tensors)]
    return len(computing) * _OPERATOR < _ENTRY and all(_elements(t) == 1 for tensors in computing for t in tensors)


__all__ = ["Piece", "gain_of", "is_little", "piece_of"]
