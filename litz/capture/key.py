"""The key of a compile: named entries that say all that the code depends on, and nothing else.

In: Dynamo's graph, its inputs, the options, the target. Out: `{name: text}`, the same in any process that would make
the same code; or `Uncacheable`, with what stands in the way: a function of the user's that has a name here and may mean
something else elsewhere, an object without a spelling.

Entries are named finely, so that a miss can say what changed: an operator, a number, a shape.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
import typing_extensions
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from litz.capture.checkpoint import has_policy
from litz.capture.modes import modes_now
from litz.capture.subclasses import is_subclass
from litz.loop.exact import spelled
from litz.loop.operator import TORCHS_OWN, is_zero_point
from litz.ops.decompose import taken_from_torch
from litz.ops.sizes import roughly
from litz.options import Options
from litz.source import source_digest
from litz.target import Machine

_MODULES = ("torch", "operator", "_operator", "builtins", "math", "litz")  # whose versions are in the key
_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Uncacheable(Exception):
    """Why a compile has no key."""


def key_entries(
    graph_module: fx.GraphModule, inputs: Sequence[Any], strides: Any, options: Options, target: Machine,
    state: Collection[int] = (), zeros: Collection[int] = (),
) -> dict[str, str]:  # fmt: skip
    """`state`: inputs that may be frozen. Their values are no part of the key, since they are none of the code, but for
    `zeros` among them that are zero points."""
    if not options.cacheable:
        raise Uncacheable("functions of the user's are among the options")
    refuse_changes_of_torch()
    spelling = _Spelling()
    nodes = spelling.graph(graph_module)
    entries = {"graph": nodes, "constants": "\n".join(spelling.constants), "outputs": str(strides)}
    entries |= _inputs(inputs) | _symbols(inputs)
    if str(options.memory_budget).strip().endswith("%"):  # a share of what there is
        entries["target.memory"] = str(target.memory_bytes)
    if options.freeze:
        nodes_of_inputs = enumerate(graph_module.graph.find_nodes(op="placeholder"))
        points = {place for place, node in nodes_of_inputs if is_zero_point(node)}
        entries["inputs.frozen"] = f"{sorted(state)}, zero {sorted(points.intersection(zeros))}"
    return entries | modes_now().entries() | options.cache_key_entries() | target.cache_key_entries() | versions()


def digest(entries: Mapping[str, str]) -> str:
    """The key: a name for the whole."""
    found = blake2b(digest_size=20)
    for name in sorted(entries):
        found.update(f"{name}\0{entries[name]}\0".encode())
    return found.hexdigest()


# -- the graph -------------------------------------------------------------------------------------
class _Spelling:
    """Graphs as text: operators and where their arguments come from; the numbers among those apart, in order."""

    def __init__(self) -> None:
        self.constants: list[str] = []

    def graph(self, graph_module: fx.GraphModule) -> str:
        names: dict[fx.Node, str] = {}
        lines = []
        for node in graph_module.graph.nodes:
            names[node] = f"%{len(names)}"
            what = self._target(node, graph_module)
            args = ", ".join(self._arg(a, names) for a in node.args)
            kwargs = ", ".join(f"{k}={self._arg(a, names)}" for k, a in node.kwargs.items())
            lines.append(f"{names[node]} = {node.op} {what}({args}; {kwargs})")
        return "\n".join(lines)

    def _target(self, node: fx.Node, graph_module: fx.GraphModule) -> str:
        if node.op in ("placeholder", "output"):
            return ""  # names are nothing that code depends on
        if node.op == "call_method":
            return _method(str(node.target))
        if node.op == "get_attr":
            value: Any = graph_module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return self._held(value)
        if node.op == "call_module":
            raise Uncacheable(f"it calls the module {node.target}")
        return _named(node.target)

    def _held(self, value: Any) -> str:
        if isinstance(value, fx.GraphModule):
            if has_policy(value):
                raise Uncacheable("a function of the user's says what a checkpoint keeps")
            return "{\n" + self.graph(value) + "\n}"
        if type(value) in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, FakeTensor):
            content = blake2b(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            form = f"{tuple(value.shape)} {value.stride()} {_described(value)}"
            self.constants.append(f"{form} {content.hexdigest()}")
            return "tensor"
        raise Uncacheable(f"it holds a {type(value).__qualname__}")

    def _arg(self, arg: Any, names: Mapping[fx.Node, str]) -> str:
        if isinstance(arg, fx.Node):
            return names[arg]
        if isinstance(arg, (tuple, list)) and not hasattr(arg, "_fields"):
            return f"{'(' if isinstance(arg, tuple) else '['}{', '.join(self._arg(a, names) for a in arg)})"
        if isinstance(arg, dict):
            return "{" + ", ".join(f"{k!r}: {self._arg(v, names)}" for k, v in arg.items()) + "}"
        if isinstance(arg, slice):
            return f"slice({', '.join(self._arg(a, names) for a in (arg.start, arg.stop, arg.step))})"
        if isinstance(arg, (bool, int, float, complex)) and type(arg) in (bool, int, float, complex):
            self.constants.append(f"{type(arg).__name__} {spelled(arg)}")
            return "number"
        if arg is None or arg is ... or isinstance(arg, (str, *_CONSTANTS)):
            return repr(arg)
        if callable(arg):
            return _named(arg)
        raise Uncacheable(f"an argument is a {type(arg).__qualname__}")


_QUANTISED = "quantized_decomposed"  # torch's own, and written in Python


def _named(function: Any) -> str:
    """A function of torch's or Python's own, which its name tells."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name = function.name() if isinstance(function, torch._ops.OpOverload) else function._qualified_op_name
        namespace = name.partition("::")[0]
        if namespace not in (*TORCHS_OWN, _QUANTISED) or (
            namespace == "aten" and name.partition(".")[0] in torch.library._defs
        ):
            raise Uncacheable(f"{function} is not an operator of torch's own")
        return str(function)
    if isinstance(function, torch._ops.HigherOrderOperator):
        return f"higher order {function.name()}"
    found = _place_of(function)
    if found is None:
        raise Uncacheable(f"it calls {function!r:.80}, which is not torch's own")
    return found


