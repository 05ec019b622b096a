"""Lower a functional ATen graph to a loop program.

In: an fx graph whose nodes carry fake tensors in `meta["val"]`, and the tensor constants it refers to.
Out: a `Program` in which every operator is a kernel of its own (fusion comes later), a call, or,
for a view, nothing at all.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from litz.context import Context
from litz.errors import CaptureError, LitzError, LoweringError, source_of
from litz.loop.dtype import from_torch
from litz.loop.expr import ONE, Size
from litz.loop.formula import Formula
from litz.loop.ir import Buffer, NumberSource, Program, SizeSource, View, numbers, views
from litz.loop.operator import returns_view
from litz.loop.text import program_exprs
from litz.ops import (  # noqa: F401  (each registers its rows)
    activation,
    activation_backward,
    attention,
    bag,
    compare,
    conv,
    conv_backward,
    create,
    cut_product,
    draw,
    embedding_backward,
    foreach,
    grid,
    index,
    int8,
    join,
    library,
    loss,
    loss_backward,
    matmul,
    moments,
    norm,
    norm_backward,
    optimizer,
    pad,
    pointwise,
    pool,
    pool_backward,
    random,
    reduce,
    resample,
    resample_backward,
    scan,
    scatter,
    search,
    special,
    update,
    view_backward,
    view_copy,
)  # fmt: skip
from litz.ops.builder import Builder, DoesNotFit, dtype_of, operand
from litz.ops.held import CONSTANT, Held, InPanels
from litz.ops.here import why_not_here
from litz.ops.refused import is_refused
from litz.ops.registry import IN_ORDER, LOWERINGS, lowering_of
from litz.ops.sizes import number_held, number_sources, size_sources

aten = torch.ops.aten

# Views by another name: the result shares the argument's memory although the schema does not say so.
ALIASES = {aten._unsafe_view.default, aten._reshape_alias.default}
# In-place changes of shape, which operators leave on tensors of their own making: views as well.
_RESHAPED = {
    aten.as_strided_.default,
    aten.squeeze_.default,
    aten.squeeze_.dim,
    aten.unsqueeze_.default,
    aten.t_.default,
    aten.transpose_.default,
}


class Origin(NamedTuple):
    """What a step comes from: an operator, and where the user called it."""

    operator: str
    trace: str | None


@dataclass(frozen=True)
class Lowered:
    program: Program
    constants: tuple[torch.Tensor | Held | InPanels, ...]  # values of the inputs that follow the user's own
    origins: Mapping[str, Origin] = field(default_factory=dict)  # by the names that steps have for them


def lower(graph_module: fx.GraphModule, ctx: Context) -> Lowered:
    of_host = _numbers_of_host(graph_module)
    builder = Builder(ctx)
    env: dict[fx.Node, Any] = {}
    inputs: list[str | None] = []
    outputs: tuple = ()
    given: list[Any] = []
    for node in graph_module.graph.nodes:
        builder.node = node
        if node.op == "placeholder" and CONSTANT in node.meta:
            env[node] = builder.constant(node.meta["val"], Held(node.meta[CONSTANT]))
        elif node.op == "placeholder":
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                held = number_held(value)
                name = f"in{len(inputs)}" if held is None or held in builder.buffers else held
                env[node] = builder.allocate(value, "number" if node in of_host else "input", name)
                inputs.append(env[node].buffer)
            else:
                env[node] = value
                inputs.append(None)
            given.append(value)
        elif node.op == "get_attr":
            tensor = _attribute(graph_module, str(node.target))
            if not isinstance(tensor, torch.Tensor):
                raise LoweringError(f"{node.target} is a {type(tensor).__name__}, not a tensor", node=node.name)
            env[node] = builder.constant(node.meta.get("val", tensor), tensor)
        elif node.op == "output":
            outputs = builder.freeze(fx.node.map_arg(node.args[0], lambda n: env[n]))
        else:
            env[node] = _lower_node(builder, node, env)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    constants = _constants_read(builder, outputs)
    program = Program(builder.buffers, (*inputs, *constants), tuple(outputs), tuple(builder.steps))
    program = _with_numbers(program, builder.numbers, given)
    return Lowered(program, tuple(constants.values()), _origins(graph_module))


def _origins(graph_module: fx.GraphModule) -> dict[str, Origin]:
    called = (node for node in graph_module.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return {
        node.name: Origin(node.target._schema.name.split("::")[-1], node.meta.get("stack_trace")) for node in called
    }


def _constants_read(builder: Builder, outputs: Any) -> dict[str, torch.Tensor | Held | InPanels]:
    """Those that a step reads, or the caller gets: what is packed is not read as it was."""
    read = {name for step in builder.steps for name in (*step.reads, *step.writes)}
    read |= {view.buffer for view in views(outputs)}
    constants = dict(zip(builder.constant_names, builder.constants, strict=True))
    for name in constants.keys() - read:
        del builder.buffers[name]
    return {name: value for name, value in constants.items() if name in read}


def _numbers_of_host(graph_module: fx.GraphModule) -> set[fx.Node]:
    """A program has one memory, so all its tensors are on one device: but for inputs of one element on the CPU, beside
    tensors of another device, which the host passes to kernels as numbers."""
    seen: dict[torch.device, list[fx.Node]] = {}
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            seen.setdefault(value.device, []).append(node)
    if len(seen) < 2:
        return set()
    numbers = seen.get(torch.device("cpu"), [])
    if len(seen) > 2 or any(n.op != "placeholder" or n.meta["val"].dim() != 0 for n in numbers) or not numbers:
        *_, (other, *_) = seen.values()
        names = " and ".join(sorted(map(str, seen)))
        raise CaptureError(f"tensors are on {names}: a graph is compiled for one device", source=source_of(other))
    return set(numbers)


def _with_numbers(program: Program, formulas: Mapping[str, Formula], given: Sequence[Any]) -> Program:
    """The program with what is known only at run time, and where it comes from: `given` are values like its inputs."""
    floats = {source.name: source for source in number_sources(given)}
    atoms = {atom for e in program_exprs(program) for atom in e.atoms() if isinstance(atom, Size)}
    computed = {atom.name: atom.formula for atom in atoms if atom.formula is not None}
    read = {name for step in program.steps for name in step.reads}
    made = {name: formula for name, formula in formulas.items() if name in read and name not in floats}
    passed = {number.name for call in program.calls for number in numbers((call.args, call.kwargs))}
    symbols = {symbol for formula in (*computed.values(), *made.values()) for symbol in formula.symbols}
    unknown = {atom.name for atom in atoms if atom.formula is None} | symbols | {n for n in made if made[n].text == n}
    sizes = size_sources(given, unknown)
    unknown -= {source.name for source in sizes} | floats.keys()
    if unknown:
        raise LoweringError(f"the number {min(unknown)} is known only at run time, and no input tells it")
    of_host = [
        NumberSource(name, position)
        for position, name in enumerate(program.inputs)
        if name in read - symbols - passed and program.buffers[name].kind == "number"
    ]
    return replace(
        program,
        buffers=program.buffers | {name: Buffer(name, "f64", ONE, "number") for name in made},
        sizes=(*sizes, *(SizeSource(name, formula=formula) for name, formula in sorted(computed.items()))),
        numbers=(
            *(source for name, source in floats.items() if name in symbols | passed),
            *of_host,
            *(NumberSource(name, formula=formula) for name, formula in made.items()),
        ),
    )


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _lower_node(builder: Builder, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    args = fx.node.map_arg(node.args, lambda n: env[n])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: env[n])
    try:
        return _lower_call(builder, node, args, kwargs)
    except DoesNotFit as why:
        return builder.call(node, args, kwargs, f"its operands' sizes do not go together: {why}")


def _lower_call(builder: Builder, node: fx.Node, args: Any, kwargs: Any) -> Any:
    target = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, torch._ops.OpOverload):
        raise LoweringError(f"cannot lower a call of {target}", node=node.name, source=source_of(node))
    if target is aten.sym_size.int:
        return node.meta["val"]
    if returns_view(target) or target in ALIASES or target in _RESHAPED:
        seen = _window(builder, args[0], _seen(node))
        if seen is not None:
            return seen
    if target is aten.copy_.default:
        return _write_input(builder, node, *args)
    functional, lowering = functional_form(target), lowering_of(target)
    if (functional is not None or lowering is not None) and target.namespace == "aten":
        given, named = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
        if is_refused(target, given, named, node.meta.get("val")):
            return builder.call(node, args, kwargs, "eager refuses these types or numbers")
    if functional is not None and lowering is None and isinstance(args[0], View) and _typed(args, node.meta["val"]):
        # Compute aside, then write over: what the operator does, in two steps that fusion may join.
        made = len(builder.steps)
        result = LOWERINGS[functional](builder, node, *args, **kwargs)
        if isinstance(result, View) and _why_not(builder, made) is None:
            return _write_over(builder, node, args[0], result)
        del builder.steps[made:]
    if lowering is None:
        return builder.call(node, args, kwargs, "no lowering")
    if lowering is not library.call and not _typed(args, node.meta.get("val")):
        return builder.call(node, args, kwargs, "a dtype the loop IR does not have")
    if target in IN_ORDER and not builder.ctx.target.walks_in_order:
        return builder.call(node, args, kwargs, "the library gathers, and has no need of sums by threads that meet")
    try:
        made = len(builder.steps)
        result = lowering(builder, node, *args, **kwargs)
    except (LitzError, DoesNotFit):
        raise
    except Exception as error:
        raise LoweringError(
            f"the lowering of {target} failed: {type(error).__name__}: {error}",
            stage="lower", node=node.format_node(), source=source_of(node),
        ) from error  # fmt: skip
    if result is NotImplemented:
        return builder.call(node, args, kwargs, "this form has no lowering")
    why = _why_not(builder, made)
    if why is not None:
        del builder.steps[made:]
        return builder.call(node, args, kwargs, why)
    return result


def _why_not(builder: Builder, made: int) -> str | None:
    """What speaks against the steps that a lowering has made, on this machine."""
    return next(filter(None, (why_not_here(step, builder.ctx.target) for step in builder.steps[made:])), None)


def _seen(node: fx.Node) -> Any:
    """The view's result as a fake tensor: the traced one, unless a rewrite gave the view another argument since, which
    may lie elsewhere in its storage."""
    fake, base = node.meta["val"], node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else None
    parts = fake if isinstance(fake, (tuple, list)) else (fake,)
    if not isinstance(base, FakeTensor) or all(_shares_storage(part, base) for part in parts):
        return fake
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    assert callable(node.target)
    with base.fake_mode, torch.no_grad():
        node.meta["val"] = node.target(*args, **kwargs)
    return node.meta["val"]


def _shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _window(builder: Builder, base: Any, fake: Any) -> Any:
    """The view's result as a window, or None when it reads the memory as another type."""
    if not isinstance(base, View):
        return None
    if isinstance(fake, (tuple, list)):
        seen = [_window(builder, base, f) for f in fake]
        return None if None in seen else tuple(seen)
    if dtype_of(fake) != base.dtype or fake.is_conj() or fake.is_neg():
        return None
    return builder.window(base, fake)


