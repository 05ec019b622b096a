"""Record the ATen operators a function runs, as an fx graph.

In: a function and fake tensors. Out: a graph module; every node has its fake result in `meta["val"]` and
the user's source line in `meta["stack_trace"]`.

It sits where `make_fx`'s proxies would, below functionalisation and above fake tensors, and does only
what this compiler needs: a tensor is known by identity, an operator is a node, and that is all.

A tensor may be conjugated or negated by a bit that says so, which each operator of eager's honours. Generated code
knows no such bit: a node is what the tensor means, conjugated and negated where the bit is set.
"""

from __future__ import annotations

import operator
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from litz.capture.checkpoint import Policy
from litz.capture.repeated import Repeated
from litz.compat import ReplayTable, fakes_not_remembered
from litz.errors import CaptureError, user_line
from litz.graph.alias import CHECKS, base, is_view
from litz.graph.eager_strides import eager_strides
from litz.graph.module import graph_module
from litz.graph.partition.regions import KEPT, REGION
from litz.graph.sizes import sizes_as_arguments
from litz.ops.registry import LOWERINGS

aten = torch.ops.aten

# What to a functional graph is its argument.
_THE_SAME = (aten.detach.default, aten.alias.default)


class _Begun(NamedTuple):
    """A node of the user's graph: autograd's count of steps before it, and the user's line."""

    step: int
    name: str
    source: str | None


