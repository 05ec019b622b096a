"""Functions that Dynamo runs in pieces, and whether the pieces are worth it.

In: a graph that ends or begins in the middle of a function, or is of a function called from such a one. Out: its
compiled form, watched: if the function's pieces are not worth it, it runs as it was written from then on, and what it
calls is captured by itself.

A piece costs its entry, guards and all, at every call, and saves what its operators would have cost in eager. What the
pieces of a function save together is compared with what they cost once they are known, when the function has been
entered a number of times: one that is called that often is a part that a model is made of, and counts as often. Dynamo
can only let a function be for everyone, so that is done where no other backend has a capture of it. What is in doubt is
taken to be saved: all that computes on more than a number may be given more of them later.
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

from litz.capture.subclasses import is_subclass
from litz.compat import Captured, Place, backends_of, captured_now, leave_code
from litz.context import Context

# Microseconds: what it costs to enter a piece, and to ask first whether the arguments are those of another capture of
# it; what eager spends on an operator besides its work.
_ENTRY, _GUARDS, _OPERATOR, _VIEW = 20.0, 8.0, 3.0, 1.5
_BYTES_PER_MICROSECOND = 1e4
_GROWTH = 4096  # later calls may come with so many times the elements of the first
_ENTRIES = 16  # after so many of them a function is judged
_CAPTURES = 4  # after so many of one piece, for other arguments each, no more are compiled if they are not worth it
_UNKNOWN = 1024  # elements of a dimension that depends on data
# Operators that are called as they are, or cost about the same either way.
_HEAVY = ("conv", "linear", "mm", "matmul", "einsum", "attention", "lstm", "gru", "rnn", "_weight_norm", "fft", "sort")
# Those that one pass over their result is all there is to, in eager too.
_ONE_PASS = {
    "abs", "add", "arange", "bool", "cat", "ceil", "clone", "contiguous", "copy_", "detach", "div", "double",
    "embedding", "empty", "empty_like", "eq", "fill_", "float", "floor", "full", "full_like", "ge", "getitem",
    "gt", "int", "le", "long", "lt", "maximum", "minimum", "mul", "ne", "neg", "ones", "ones_like", "pad",
    "relu", "round", "setitem", "stack", "sub", "to", "truediv", "zero_", "zeros", "zeros_like",
}  # fmt: skip

_IN_PLACE = {getattr(operator, f"i{name}") for name in dir(operator) if hasattr(operator, f"i{name}")}
_IN_PLACE |= {operator.iand, operator.ior, operator.setitem}


class Function:
    """A function of the user's, as a backend gets it, and what each piece of it gains a call."""

    def __init__(self, code: CodeType, backend: object):
        self.code, self.backend = weakref.ref(code), backend
        self.gains: dict[int, list[float]] = {}  # by the identity of the piece's code, one a capture
        self.entered = 0
        self.left = False

    @property
    def gain(self) -> float:
        return sum(max(gains) - _GUARDS * (len(gains) - 1) for gains in self._gains())

    @property
    def is_not_worth_it(self) -> bool:
        return self.left or (self.gain < 0 and max(map(len, self._gains())) > _CAPTURES)

    def _gains(self) -> list[list[float]]:
        return list(self.gains.values())  # at once: another thread may be at a capture

    def why(self) -> str:
        return f"its pieces, {len(self.gains)} of them, cost {-self.gain:.0f} microseconds a call more than they save"

    def enter(self, ctx: Context) -> None:
        self.entered = entered = self.entered + 1  # threads that count at once both come by each number
        if entered == _ENTRIES and self.gain < 0 and not self.left:
            self._leave(ctx)

    def _leave(self, ctx: Context) -> None:
        code = self.code()
        if code is None or any(backend != self.backend for backend in backends_of(code)):
            return
        self.left = True
        leave_code(code)
        ctx.leave(f"the function runs as it was written from here on: {self.why()}")
        ctx.publish()


class Functions:
    """Those met so far. A piece that goes on after a break is called by the piece before it."""

    def __init__(self) -> None:
        self._by_code: dict[int, tuple[weakref.ref[CodeType], Function]] = {}
        self._by_place: dict[Place, Function] = {}

    def of(self, captured: Captured) -> Function:
        code, backend = captured.code, captured.backend
        known, function = self._by_code.get(id(code), (None, None))
        forgotten = not any(earlier == backend for earlier in backends_of(code))  # Dynamo was reset
        same = known is not None and known() is code and function is not None and function.backend == backend
        if function is None or not same or forgotten:
            before = self._by_place.get(captured.callers[0]) if captured.callers and captured.goes_on else None
            function = Function(code, backend) if before is None or before.backend != backend else before
            function.gains.pop(id(code), None)
            self._by_code[id(code)] = weakref.ref(code), function
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
    return Piece(_FUNCTIONS.of(captured), captured.code, gain_of(graph_module.graph))


# -- what is gained --------------------------------------------------------------------------------
def gain_of(graph: fx.Graph) -> float:
    """Microseconds that a call saves if the graph is compiled, the entry into it taken off."""
    return sum(_saved(node) for node in graph.nodes if node.op.startswith("call")) - _ENTRY


def _saved(node: fx.Node) -> float:
    """What eager spends on the node that compiled code does not: a dispatch, and a result that only passes by."""
    made = _tensors(node)
    if not made:
        return 0.0
    heavy = _is_heavy(node)
    if not heavy and _is_view(node, made):
        return _VIEW
    grows = sum(_elements(t) * t.element_size() for t in (*made, *_read(node)) if t.dim() > 0)
    moved = 2 * _GROWTH * grows if _passes_by(node) or not (heavy or _name(node) in _ONE_PASS) else 0
    return (0.0 if heavy else _OPERATOR) + moved / _BYTES_PER_MICROSECOND


def _read(node: fx.Node) -> list[torch.Tensor]:
    return [tensor for used in node.all_input_nodes for tensor in _tensors(used)]


def _passes_by(node: fx.Node) -> bool:
    """Whether the result, or what is a view of it, is read by an operator that a kernel may be made of with it."""
    for user in node.users:
        made = _tensors(user) if user.op.startswith("call") and not _is_heavy(user) else []
        if made and (_passes_by(user) if _is_view(user, made) else True):
            return True
    return False


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
    given = {t.untyped_storage()._cdata for t in _read(node) if has_memory(t)}
    return all(has_memory(t) and t.untyped_storage()._cdata in given for t in made)


def has_memory(tensor: torch.Tensor) -> bool:
    """Of its own; a tensor within a transform, one of a subclass, and a sparse one are made of others."""
    plain = tensor.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return plain and not is_subclass(tensor)


def _elements(tensor: torch.Tensor) -> int:
    total = 1
    for size in tensor.shape:
        known = isinstance(size, int) or (not size.node.is_nested_int() and size.node.has_hint())
        hint = None if not known else size if isinstance(size, int) else size.node.hint
        total *= _UNKNOWN if hint is None else hint
    return total


def is_little(nodes: Sequence[fx.Node]) -> bool:
    """Whether the nodes compute nothing but views, sizes and a number or two, from as little."""
    made = [(node, tensors) for node in nodes if (tensors := _tensors(node))]
    computing = [(*tensors, *_read(node)) for node, tensors in made if not _is_view(node, tensors)]
    return len(computing) * _OPERATOR < _ENTRY and all(_elements(t) == 1 for tensors in computing for t in tensors)


__all__ = ["Piece", "gain_of", "has_memory", "is_little", "piece_of"]
