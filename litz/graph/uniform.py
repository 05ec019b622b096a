"""Constants inside a graph: what can be known about a node's elements without running the program.

In: a graph module. Out: for a node, a *compact* tensor or None. A compact tensor has the node's rank, and
size 1 along every dimension in which its elements do not vary: a scalar expanded to a gigabyte is one
number, and a causal mask over any batch is one square. Pointwise operators work on compact tensors as they
are, by broadcasting, so a proof about a mask costs a fraction of building it. A dimension whose size is known only at
run time is one of those: what varies along it is not known.

Nodes are evaluated only when asked for, with real torch operators, within a bound on size. An operator that is told a
number known only at run time is not: the answer would hold for one value of it.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from litz.graph.alias import base, is_pure
from litz.graph.in_range import READS_AT_INDICES, in_range
from litz.ops.layout import depends_on_memory

aten = torch.ops.aten

MAX_BYTES = 1 << 27  # of one evaluated tensor

# Every element of the result is an element of the first argument.
_SELECTING = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int, aten.permute.default, aten.t.default,
    aten.slice.Tensor, aten.select.int, aten.clone.default, aten.alias.default, aten.detach.default,
    aten.lift_fresh_copy.default, aten.index.Tensor, aten.index_select.default, aten.gather.default,
    aten.embedding.default, aten.repeat.default, aten.flip.default, aten.roll.default, aten.unfold.default,
    aten.as_strided.default, aten.contiguous.default, aten.diagonal.default, aten._reshape_alias.default,
    aten.lift_fresh.default,
}  # fmt: skip
# Views that mean the same on a compact tensor as on the whole.
_ON_COMPACT = {
    aten.unsqueeze.default,
    aten.transpose.int,
    aten.permute.default,
    aten.t.default,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
}
# Made of one value, which is this argument or is known.
_FILLED = {
    aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2, aten.scalar_tensor.default: 0,
    aten.fill.Scalar: 1,
}  # fmt: skip
_ZEROS = {
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten._efficientzerotensor.default,
}  # fmt: skip
_ONES = {aten.ones.default, aten.ones_like.default, aten.new_ones.default}
_AND = {aten.bitwise_and.Tensor, aten.logical_and.default}
_OR = {aten.bitwise_or.Tensor, aten.logical_or.default}
# Operators that can be known although an operand is not.
_DECIDING = _FILLED.keys() | _ZEROS | _ONES | _AND | _OR | {aten.where.self}


class Constants:
    def __init__(self, graph_module: fx.GraphModule):
        self.graph_module = graph_module
        for lift in (aten.lift_fresh.default, aten.lift_fresh_copy.default):
            for node in graph_module.graph.find_nodes(op="call_function", target=lift):
                # A number or list that the program turned into a tensor: nobody else holds it. The mark stays
                # when the call, which does nothing, is rewritten away.
                node.args[0].meta["literal"] = True
        self._known: dict[fx.Node, torch.Tensor | None] = {}
        self.frozen: dict[fx.Node, bool] = {}  # which nodes are computed of frozen inputs alone
        self.proofs: dict[Any, Any] = {}  # what rules have found out about constants, by keys of their own

    def forget(self) -> None:
        """Called before each round of rewriting: what was unknown may be known now. What was known stays true."""
        self._known = {node: value for node, value in self._known.items() if value is not None}
        self.frozen = {node: True for node, value in self.frozen.items() if value}

    def uniform(self, value: Any) -> Any:
        """The one number all elements equal, or None."""
        if isinstance(value, (bool, int, float)):
            return value
        if not isinstance(value, fx.Node):
            return None
        compact = self.compact(value)
        return compact.item() if compact is not None and compact.numel() == 1 else None

    def compact(self, node: fx.Node) -> torch.Tensor | None:
        """The node's compact tensor, or None if its elements are not known."""
        todo = [node]
        while todo:
            top = todo[-1]
            if top in self._known:
                todo.pop()
                continue
            waiting = [i for i in top.all_input_nodes if i not in self._known] if _worth_entering(top) else []
            if waiting:
                todo += waiting
                continue
            todo.pop()
            self._known[top] = self._evaluate(top)
        return self._known[node]

    def whole(self, node: fx.Node) -> torch.Tensor | None:
        """All elements of the node, as a view of the compact tensor; None if they or their number are not known."""
        compact = self.compact(node)
        return None if compact is None or _is_symbolic(node.meta["val"]) else compact.expand(node.meta["val"].shape)

    # -- evaluation ---------------------------------------------------------------------------------
    def _evaluate(self, node: fx.Node) -> torch.Tensor | None:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor) or any(isinstance(s, int) and s == 0 for s in fake.shape):
            return None
        if fake.device.type == "meta" or fake.is_complex() or fake.is_quantized:
            return None
        if node.op == "get_attr":
            return self._attribute(node)
        if not _worth_entering(node):
            return None
        if node.target not in _DECIDING:
            # Most nodes of a program end here: an operand is unknown. Indices may be, if the data are all alike, and
            # they are known to be within them.
            needed = node.all_input_nodes[:1] if node.target in _SELECTING else node.all_input_nodes
            if any(self._known.get(operand) is None for operand in needed):
                return None
        try:
            with unset_fake_temporarily(), torch.no_grad():
                return self._call(node, fake)
        except Exception:
            # An operator that cannot be run here says nothing about the program.
            return None

    def _attribute(self, node: fx.Node) -> torch.Tensor | None:
        name = str(node.target)
        # Only what tracing itself made: a parameter may be changed by its owner later.
        if not name.startswith(("_tensor_constant", "_litz_constant")) and not node.meta.get("literal"):
            return None
        tensor = getattr(self.graph_module, name, None)
        if not isinstance(tensor, torch.Tensor) or tensor.numel() * tensor.element_size() > MAX_BYTES:
            return None
        with unset_fake_temporarily(), torch.no_grad():
            return compress(tensor.detach().cpu())

    def _call(self, node: fx.Node, fake: torch.Tensor) -> torch.Tensor | None:
        target, args = node.target, node.args
        filled = self._filled(node, fake)
        if filled is not None:
            return torch.full([1] * fake.dim(), filled, dtype=fake.dtype, device="cpu")
        absorbed = self._absorbed(node, fake)
        if absorbed is not None:
            return absorbed
        if target in _SELECTING:
            counts = depends_on_memory(target) is not None
            source = self._known.get(base(args[0]) if counts else args[0])  # type: ignore[arg-type]
            if source is None:
                return None
            if target in READS_AT_INDICES and not in_range(node, self.compact):
                return None  # the read is to be made, since it may fail
            if source.numel() == 1:
                return source.reshape([1] * fake.dim())
            if counts:
                return None  # a compact tensor is laid out otherwise than the one it stands for
            if target is aten.expand.default:
                return source.reshape([1] * (fake.dim() - source.dim()) + list(source.shape))
            if target in _ON_COMPACT:
                return target(source, *args[1:])  # type: ignore[operator]
        inputs = [self._known.get(i) for i in node.all_input_nodes]
        if any(i is None for i in inputs) or _is_symbolic((args, node.kwargs)):
            return None
        if torch.Tag.pointwise in target.tags:  # type: ignore[union-attr]
            shape = torch.broadcast_shapes(*(i.shape for i in inputs if i is not None)) if inputs else ()
            if _bytes(shape, fake) > MAX_BYTES:
                return None
            return self._run(node, fake, lambda n: self._known[n])
        if _is_symbolic((fake, [i.meta["val"] for i in node.all_input_nodes])) or _bytes(fake.shape, fake) > MAX_BYTES:
            return None
        return self._run(node, fake, self.whole)

    def _run(self, node: fx.Node, fake: torch.Tensor, value: Any) -> torch.Tensor | None:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), value)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        if not isinstance(result, torch.Tensor) or result.dtype != fake.dtype:
            return None
        if result.dim() < fake.dim():
            result = result.reshape([1] * (fake.dim() - result.dim()) + list(result.shape))
        return compress(result)

    def _filled(self, node: fx.Node, fake: torch.Tensor) -> Any:
        target = node.target
        if target in _ZEROS:
            return 0
        if target in _ONES:
            return 1
        position = _FILLED.get(target)
        if position is None or len(node.args) <= position:
            return None
        value = node.args[position]
        return value if isinstance(value, (bool, int, float)) else None

    def _absorbed(self, node: fx.Node, fake: torch.Tensor) -> torch.Tensor | None:
        """Results that one operand decides, whatever the other holds."""
        target = node.target
        if target is aten.where.self:
            condition = self._known.get(node.args[0])  # type: ignore[arg-type]
            if condition is None or condition.numel() != 1:
                return None
            chosen = self._known.get(node.args[1] if condition.item() else node.args[2])  # type: ignore[arg-type]
            if chosen is None or chosen.dtype != fake.dtype:
                return None
            return chosen.reshape([1] * (fake.dim() - chosen.dim()) + list(chosen.shape))
        if (target in _AND or target in _OR) and fake.dtype == torch.bool:
            for operand in node.args[:2]:
                known = self._known.get(operand)  # type: ignore[arg-type]
                if known is not None and known.numel() == 1 and bool(known.item()) == (target in _OR):
                    return torch.full([1] * fake.dim(), target in _OR, dtype=torch.bool, device="cpu")
        return None