class Recorder(TorchDispatchMode):
    _mode_key = torch._C._TorchDispatchModeKey.PROXY

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]):
        super().__init__()
        self.fake = Repeated(None)  # what operators give for fakes
        self.tracer = ReplayTable()
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.decompositions = decompositions
        self.source: str | None = None  # the user's line that runs now
        self.stopped_at: str | None = None  # the node of the user's graph whose run, or whose gradient, has failed
        self.differentiating = False  # what runs now, eager runs when `backward` is called
        self._node_now: str | None = None
        self._begun: list[_Begun] = []  # nodes of the user's
        self._region = self._regions = 0  # of a checkpoint
        self._policy: Policy | None = None  # of the region: what it keeps after all
        self._nodes: dict[int, fx.Node] = {}
        self._laid_out_anew: set[fx.Node] = set()  # whose fakes had other strides than eager gives
        self._alive: list[Any] = []  # identities must not be given out again while the trace lasts

    @property
    def user_line(self) -> str | None:
        return user_line(self._source_now())

    # -- the user's nodes ---------------------------------------------------------------------------
    def begins(self, node: fx.Node) -> None:
        """What is recorded from here on comes from this node of the user's graph."""
        self.source = node.meta.get("stack_trace", self.source)
        if not self._region:
            self._node_now = node.name
            self._begun.append(_Begun(torch.autograd._get_sequence_nr(), node.name, self.source))

    def ends(self) -> None:
        """The user's graph has run; what follows is its gradient."""
        self._node_now = None

    def _working_on(self) -> str | None:
        behind = self._differentiated_now()
        return self._node_now if behind is None else behind.name

    def _source_now(self) -> str | None:
        behind = self._differentiated_now()
        return self.source if behind is None else behind.source

    def _differentiated_now(self) -> _Begun | None:
        """The node of the user's whose gradient is being recorded."""
        step = torch._C._current_autograd_node() if self._node_now is None else None
        if step is None:
            return None
        after = bisect_right(self._begun, step._sequence_nr(), key=lambda begun: begun.step)
        return self._begun[after - 1] if after else None

    # -- inputs and outputs ------------------------------------------------------------------------
    def placeholder(self, value: Any, position: int) -> None:
        node = self.graph.placeholder(f"arg{position}")
        # What comes in the place of a tensor with a bit set is laid out as a copy of it.
        node.meta["val"] = value.resolve_conj().resolve_neg() if is_lazy(value) else value
        if isinstance(value, torch.Tensor):
            self._know(value, node)

    def finish(self, outputs: Sequence[Any]) -> fx.GraphModule:
        self.graph.output([self._argument(o) for o in outputs])
        return graph_module(self.root, self.graph)

    def _know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def has_called(self, operators: Collection[Any]) -> bool:
        return any(node.target in operators for node in self.graph.nodes)

    def memory_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value whose views the tensor is one of, itself if it is none."""
        return base(self._nodes[id(tensor)]).meta["val"]

    def lies_otherwise_than_fakes_say(self, tensor: torch.Tensor) -> bool:
        """Whether it comes of an operator whose fake has other strides than eager's result."""
        if not self._laid_out_anew:
            return False
        seen, waiting = set(), [self._nodes[id(tensor)]]
        while waiting:
            node = waiting.pop()
            if node in self._laid_out_anew:
                return True
            if node not in seen:
                seen.add(node)
                waiting += node.all_input_nodes
        return False

    # -- operators ---------------------------------------------------------------------------------
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        try:
            return self._record(func, args, kwargs or {})
        except Exception:
            self.stopped_at = self.stopped_at or self._working_on()
            raise

    def _record(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        policy, self._policy = self._policy, None  # what a call is taken apart to, it is not asked about
        try:
            result = self._recorded(func, args, kwargs)
            if policy is not None and policy(func, result, args, kwargs):
                for tensor in filter(torch.is_tensor, pytree.tree_leaves(result)):
                    self._argument(tensor).meta[KEPT] = True
            return result
        finally:
            self._policy = policy

    def _recorded(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if func.namespace == "prim":  # what is asked of a tensor
            return func(*args, **kwargs)
        rewritten = self.decompositions.get(func)
        if rewritten is not None:
            with self:
                result = rewritten(*args, **kwargs)
            if result is not NotImplemented:
                return self._laid_out(func, args, result)
        if args and isinstance(args[0], (bool, int, float, complex)) and _takes_one_tensor(func):
            with self:  # as it comes of a number beside a tensor, whose conversion autograd differentiates
                number = aten.scalar_tensor.default(args[0], dtype=_NUMBERS[type(args[0])])
            return self._recorded(func, (number, *args[1:]), kwargs)
        if _is_composite(func) and not (func in LOWERINGS and _has_own_kernel(func, _device_of(args))):
            # Reached from a decomposition, below the place where eager takes it apart.
            with self:
                return func.decompose(*args, **kwargs)
        if func in _PHYSICAL:
            return self._undelayed(func, args[0])
        if func in _THE_SAME:
            result = self.fake(func, args, kwargs).value
            self._know(result, self._argument(args[0]))
            return result
        if func is aten._unique.default:
            raise CaptureError(f"the size of what {func} gives depends on data")  # torch 2.11 invents one
        if torch.Tag.inplace_view in func.tags:
            self._keep_shape(args[0])
        if func._schema.is_mutable:
            self._only_known_written(func, args)
        operands = self._argument(args)
        options = {k: self._argument(v) for k, v in kwargs.items()}
        with fakes_not_remembered(args) if func is _MISREMEMBERED else nullcontext():
            result, laid_out_anew = self.fake(func, args, kwargs)
        if not _has_tensor(result) and not func._schema.is_mutable and func not in CHECKS:
            return result
        if func.overloadpacket in _CHECK_NUMBERS and _overflows(func, args, kwargs, result):
            raise CaptureError(f"{func} refuses a number that its type does not hold")
        if isinstance(result, torch.Tensor) and result.layout is not torch.strided:
            raise CaptureError(f"{func} gives a tensor of layout {result.layout}: only dense ones are compiled")
        node = self._node(func, operands, options)
        node.meta["val"] = self._meant(func, operands, options) if _any_lazy((args, result)) else result
        source = self._source_now()
        if source is not None:
            node.meta["stack_trace"] = source
        if self._region:
            node.meta[REGION] = self._region
        if self.differentiating:
            self._mark_backward(node)
        if laid_out_anew:
            self._laid_out_anew.add(node)
        self._bind(result, node)
        return result

    def _laid_out(self, func: Any, args: Sequence[Any], result: Any) -> Any:
        """What an operator was taken apart to, as eager's lays it out."""
        strides = eager_strides(func, args, result)
        if strides is None:
            return result
        with self:
            memory = aten.empty_strided.default(result.shape, strides, dtype=result.dtype, device=result.device)
            lying = aten.copy.default(memory, result)
        self._laid_out_anew.add(self._argument(lying))
        return lying

    def _undelayed(self, func: Any, value: torch.Tensor) -> torch.Tensor:
        """A bit is set or taken away; in the graph it is done."""
        result = func(value)
        source, physical = self._argument(value), _PHYSICAL[func]
        node = self._undone(source, physical)
        self._know(result, self._again(physical, (source,), {}) if node is None else node)
        return result

    def _undone(self, node: Any, physical: Any) -> fx.Node | None:
        """The node without the operator, which is its own inverse: what it was done to, through views."""
        if node.target is physical:
            return node.args[0]
        if node.target is operator.getitem or not is_view(node):
            return None
        whole = self._undone(node.args[0], physical)
        return None if whole is None else self._again(node.target, (whole, *node.args[1:]), node.kwargs)

    def _again(self, func: Any, operands: tuple, options: Mapping[str, Any]) -> fx.Node:
        """A node for what was not called."""
        node = self._node(func, operands, dict(options))
        node.meta["val"] = self._meant(func, operands, options)
        source = self._source_now()
        if source is not None:
            node.meta["stack_trace"] = source
        if self.differentiating:
            self._mark_backward(node)
        return node

    @staticmethod
    def _mark_backward(node: fx.Node) -> None:
        """As part of the backward, and of which call of a function of the user's own, if it is one's."""
        node.meta["in_backward"] = True
        step = torch._C._current_autograd_node()
        if isinstance(step, BackwardCFunction) and _is_called(BackwardCFunction.apply.__code__):
            node.meta["own_backward"] = step._sequence_nr()

    @staticmethod
    def _meant(func: Any, operands: Any, options: Any) -> Any:
        """The result of the operator on values without bits."""
        args, kwargs = fx.node.map_arg((operands, options), lambda n: n.meta["val"])
        return func(*args, **kwargs)

    def _node(self, func: Any, operands: Any, options: dict[str, Any]) -> fx.Node:
        if not _has_size((operands, tuple(options.values()))):
            return self.graph.call_function(func, operands, options)
        with sizes_as_arguments():
            return self.graph.call_function(func, operands, options)

    def _only_known_written(self, func: Any, args: Sequence[Any]) -> None:
        for spec, value in zip(func._schema.arguments, args, strict=False):
            if spec.alias_info is None or not spec.alias_info.is_write:
                continue
            for tensor in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(tensor, torch.Tensor) and id(tensor) not in self._nodes:
                    raise CaptureError(f"{func} writes to a tensor that is no argument")

    def in_region(self, run: Callable[[], Any], policy: Policy | None) -> Any:
        """What is recorded meanwhile is marked as one region of a checkpoint, that around it if there is one."""
        if self._region:
            return run()
        self._regions += 1
        self._region, self._policy = self._regions, policy
        try:
            return run()
        finally:
            self._region, self._policy = 0, None

    def __sym_dispatch__(self, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Arithmetic on sizes is no operator: shapes carry its result."""
        return func(*args, **kwargs)

    def _bind(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            self._know(result, node)
        elif isinstance(result, (tuple, list)):
            for position, item in enumerate(result):
                if _has_tensor(item):
                    part = self.graph.call_function(operator.getitem, (node, position))
                    part.meta["val"] = item
                    self._bind(item, part)

    def _keep_shape(self, tensor: torch.Tensor) -> None:
        """The operator changes the shape of a tensor in place: its node keeps what it was."""
        node = self._nodes.get(id(tensor))
        if node is not None:
            node.meta["val"] = aten.detach.default(tensor)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = self._nodes.get(id(value))
            return self._constant(value) if node is None else node
        if isinstance(value, (tuple, list)):
            inner = [self._argument(v) for v in value]
            return tuple(inner) if isinstance(value, tuple) else inner
        return value

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        """A tensor from outside the trace."""
        if tensor.requires_grad:
            raise CaptureError("a tensor that requires grad is used but is no argument: its gradient would be lost")
        if isinstance(tensor, FakeTensor):
            raise CaptureError("a tensor is used that was computed by another trace within this one")
        name = f"constant_{len(self._nodes)}"
        value = tensor
        if is_lazy(tensor):
            with unset_fake_temporarily():
                value = tensor.resolve_conj().resolve_neg()
        self.root.register_buffer(name, value, persistent=False)
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = value
        self._know(tensor, node)
        return node


# It makes memory in which the result begins somewhere inside, as what it is made like does: forward mode makes such
# memory for tangents. What torch remembers of fakes has each result begin where its memory begins.
_MISREMEMBERED = aten._new_zeros_with_same_feature_meta.default

_PHYSICAL = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}


def is_lazy(value: Any) -> bool:
    """Whether a tensor is conjugated or negated by a bit alone."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def _any_lazy(value: Any) -> bool:
    return any(map(_any_lazy, value)) if isinstance(value, (tuple, list)) else is_lazy(value)


@lru_cache(maxsize=None)
def _is_composite(func: Any) -> bool:
    return func.namespace != "prim" and func._can_decompose()


@lru_cache(maxsize=None)
def _has_own_kernel(func: Any, device: str) -> bool:
    """Whether eager, on that device, does not take the operator apart."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _device_of(args: Sequence[Any]) -> str:
    return next((x.device.type for x in args if isinstance(x, torch.Tensor)), "")


def _is_called(code: CodeType) -> bool:
    """Whether a call of that function is under way. Autograd still counts as in a step while it adds up what came of
    it and of others."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _has_size(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has_size(v) for v in value)
    return isinstance(value, (torch.SymInt, torch.SymFloat))


# Their kernels refuse numbers beyond the largest of the type; others make them infinite.
_CHECK_NUMBERS = {
    aten.full, aten.full_like, aten.new_full, aten.scalar_tensor, aten.fill, aten.masked_fill, aten.index_fill,
    aten.clamp, aten.clamp_min, aten.clamp_max, aten.constant_pad_nd, aten.threshold,
}  # fmt: skip


def _overflows(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return False
    most = torch.finfo(result.dtype).max
    given = {**{spec.name: value for spec, value in zip(func._schema.arguments, args, strict=False)}, **kwargs}
    numbers = (given.get(spec.name) for spec in func._schema.arguments if "number" in str(spec.type).lower())
    return any(isinstance(value, (int, float)) and most < abs(value) < float("inf") for value in numbers)


# As ATen makes tensors of them.
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


@lru_cache(maxsize=None)
def _takes_one_tensor(func: Any) -> bool:
    """Whether its first argument is a tensor, and no other is."""
    first, *others = [isinstance(argument.type, torch._C.TensorType) for argument in func._schema.arguments]
    return first and not any(others)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list)) and any(_has_tensor(v) for v in value)
