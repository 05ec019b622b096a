"""Mutation and aliasing in a torch-level graph: what a rule must know before it moves or shares a tensor.

In: nodes of a graph that is not functional. Out: whether one may write to memory that it did not make, and
whether its result is memory of its own. Where nothing is known, the answer is the careful one.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from litz.graph.alias import counts_in_memory

_HOMES = ("torch", "_operator", "math", "builtins")
_WRITING_OPERATORS = frozenset(
    [getattr(operator, name) for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)]
    + [operator.setitem, operator.delitem]
) - {operator.index, operator.inv, operator.invert}
# Named so because Python has the words without the underscore to itself.
_WORDS_OF_PYTHON = frozenset([operator.and_, operator.or_, operator.not_, operator.is_])
# Functions that make a new tensor, whatever they are given; their methods of the same name do too.
_FRESH_NAMES = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "matmul",
        "bmm",
        "mm",
        "addmm",
        "baddbmm",
        "softmax",
        "log_softmax",
        "cat",
        "concat",
        "concatenate",
        "stack",
        "where",
        "masked_fill",
        "linear",
        "conv1d",
        "conv2d",
        "conv3d",
        "embedding",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "gelu",
        "tanh",
        "sigmoid",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "pow",
        "sin",
        "cos",
        "sum",
        "mean",
        "amax",
        "amin",
        "neg",
        "clone",
        "scaled_dot_product_attention",
        "logical_not",
        "truediv",
        "eq",
        "lt",
        "le",
        "gt",
        "ge",
        "ne",
        "rsub",
        "cross_entropy",
        "mse_loss",
    ]
)
# Functions that change how what follows is run.
_STATE_NAMES = frozenset(["_set_grad_enabled", "_enter_autocast", "_exit_autocast", "manual_seed", "set_rng_state"])
_RANDOM_NAMES = ("drop", "rand", "bernoulli", "multinomial", "normal", "poisson", "rrelu", "attention")
# Functions that may return (a view of) their argument; nothing is lost when nobody uses that.
_VIEW_NAMES = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "t",
        "mT",
        "expand",
        "expand_as",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "to",
        "type",
        "type_as",
        "float",
        "half",
        "bfloat16",
        "double",
        "getitem",
        "split",
        "chunk",
        "unbind",
        "flatten",
        "detach",
    ]
)
# Functions that are fresh too, unless they are told to write in place.
_FRESH_UNLESS_IN_PLACE = frozenset(["relu", "silu", "dropout", "batch_norm"])


def is_fresh(node: fx.Node) -> bool:
    """Whether the result is a tensor of its own, that no argument shares memory with."""
    name = _name(node)
    if name in _FRESH_NAMES:
        return "out" not in node.kwargs
    if name == "einsum":
        return len(node.all_input_nodes) > 1  # of one tensor it may be a view
    # Dropout that is switched off returns its argument.
    return name == "batch_norm" or (name in _FRESH_UNLESS_IN_PLACE and name != "dropout" and not _in_place(node))


def is_dead(node: fx.Node) -> bool:
    """Whether it may be removed: nobody uses it, and it does nothing but compute or look."""
    known = is_fresh(node) or _name(node) in _VIEW_NAMES or node.op == "get_attr"
    return not node.users and known and not mutates(node)


def mutates(node: fx.Node) -> bool:
    """Whether running the node may change a tensor that was there before."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if "out" in node.kwargs or _in_place(node):
        return True
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or name.startswith("__i")
    if node.op != "call_function":
        return True
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    name = _name(node)
    if name in ("batch_norm", "instance_norm"):
        # Its running statistics; normalised, a batch norm in evaluation says so in place.
        return len(node.args) < 6 or name == "instance_norm" or bool(node.args[5])
    if name in ("embedding", "embedding_bag"):
        return (node.args[3] if len(node.args) > 3 else node.kwargs.get("max_norm")) is not None
    return _may_write(target)


@lru_cache(maxsize=None)
def _may_write(target: Any) -> bool:
    name = getattr(target, "__name__", "")
    if target in _WRITING_OPERATORS or name in _STATE_NAMES or isinstance(target, torch._ops.HigherOrderOperator):
        return True
    if target in _WORDS_OF_PYTHON:
        return False
    if name.endswith("_") and not name.endswith("__"):
        return True
    home = (getattr(target, "__module__", None) or "").split(".")[0]
    known = home in _HOMES or getattr(target, "__objclass__", None) is torch._C.TensorBase
    return not known and getattr(torch, name, None) is not target


@lru_cache(maxsize=None)
def _in_place_position(target: Any) -> int | None:
    """Where a function of `torch.nn.functional` takes `inplace`."""
    if getattr(target, "__module__", None) != functional.__name__:
        return None
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def _in_place(node: fx.Node) -> bool:
    if node.kwargs.get("inplace"):
        return True
    if node.op != "call_function":
        return False
    position = _in_place_position(node.target)
    return position is not None and len(node.args) > position and bool(node.args[position])


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function" or _may_write(node.target):
        return ""
    return str(getattr(node.target, "__name__", "")).removeprefix("_")


def draws(node: fx.Node) -> bool:
    """Whether the node may draw random numbers: two that do must keep their order."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    name = _name(node)
    return any(part in name for part in _RANDOM_NAMES) if name else mutates(node)


def disturbed(first: fx.Node, last: fx.Node, own: Collection[fx.Node]) -> fx.Node | None:
    """A node that may write to memory between the two, other than those in `own`: what is read at the first
    could not be read at the last instead."""
    node = first
    while node is not last:
        if node not in own and mutates(node):
            return node
        node = node.next
    return None


def shared_with_user(node: fx.Node) -> bool:
    """Whether the node's memory may be returned or written to: by itself, or through what may be its views."""
    return any(user.op == "output" or mutates(user) for user in _users_of_memory(node))


def looked_around(node: fx.Node) -> bool:
    """Whether the memory that the node may be a part of may be read around it."""
    return any(counts_in_memory(user) for user in _users_of_memory(node))


def _users_of_memory(node: fx.Node) -> Iterator[fx.Node]:
    todo, seen = [node], {node}
    while todo:
        for user in todo.pop().users:
            if user in seen:
                continue
            yield user
            seen.add(user)
            if not is_fresh(user):
                todo.append(user)