def _worth_entering(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem and _is_exact(node.target)


@lru_cache(maxsize=None)
def _is_exact(target: Any) -> bool:
    if not is_pure(target) or torch.Tag.nondeterministic_bitwise in target.tags:
        return False
    return target in _SELECTING or depends_on_memory(target) is None


def _is_symbolic(value: Any) -> bool:
    """Whether a number in it, or a size of a tensor in it, is known only at run time."""
    return any(
        any(isinstance(size, torch.SymInt) for size in leaf.shape)
        if isinstance(leaf, torch.Tensor)
        else isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool))
        for leaf in pytree.tree_leaves(value)
    )


def _bytes(shape: Any, fake: torch.Tensor) -> int:
    total = fake.element_size()
    for size in shape:
        total *= size
    return total


def compress(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with size 1 along every dimension in which its elements do not vary."""
    for dim, size in enumerate(tensor.shape):
        if size > 1:
            first = tensor.narrow(dim, 0, 1)
            # One more row tells most varying tensors apart before all of them are read.
            bits, expected = _bits(tensor), _bits(first)
            if torch.equal(bits.narrow(dim, 1, 1), expected) and bool((bits == expected).all()):
                tensor = first
    return (
        tensor.clone()
        if tensor.numel() * 4 < tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
        else tensor
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as they lie in memory: 0.0 is not -0.0, and NaN is itself."""
    return tensor.view(_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_causal(compact: torch.Tensor, queries: Any, keys: Any) -> bool:
    """Whether a mask lets query i see exactly the keys up to i: what `is_causal` of attention means."""
    if not isinstance(queries, int) or not isinstance(keys, int):
        return False  # as many elements as there are queries and keys are not known, so it is the same for all
    if compact.dim() < 2 or any(size != 1 for size in compact.shape[:-2]):
        return False
    square = compact.reshape(compact.shape[-2:]).expand(queries, keys)
    rows, columns = torch.arange(queries, device="cpu").unsqueeze(1), torch.arange(keys, device="cpu")
    return torch.equal(square, columns <= rows)