def functional_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """`aten.add.Tensor` for `aten.add_.Tensor`, if it is lowered."""
    name = target._schema.name.split("::")[-1]
    if not name.endswith("_") or name.startswith("__") or target.namespace != "aten":
        return None
    packet = getattr(aten, name[:-1], None)
    found = getattr(packet, target._overloadname, None) if packet is not None else None
    return found if found in LOWERINGS else None


def _typed(args: Any, fakes: Any) -> bool:
    def known(arg: Any) -> bool:
        if isinstance(arg, View):
            return not arg.dtype.startswith("torch.")
        if isinstance(arg, complex):
            return False
        if isinstance(arg, torch.Tensor):
            return from_torch(arg.dtype) is not None
        return not isinstance(arg, (tuple, list)) or all(known(a) for a in arg)

    return known(args) and known(fakes)


def _write_input(builder: Builder, node: fx.Node, target: View, source: View, non_blocking: bool = False) -> Any:
    """`copy_` into a graph input: how a functional graph gives a mutation back."""
    if not _typed((target, source), node.meta["val"]):
        return builder.call(node, (target, source), {}, "a dtype the loop IR does not have")
    return _write_over(builder, node, target, source)


def _write_over(builder: Builder, node: fx.Node, target: View, source: View) -> View:
    fake = node.meta["val"]
    if source.buffer == target.buffer:
        # Reading and writing one buffer at different places in one kernel would race: go through a copy.
        source = builder.pointwise(fake, lambda body, point: operand(body, point, source, source.dtype))
    return builder.pointwise(fake, lambda body, point: operand(body, point, source, source.dtype), out=target)
