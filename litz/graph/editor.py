"""Editing a graph: new nodes with values and provenance, replacements that keep every later node true.

In: a graph module whose nodes carry fake tensors. Out: the same, edited in place.

A replacement may lay its result out otherwise than the node it stands for (a fused attention writes heads
innermost). Everything after it is then recomputed: views that the new layout does not allow become copies,
and what the user receives, or an operator that sees layouts (`ops/layout.py`), gets the old layout back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from litz.graph.alias import base, counts_in_memory, is_looked_around, is_pure, is_view, may_stand_for
from litz.graph.eager_strides import as_eager_lays_out
from litz.graph.mutation import draws, is_dead
from litz.graph.sizes import is_dense, likely, size_of, sizes, sizes_as_arguments
from litz.ops.layout import why_it_sees_layouts

aten = torch.ops.aten

_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
# What a node is by itself; all else in `meta` says where it came from, and passes to its replacement.
_OWN = ("val", "tensor_meta", "example_value")


class Refused(Exception):
    """A replacement that would change what the graph means."""


class Editor:
    def __init__(self, graph_module: fx.GraphModule):
        self.graph_module, self.graph = graph_module, graph_module.graph
        self.mode = mode_of(self.graph)
        self.created: list[fx.Node] = []
        self._examples: dict[Any, Any] = {}
        self._constants = 0  # where to look for the next free name

    # -- new nodes ----------------------------------------------------------------------------------
    def call(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], before: fx.Node, like: fx.Node
    ) -> fx.Node:
        """A call before `before`, with its fake value, and the provenance of `like`."""
        with self.graph.inserting_before(before), sizes_as_arguments():
            node = self.graph.call_function(target, args, kwargs)
        self.created.append(node)
        inherit(node, like)
        node.meta["val"] = self.value(target, args, kwargs)
        return node

    def value(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = fx.node.map_arg((args, kwargs), self._fake)
        with self._dispatching(), self.mode, torch.no_grad():
            found = target(*args, **kwargs)
            return as_eager_lays_out(target, args, found) if isinstance(target, torch._ops.OpOverload) else found

    def _dispatching(self) -> AbstractContextManager[Any]:
        """Of sizes that vary, PyTorch's kernels in C++ may ask for numbers; those it has in Python do not."""
        symbols = self.mode.shape_env is not None and bool(self.mode.shape_env.var_to_range)
        return enable_python_dispatcher() if symbols else nullcontext()

    def _fake(self, node: fx.Node) -> Any:
        """The node's value; of a constant that a trace has kept as it is, a fake."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            value = node.meta["val"] = self.mode.from_tensor(value, static_shapes=True)
        return value

    def constant(self, tensor: torch.Tensor, before: fx.Node, like: fx.Node) -> fx.Node:
        """The tensor as an attribute of the module."""
        while hasattr(self.graph_module, f"_litz_constant{self._constants}"):
            self._constants += 1
        name = f"_litz_constant{self._constants}"
        self.graph_module.register_buffer(name, tensor, persistent=False)
        with self.graph.inserting_before(before):
            node = self.graph.get_attr(name)
        self.created.append(node)
        inherit(node, like)
        node.meta["val"] = self.mode.from_tensor(tensor, static_shapes=True)
        return node

    def inline(self, traced: fx.GraphModule, args: Iterable[Any], before: fx.Node, like: fx.Node) -> Any:
        """Copies the traced graph's nodes in, its inputs replaced by `args`; the nodes it returns."""
        inputs = iter(args)
        copies: dict[fx.Node, Any] = {}
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(inputs)
            elif node.op == "get_attr":
                copies[node] = self.constant(getattr(traced, str(node.target)), before, like)
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], lambda n: copies[n])
            else:
                with self.graph.inserting_before(before), sizes_as_arguments():
                    copy = self.graph.create_node(
                        node.op, node.target, *fx.node.map_arg((node.args, node.kwargs), lambda n: copies[n])
                    )
                self.created.append(copy)
                inherit(copy, like)
                copy.meta["val"] = node.meta.get("val")
                copies[node] = copy
        raise Refused("the traced replacement returns nothing")

    def example(self, key: Any, trace: Callable[[], Any]) -> Any:
        """A traced graph, remembered: every layer of a model asks for the same one."""
        if key not in self._examples:
            self._examples[key] = trace()
        return self._examples[key]

    # -- replacement --------------------------------------------------------------------------------
    def replace(self, old: fx.Node, new: Any, fresh: bool) -> None:
        """`new` for `old` everywhere. `fresh`: its memory is of this rewrite's making, so that nobody else holds it."""
        self.check(old, new)
        if not fresh and not may_stand_for(new, old):
            raise Refused("the result would share memory that the user can see")
        if base(new) is not base(old) and is_looked_around(old):
            raise Refused("what lies around the node is read, and the result would not share memory with that")
        before, after = old.meta.get("val"), new.meta.get("val")
        users = list(old.users)  # those that `new` had already see no change
        earlier = {new: before}
        self._keep_layout(old, new, earlier)
        old.replace_all_uses_with(new)
        if new.op in ("call_function", "get_attr"):
            for key, value in old.meta.items():
                # What was computed already, in the forward, is not computed in the backward for standing there.
                if key not in _OWN and (fresh or key != "in_backward"):
                    new.meta.setdefault(key, value)
        if isinstance(before, torch.Tensor) and not same_place(before, after):
            self._relayout(users, earlier)
        self.erase(old)

    def read_instead(self, old: fx.Node, new: fx.Node, users: Iterable[fx.Node]) -> None:
        """These users of `old`, none of whom sees layouts, read `new`, which holds the same and lies otherwise."""
        readers = list(users)
        for user in readers:
            user.replace_input_with(old, new)
        self._relayout(readers, {new: old.meta["val"]})

    def check(self, old: fx.Node, new: Any) -> None:
        if not isinstance(new, fx.Node):
            raise Refused(f"the replacement of {old.name} is {new!r}, not a node")
        if not alike(old.meta.get("val"), new.meta.get("val")):
            expected, found = described(old.meta.get("val")), described(new.meta.get("val"))
            raise Refused(f"the replacement of {old.name} is {found} where {expected} is needed")

    def _relayout(self, users: Iterable[fx.Node], earlier: dict[fx.Node, Any]) -> None:
        """Recompute the users of what has a new layout, and all that follows, until nothing differs.

        By use, not by place: the users of a match of several outputs may still stand before its replacement.
        `earlier`: the values that nodes with a new layout had before; it grows.
        """
        affected = deque(users)
        while affected:
            node = affected.popleft()
            old = node.meta.get("val")
            if node.op == "call_function" and not self._recompute(node):
                earlier.setdefault(node, old)
                self._keep_layout(node, node, earlier)
                affected.extend(node.users)

    def _recompute(self, node: fx.Node) -> bool:
        """Whether the node's value lies as it did."""
        old = node.meta.get("val")
        try:
            node.meta["val"] = self.value(node.target, node.args, node.kwargs)
        except (RuntimeError, ValueError):
            if node.target not in _RESHAPES:
                raise
            copy = self.call(
                aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}, node, node
            )
            node.args = (copy, *node.args[1:])
            node.meta["val"] = self.value(node.target, node.args, node.kwargs)
        return same_place(old, node.meta["val"])

    def _keep_layout(self, seen: fx.Node, node: fx.Node, earlier: Mapping[fx.Node, Any]) -> None:
        """Users of `seen` that see layouts, and the user of the program, get `node` in a copy that lies as it did."""
        before, after = earlier[node], node.meta.get("val")
        if not isinstance(before, torch.Tensor):
            return
        if not _same_strides(before, after):
            strict = [u for u in seen.users if u.op == "output" or sees_layout(u, after)]
        else:
            strict = [] if same_place(before, after) else [u for u in seen.users if counts_in_memory(u)]
        if strict:
            copy = self.restored(node, earlier, min(strict), {})
            for user in strict:
                user.replace_input_with(seen, copy)

    def restored(
        self, node: fx.Node, earlier: Mapping[fx.Node, Any], before: fx.Node, known: dict[fx.Node, fx.Node]
    ) -> fx.Node:
        """The node where it lay earlier: a view is one of its base's copy again, with all the memory around it."""
        if node not in earlier:
            return node
        if node not in known:
            source = node.args[0] if is_view(node) else None
            if isinstance(source, fx.Node) and source in earlier:
                base = self.restored(source, earlier, before, known)
                known[node] = self.call(node.target, (base, *node.args[1:]), dict(node.kwargs), before, node)
            else:
                known[node] = self.laid_out(node, earlier[node], before)
        return known[node]

    def laid_out(self, node: fx.Node, like: torch.Tensor, before: fx.Node) -> fx.Node:
        """The node with the strides of `like`, gaps included: a copy, unless only dimensions of one element differ."""
        found = node if same_place(node.meta["val"], like) else self._copy(node, like, before)
        if _same_strides(found.meta["val"], like):
            return found
        # Nobody uses the stride of a dimension of one element, but anyone may ask for it.
        place = (list(like.shape), list(like.stride()), found.meta["val"].storage_offset())
        return self.call(aten.as_strided.default, (found, *place), {}, before, node)

    def _copy(self, node: fx.Node, like: torch.Tensor, before: fx.Node) -> fx.Node:
        for layout in memory_formats(like):
            copy = self.call(aten.clone.default, (node,), {"memory_format": layout}, before, node)
            if same_layout(copy.meta["val"], like):
                return copy
            self.erase(copy, keep=node)
        order = sorted(range(like.dim()), key=lambda d: (-likely(like.stride(d)), d))
        permuted = self.call(aten.permute.default, (node, order), {}, before, node)
        copy = self.call(aten.clone.default, (permuted,), {"memory_format": torch.contiguous_format}, before, node)
        result = self.call(aten.permute.default, (copy, [order.index(d) for d in range(like.dim())]), {}, before, node)
        if same_layout(result.meta["val"], like):
            return result
        self.erase(result, keep=node)
        return self._copy_with_gaps(node, like, before)

    def _copy_with_gaps(self, node: fx.Node, like: torch.Tensor, before: fx.Node) -> fx.Node:
        one = node
        for dim, stride in enumerate(sizes(like.stride())):
            if stride == 0 and size_of(like.shape[dim]) != 1:  # one element, seen many times
                one = self.call(aten.slice.Tensor, (one, dim, 0, 1), {}, before, node)
        shape, strides = list(one.meta["val"].shape), list(like.stride())
        about = {"dtype": like.dtype, "device": like.device}
        room = self.call(aten.empty_strided.default, (shape, strides), about, before, node)
        copy = self.call(aten.copy.default, (room, one), {}, before, node)
        result = self.call(aten.expand.default, (copy, list(like.shape)), {}, before, node)
        if not same_layout(result.meta["val"], like):
            raise Refused(f"strides {tuple(like.stride())} of a result cannot be restored")
        return result

    def erase(self, node: fx.Node, keep: fx.Node | None = None) -> None:
        """Removes the node if nobody uses it, and what that leaves unused, but for `keep`, which waits for users."""
        todo = [node]
        while todo:
            dead = todo.pop()
            if dead is keep or dead.users or dead._erased or dead.op not in ("call_function", "get_attr"):
                continue
            if dead.op == "call_function" and not is_pure(dead.target) and not is_dead(dead):
                continue
            inputs = dead.all_input_nodes
            self.graph.erase_node(dead)
            todo += inputs

    def undo(self) -> None:
        """Removes the nodes made since `created` was last emptied, where unused."""
        for node in reversed(self.created):
            if not node._erased and not node.users:
                self.graph.erase_node(node)
        self.created.clear()


