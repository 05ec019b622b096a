"""`litz.aot_compile`: a model in, one file out, which `litz.load` runs, and C programs where a linker is at hand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.aot.package import Package, PlainSpec, Range, TensorSpec
from litz.aot.shared_library import complete_or_not_at_all, link, why_not_shared
from litz.capture.key import shape_environment
from litz.capture.lift_state import lift_state
from litz.capture.outputs import known
from litz.capture.state import zeros_of
from litz.context import Context
from litz.errors import CaptureError, CompileError, OptionError
from litz.ops.formulas import formula_of
from litz.ops.sizes import size_sources
from litz.options import Options
from litz.pipeline import compile_to_data
from litz.runtime.artifact import Compiled
from litz.runtime.container import pack
from litz.runtime.frozen import constants_of
from litz.target import Machine, detect, detect_gpu, portable

_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD


def aot_compile(
    model: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, path: str | Path | None = None,
    options: Mapping[str, Any] | None = None, dynamic_shapes: Any = None,
) -> Path:  # fmt: skip
    """Compiles a module, an FX graph or a `torch.export` program for inference, with arguments such as these.

    `dynamic_shapes` is what `torch.export.export` takes: which dimensions vary, and between which bounds. The file ends
    in `.so` where it can be called from C, and in `.litz` where only Python can call it: there is no linker, or the
    program needs Python (`path` may ask for either). Without a `path` it is named after what is in it.
    """
    if (options or {}).get("freeze") == "discard":
        raise OptionError(
            "freeze='discard' releases the parameters of the model, and a file takes copies of them",
            hint="write freeze=True; the model stays yours",
        )
    if (options or {}).get("inner_compile") is not None:
        raise OptionError("what an inner_compile of your own makes cannot be written to a file")
    if isinstance(args, torch.Tensor):
        raise OptionError("`args` is a tensor, and a tuple of arguments is expected", hint="write `(x,)`")
    if path is not None and not Path(path).parent.is_dir():
        raise OptionError(f"there is no folder {Path(path).parent} for the file")
    if path is not None and Path(path).is_dir():
        raise OptionError(f"{path} is a folder, and the name of a file is expected")
    given = (model, tuple(args), dict(kwargs or {}), Options.from_environment(options), dynamic_shapes)
    package = package_of(*given)
    why = why_not_shared(package)
    if why is not None and why == package.compiled.forward.plan.why_not_native() and _may_be_shared(path):
        # What an operator has allocated, or a part of it, Python can return as it is; for C it is copied.
        copying = package_of(*given, copied=True)
        if why_not_shared(copying) is None:
            package, why = copying, None
    data = pack(package)
    name = blake2b(data, digest_size=12).hexdigest()
    if path is None:
        path = Path(f"{name}.litz" if why else f"{name}.so")
    file = Path(path)
    if file.suffix != ".so":
        with complete_or_not_at_all(file) as part:
            part.write_bytes(data)
    elif why is not None:
        hint = "give it the suffix .litz, for Python alone"
        raise CompileError(f"{file} cannot be a shared library: {why}", hint=hint)
    else:
        link(package, file, re.sub(r"\W", "_", f"litz_{file.stem}", flags=re.ASCII))
    return file


def _may_be_shared(path: str | Path | None) -> bool:
    return path is None or Path(path).suffix == ".so"


def package_of(
    model: Any, args: tuple, kwargs: dict[str, Any], options: Options, dynamic_shapes: Any, copied: bool = False
) -> Package:
    """`copied`: each output is in memory of its own."""
    args, kwargs = _each_its_own((args, kwargs))
    program = _exported(model, args, kwargs, dynamic_shapes)
    module, held = lift_state(program.module(check_guards=False))
    own = [n for n in module.graph.nodes if n.op == "placeholder"][: -len(held) or None]
    fakes = [n.meta.get("val") for n in own]
    flat = pytree.tree_leaves((args, kwargs)) if isinstance(model, torch.nn.Module) else _examples(program)
    shapes = shape_environment(fakes)
    _told_by_arguments(fakes)
    inputs = flat if shapes is None else fakes
    function = _copying(module.forward) if copied else module.forward
    given = [*inputs, *held.values()]
    targets = _targets(options, _device_of(given))
    state = dict(enumerate(held, len(own)))
    zeros = zeros_of(given, state)
    with torch.no_grad():
        levels = [
            compile_to_data(function, given, None, Context(options, t, state=state, zeros=zeros))[0] for t in targets
        ]
    if any(level.signature.bases for level in levels):
        raise CompileError("parameters or buffers share memory in part, which a file cannot have")
    copies = {id(t): t.detach().clone() for t in held.values()}  # tied ones are one tensor, there as here
    whole = [*flat, *(copies[id(t)] for t in held.values())]
    stay = range(len(given)) if levels[0].recipe is None else levels[0].recipe.kept
    kept = {name: t for place, (name, t) in enumerate(held.items(), len(own)) if place in stay}
    questions = [] if shapes is None else [formula_of(guard.expr) for guard in shapes.guards]
    if None in questions:
        raise CompileError("a question that was asked of the sizes has no spelling; fix the dimension it is about")
    return Package(
        _by_value(levels, whole),
        tuple(map(_spec, _names(model, program, [node.name for node in own]), fakes, flat)),
        (*range(len(own)), *(None for _ in kept)),
        tuple(copies[id(t)] for t in kept.values()),
        tuple(kept),
        _spelled(program.call_spec.in_spec),
        _form(program.call_spec.out_spec),
        tuple(_ranges(program)),
        tuple(dict.fromkeys(questions)),  # type: ignore[arg-type]
    )


def _by_value(levels: Sequence[Compiled], args: Sequence[Any]) -> tuple[Compiled, ...]:
    """The same programs with the constants themselves in place of a recipe for them; where processors share a recipe,
    the constants are the same tensors."""
    found: list[Compiled] = []
    made: dict[bytes, list[torch.Tensor]] = {}
    for level in levels:
        if level.recipe is not None:
            name = pack(level.recipe)
            if name not in made:
                made[name] = constants_of(level.recipe, args)
            level = replace(level, forward=level.forward.with_constants(made[name]), recipe=None)
        found.append(level)
    return tuple(found)


def _device_of(given: Sequence[Any]) -> torch.device:
    devices = sorted({t.device for t in given if isinstance(t, torch.Tensor)}, key=str)
    if len(devices) > 1:
        raise CompileError(
            f"arguments and parameters are on {' and '.join(map(str, devices))}: a file is for one device",
            hint="move the model and the example arguments to the same device",
        )
    found = devices[0] if devices else torch.device("cpu")
    if found.type not in ("cpu", "cuda"):
        raise CompileError(
            f"an argument or parameter is on {found}: files are made for CPUs and for GPUs of NVIDIA's",
            hint="move the model and the example arguments to one of these",
        )
    return found


def _copying(function: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dense = torch.empty_like(value)
        return torch.empty_strided(dense.shape, dense.stride(), dtype=value.dtype, device=value.device).copy_(value)

    return lambda *args: pytree.tree_map(copy, function(*args))


def _each_its_own(examples: Any) -> Any:
    """The arguments without memory in common: that examples share some is no promise of the caller's."""
    seen: set[int] = set()

    def apart(value: Any) -> Any:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            return value
        memory = value.untyped_storage()._cdata
        if memory not in seen:
            seen.add(memory)
            return value
        own = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return own.copy_(value.detach())

    return pytree.tree_map(apart, examples)