def _method(name: str) -> str:
    """A method of tensors, if it is still torch's."""
    found = getattr(torch.Tensor, name, None)
    if isinstance(found, FunctionType) and not _is_of_torch(found):
        raise Uncacheable(f"it calls the method {name}, which is not torch's own")
    return name


def _is_of_torch(function: Any) -> bool:
    """Whether it comes from torch, Python or Litz: another may lie in their modules, and say that it is of theirs."""
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", torch.Tensor).__module__
    return module.partition(".")[0] in _MODULES and _is_written_there(function)


def _is_written_there(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    if code.co_filename.startswith("<"):  # text that was never in a file, some of torch's too
        return str(function.__globals__.get("__name__")).partition(".")[0] in _MODULES
    return _is_ours(code.co_filename)


@lru_cache(maxsize=1 << 12)
def _is_ours(file: str) -> bool:
    """Whether a file is torch's, Litz's or Python's own."""
    if file.startswith(_FOLDERS):
        return True
    return file.startswith(sysconfig.get_paths()["stdlib"]) and "-packages" not in file


# `deprecated` of the last is around some of torch's.
_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), str(typing_extensions.__file__))


def _place_of(function: Any) -> str | None:
    """Where the function itself is found by name: another one may claim the same name."""
    if not _is_of_torch(function):
        return None
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or ""
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", torch.Tensor).__module__
    held: Any = sys.modules.get(module)
    for part in name.split("."):
        held = getattr(held, part, None)
    if held is function:
        return f"{module}.{name}"
    for home in _HOMES:
        short = getattr(function, "__name__", "")
        if getattr(home, short, None) is function:
            return f"{home.__name__}.{short}"
    return _dispatched().get(id(function))


_HOMES = (
    torch.nn.functional, torch, torch.Tensor, torch._C._nn, torch._C, torch._C._autograd, torch._C._functorch,
)  # fmt: skip


@lru_cache(maxsize=1)
def _dispatched() -> dict[int, str]:
    """Functions that torch makes inside others (`max_pool2d`), by `id`."""
    return {id(held): f"torch.nn.functional.{name}" for name, held in vars(torch.nn.functional).items()}


def refuse_changes_of_torch() -> None:
    """Where torch has been changed in this process, what is compiled here is not what others would compile."""
    for entry in torch.library._impls:  # which a trace of any operator may come upon
        if entry.startswith("aten/") and entry.rpartition("/")[2] not in _ELSEWHERE:
            raise Uncacheable(f"{entry.split('/')[1]} was given a kernel by Python code of this process")
    for home in (torch.nn.functional, torch, torch.Tensor, torch.functional):  # whose functions call each other by name
        for name, held in vars(home).items():
            if not _is_unchanged(held):
                raise Uncacheable(f"{home.__name__}.{name} was replaced by code of this process")
    for operator, function in taken_from_torch():
        if not _is_unchanged(function):
            raise Uncacheable(f"the decomposition of {operator} was replaced by code of this process")


def _is_unchanged(held: Any) -> bool:
    """Whether what stands in a module of torch's may be torch's own: no function or object of somebody else's, and none
    that torch's or Python's decorators have been put around."""
    if isinstance(held, FunctionType) and not _is_written_there(held):
        return False
    inside = vars(held).get("__wrapped__") if hasattr(held, "__dict__") and not isinstance(held, type) else None
    inside = held.func if isinstance(held, partial) else held.__func__ if isinstance(held, MethodType) else inside
    if inside is not None:
        return _is_unchanged(inside)
    if isinstance(held, type) or not callable(held):
        return True
    return type(held).__module__.partition(".")[0] in (*_MODULES, *_CALLABLES)