# Fused attention of the CPU's follows strides, as long as the numbers of a row lie side by side.
_FOLLOWS_ROWS = {aten._scaled_dot_product_flash_attention_for_cpu.default}


def sees_layout(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether the call sees how its argument lies, which is like the value."""
    if node.target in _FOLLOWS_ROWS and size_of(value.stride(-1)) == 1:
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return why_it_sees_layouts(node.target) is not None
    return draws(node) or counts_in_memory(node)


def mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The mode the graph was traced under: fake tensors of different modes do not mix."""
    for node in graph.nodes:
        for value in _tensors(node.meta.get("val")):
            if isinstance(value, FakeTensor):
                return value.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def inherit(node: fx.Node, like: fx.Node) -> None:
    node.meta.update({key: value for key, value in like.meta.items() if key not in _OWN})


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def same_layout(a: Any, b: Any) -> bool:
    left, right = _tensors(a), _tensors(b)
    return len(left) == len(right) and all(
        not isinstance(x, torch.Tensor)
        or (isinstance(y, torch.Tensor) and sizes(x.shape) == sizes(y.shape) and _strides(x) == _strides(y))
        for x, y in zip(left, right, strict=True)
    )


def _same_strides(a: Any, b: Any) -> bool:
    """The same layout, in every stride that can be asked for."""
    return same_layout(a, b) and all(
        not isinstance(x, torch.Tensor) or sizes(x.stride()) == sizes(y.stride())
        for x, y in zip(_tensors(a), _tensors(b), strict=True)
    )


def memory_formats(like: torch.Tensor) -> list[torch.memory_format]:
    """The named layout that the tensor has, if it has one."""
    if is_dense(like):
        return [torch.contiguous_format]
    return [torch.channels_last] if is_channels_last(like) else []


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether channels are the innermost dimension of an image, as far as the form of its sizes tells."""
    return tensor.dim() == 4 and is_dense(tensor, (0, 2, 3, 1))


def same_place(a: Any, b: Any) -> bool:
    """The same layout, at the same distance from where the storage begins: views count from there."""
    return same_layout(a, b) and all(
        not isinstance(x, torch.Tensor) or size_of(x.storage_offset()) == size_of(y.storage_offset())
        for x, y in zip(_tensors(a), _tensors(b), strict=True)
    )


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    # The stride of a dimension of one element is never used.
    return tuple(s for s, n in zip(sizes(tensor.stride()), sizes(tensor.shape), strict=True) if n != 1)


def alike(a: Any, b: Any) -> bool:
    """Whether shape, dtype and device are the same: what a replacement must keep."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.device == b.device and sizes(a.shape) == sizes(b.shape)
    return described(a) == described(b)


def described(value: Any) -> Any:
    """The same in words."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(sizes(value.shape))} on {value.device}"
    if isinstance(value, (tuple, list)):
        return tree_map(described, list(value))
    return type(value).__name__