def _told_by_arguments(fakes: Sequence[Any]) -> None:
    """Refuses a dimension that varies only as part of another: at a call, nothing would tell what it is."""
    told = {source.name for source in size_sources(fakes)}
    for fake in fakes:
        for size in fake.shape if isinstance(fake, torch.Tensor) else ():
            symbols = size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ()
            unknown = sorted(str(symbol) for symbol in symbols if str(symbol) not in told)
            if unknown:
                raise CompileError(
                    f"a dimension is {size}, and no argument has one that is {unknown[0]} itself",
                    hint="give the dimension a name of its own, `Dim(name)`, in `dynamic_shapes`",
                )


def _targets(options: Options, device: torch.device) -> list[Machine]:
    """This processor, or the instruction sets that were asked for, the widest first; on a GPU, each as what starts its
    kernels."""
    here = detect(options.threads).without_tiles
    levels = portable(options.cpu_levels, options.threads) if options.cpu_levels else [here]
    if device.type == "cpu":
        return [*levels]
    gpu = detect_gpu(device.index, options.threads)
    return [replace(gpu, host=level) for level in levels]


def _exported(model: Any, args: tuple, kwargs: dict[str, Any], dynamic_shapes: Any) -> torch.export.ExportedProgram:
    if isinstance(model, torch.export.ExportedProgram):
        return model
    if not isinstance(model, torch.nn.Module):
        model = _as_module(model)
    try:
        with torch.no_grad():
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise CaptureError(f"torch.export makes no graph of the model: {type(error).__name__}: {error}") from error