_CALLABLES = ("functools", "typing", "types", "typing_extensions")  # things that are called, and that torch has some of


# torch itself registers such ones.
_ELSEWHERE = ("Meta", "CUDA", "MPS", "XPU", "HPU", "MTIA", "PrivateUse1", "FuncTorchBatched")


# -- the inputs ------------------------------------------------------------------------------------
def _inputs(inputs: Sequence[Any]) -> dict[str, str]:
    parts: dict[str, list[str]] = {f"inputs.{what}": [] for what in ("types", "shapes", "strides", "gradients")}
    for value in inputs:
        if isinstance(value, torch.Tensor):
            if is_subclass(value) or value.layout is not torch.strided:
                raise Uncacheable(f"an input is a {type(value).__name__}")
            parts["inputs.types"].append(_described(value))
            parts["inputs.shapes"].append(str(tuple(value.shape)))
            parts["inputs.strides"].append(f"{value.stride()} from {value.storage_offset()}")
            parts["inputs.gradients"].append(f"{value.requires_grad}, leaf {value.is_leaf}")
        elif isinstance(value, torch.SymInt):
            parts["inputs.shapes"].append(str(value))
        elif isinstance(value, (bool, int, float)) and type(value) in (bool, int, float):
            parts["inputs.types"].append(f"{type(value).__name__} {spelled(value)}")
        else:
            raise Uncacheable(f"an input is a {type(value).__name__}")
    found = {name: "; ".join(texts) for name, texts in parts.items()}
    return found | {"inputs.shared": "; ".join(_shared(inputs))}


def _symbols(inputs: Sequence[Any]) -> dict[str, str]:
    """What is known of sizes and numbers that vary: likely values, in powers of two, the bounds, and what Dynamo has
    found out so far."""
    shapes = shape_environment(inputs)
    if shapes is None:
        return {}
    ranges = [f"{symbol} in {bounds}" for symbol, bounds in shapes.var_to_range.items()]
    hints = [f"{symbol} ~ {roughly(n)}" for symbol, n in shapes.backed_var_to_val.items() if n.is_Number]
    guards = [str(guard.expr) for guard in shapes.guards]
    texts = {"inputs.ranges": sorted(ranges), "inputs.hints": sorted(hints), "inputs.guards": guards}
    return {name: "; ".join(text) for name, text in texts.items() if text}


def shape_environment(inputs: Sequence[Any]) -> Any | None:
    """Dynamo's record of the sizes and numbers that vary, if some do."""
    for value in inputs:
        numbers: Sequence[Any] = (value,)
        if isinstance(value, FakeTensor):
            numbers = (*value.shape, *value.stride(), value.storage_offset(), value.item_memo)
        for number in numbers:
            if isinstance(number, (torch.SymInt, torch.SymFloat)):
                return number.node.shape_env
    return None


def _described(tensor: torch.Tensor) -> str:
    bits = [name for name, is_set in (
        ("parameter", isinstance(tensor, torch.nn.Parameter)), ("inference", tensor.is_inference()),
        ("conjugated", tensor.is_conj()), ("negated", tensor.is_neg()),
    ) if is_set]  # fmt: skip
    return " ".join((str(tensor.dtype), str(tensor.device), *bits))


def _shared(inputs: Sequence[Any]) -> Iterator[str]:
    """Which inputs have memory in common: those that are one tensor, and how far apart others begin."""
    owners: dict[int, int] = {}
    for position, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor) or (not isinstance(value, FakeTensor) and not value.numel()):
            continue
        first = owners.setdefault(_memory(value), position)
        if first != position:
            other = inputs[first]
            apart = value.storage_offset() * value.itemsize - other.storage_offset() * other.itemsize
            yield f"{position} is {first}" if value is other else f"{position} lies {apart} from {first}"
        if isinstance(value._base, torch.Tensor):  # with whose views it counts its versions
            yield f"{position} is a view of {_root(value._base, inputs)}"


def _root(base: torch.Tensor, inputs: Sequence[Any]) -> str:
    position = next(i for i, x in enumerate(inputs) if x is base or (isinstance(x, torch.Tensor) and x._base is base))
    form = f"{tuple(base.shape)}, {base.stride()}, from {base.storage_offset()}, {_described(base)}"
    return f"{position}, {form}, {base.requires_grad}"


def _memory(tensor: torch.Tensor) -> int:
    """A number for the storage: real ones may be shared by several objects of torch's, fakes have no address."""
    storage = tensor.untyped_storage()
    return storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr()


# -- who compiles ----------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    import llvmlite

    return {
        "version.litz": source_digest(),
        "version.torch": f"{torch.__version__} {torch.version.git_version}",
        "version.llvmlite": llvmlite.__version__,
        "version.python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


__all__ = ["Uncacheable", "digest", "key_entries", "refuse_changes_of_torch", "versions"]