def _as_module(function: Any) -> torch.nn.Module:
    """The function, with the names of its parameters."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    try:
        own = inspect.signature(function)
    except ValueError:  # written in C, and has none
        pass
    else:
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        taken = [p.replace(kind=_NAMED) if p.kind is p.POSITIONAL_ONLY else p for p in own.parameters.values()]
        if "self" not in own.parameters:
            forward.__signature__ = own.replace(parameters=[first, *taken])  # type: ignore[attr-defined]
    return type(getattr(function, "__name__", "function"), (torch.nn.Module,), {"forward": forward})()


def _examples(program: torch.export.ExportedProgram) -> list[Any]:
    if program.example_inputs is None:
        raise CaptureError("the exported program has no example inputs, which say what it is called with")
    return pytree.tree_leaves(program.example_inputs)


def _names(model: Any, program: torch.export.ExportedProgram, names: list[str]) -> list[str]:
    """Of the arguments: of a single value, its parameter's, which a graph calls otherwise where Python knows
    the name already."""
    positional, named = program.call_spec.in_spec.children()
    parameters: list[str] = []
    if not isinstance(model, torch.export.ExportedProgram):
        function = model.forward if isinstance(model, torch.nn.Module) else _as_module(model).forward
        kinds = (inspect.Parameter.POSITIONAL_ONLY, _NAMED)
        parameters = [name for name, p in inspect.signature(function).parameters.items() if p.kind in kinds]
    called: list[str | None] = [*parameters[: len(positional.children())]]
    called += [None] * (len(positional.children()) - len(called))
    at = 0
    for name, form in zip([*called, *named.context], [*positional.children(), *named.children()], strict=True):
        if name is not None and form.is_leaf():
            names[at] = name
        at += form.num_leaves
    return names


def _spec(name: str, fake: Any, value: Any) -> TensorSpec | PlainSpec:
    if isinstance(fake, torch.Tensor):
        sizes, strides = tuple(map(known, fake.shape)), tuple(map(known, fake.stride()))
        return TensorSpec(name, fake.dtype, sizes, strides, fake.device.type)
    return PlainSpec(name, value)


def _spelled(spec: pytree.TreeSpec) -> str:
    try:
        found = pytree.treespec_dumps(spec)
        if pytree.treespec_loads(found) != spec:
            raise TypeError("a dictionary has keys that are no strings, which come back as others")
        return found
    except (NotImplementedError, TypeError) as error:
        raise CompileError(
            f"an argument or result is in a container that has no name in a file: {error}",
            hint="give tuples, lists and dictionaries, or register the type with a `serialized_type_name`",
        ) from error


def _form(spec: pytree.TreeSpec) -> str | None:
    """How the outputs come, where any Python has the containers."""
    plain = (tuple, list, dict, None)
    found = [spec]
    for part in found:
        found.extend(part.children())
    return _spelled(spec) if all(part.type in plain for part in found) else None


def _ranges(program: torch.export.ExportedProgram) -> list[Range]:
    found = []
    for symbol, bounds in program.range_constraints.items():
        least, most = (int(b) if b.is_Integer else None for b in (bounds.lower, bounds.upper))
        found.append(Range(str(symbol), least, most))
    return found


__all__ = ["aot_compile", "package_of"]
