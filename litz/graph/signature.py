"""What a captured function does to its inputs and how its outputs relate to them.

A `Signature` is found while tracing and read by the wrappers that restore, at run time, everything the
functional graph leaves out: writes to inputs, outputs that share memory, gradients that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Union

import torch
from torch import fx
from torch.utils import _pytree as pytree

from litz.graph.recipe import Recipe
from litz.loop.expr import Expr, Size
from litz.loop.formula import Formula, Measures
from litz.loop.ir import NumberSource, SizeSource, measure

Number = Union[int, Expr]  # an expression is in sizes known only when the function is called


@dataclass(frozen=True)
class Window:
    """Shape, strides and offset of a view, relative to its base tensor."""

    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]
    offset: Number

    def at(self, sizes: Measures) -> Window:
        """The same in numbers alone."""
        return Window(numbers(self.sizes, sizes), numbers(self.strides, sizes), number(self.offset, sizes))

    def __str__(self) -> str:
        return f"{list(self.sizes)} by {list(self.strides)} from {self.offset}"


def number(value: Any, sizes: Measures) -> Any:
    return value.at(sizes) if isinstance(value, (Expr, Formula)) else value


def numbers(values: Sequence[Number], sizes: Measures) -> tuple[int, ...]:
    return tuple(number(value, sizes) for value in values)


def _symbols(value: Any) -> Iterator[str]:
    if isinstance(value, Formula):
        yield from value.symbols
    elif isinstance(value, Expr):
        for atom in value.atoms():
            if isinstance(atom, Size):
                yield from (atom.name,) if atom.formula is None else atom.formula.symbols
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _symbols(item)
    elif isinstance(value, (Input, Output, Window, ViewStep)):
        for field in fields(value):
            yield from _symbols(getattr(value, field.name))


@dataclass(frozen=True)
class Input:
    """`mutated`: written to. `hidden`: only under `no_grad`, so that autograd must not see it. `reshaped`: what it has
    become, where its own shape or strides were changed in place. `lazy`: it comes conjugated or negated by a bit.
    `counted`: the writes, if any, count as new versions; through `.data` they do not."""

    needs_grad: bool = False
    mutated: bool = False
    hidden: bool = True
    parameter: bool = False
    reshaped: Window | None = None
    lazy: bool = False
    counted: bool = True

    def __str__(self) -> str:
        words = ["needs grad"] if self.needs_grad else []
        if self.lazy:
            words.append("conjugated or negated by a bit")
        if self.mutated:
            words.append(("mutated under no_grad" if self.hidden else "mutated") + ("" if self.counted else ", unseen"))
        if self.reshaped is not None:
            words.append(f"becomes {self.reshaped}")
        return ", ".join(words) or "read"


@dataclass(frozen=True)
class ViewStep:
    """An operator that makes a view; `index`: which of its results, if it gives several."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    index: int | None = None

    def __call__(self, base: torch.Tensor, sizes: Measures) -> torch.Tensor:
        made = self.target(base, *pytree.tree_map(lambda value: number(value, sizes), list(self.args)))
        return made if self.index is None else made[self.index]

    def __str__(self) -> str:
        return f"{self.target}{self.args}" + ("" if self.index is None else f"[{self.index}]")


@dataclass(frozen=True)
class Output:
    """One of the function's results.

    `kind`: "fresh" (computed by the graph), "input" (the argument itself), "view" (of an argument), "part"
    (of another result's memory), "plain" (not a tensor). `index` says which argument or graph result.
    `conjugated`, `negated`: by a bit of the tensor's, which the graph leaves out. `dtype`: what the memory is read as,
    where it is not that of the tensor it belongs to. `steps`: how the view is made, where a window would not do.
    `through`: the graph result whose gradient is its own, where its gradient is no window's on that memory: it was
    returned by a function of the user's with a backward of its own, or is one of several views made at once.
    `unrecorded`: a view that was made with gradients off, of which autograd has no step: it counts as learning, as what
    it is a view of does, and has no gradient to give. `apart`: in that memory, and to autograd no view: detached.
    """

    kind: str
    index: int = -1
    window: Window | None = None
    needs_grad: bool = False
    value: object = None
    conjugated: bool = False
    negated: bool = False
    dtype: torch.dtype | None = None
    steps: tuple[ViewStep, ...] = ()
    through: int | None = None
    unrecorded: bool = False
    apart: bool = False

    def __str__(self) -> str:
        bits = (", conjugated" if self.conjugated else "") + (", negated" if self.negated else "")
        bits += "" if self.through is None else f", differentiated as result {self.through}"
        bits += (", unrecorded" if self.unrecorded else "") + (", apart" if self.apart else "")
        grad = (", needs grad" if self.needs_grad else "") + bits + (f" as {self.dtype}" if self.dtype else "")
        if self.kind == "plain":
            return f"plain {self.value!r}"
        if self.kind == "fresh":
            return f"result {self.index}{grad}"
        if self.kind == "input":
            return f"input {self.index} itself"
        base = "input" if self.kind == "view" else "result"
        if self.window is None:
            return f"{base} {self.index} again{grad}"
        steps = ", by " + ", ".join(map(str, self.steps)) if self.steps else ""
        return f"view of {base} {self.index}: {self.window}{grad}{steps}"


@dataclass(frozen=True)
class Base:
    """Memory that several arguments share and one writes to: an input in their place, of which they are windows.

    `members`: which arguments, and where they lie on it. `own`: it is the tensor they are all views of.
    """

    members: tuple[tuple[int, Window], ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    own: bool = False


@dataclass(frozen=True)
class Subclasses:
    """Forms of the caller's arguments and outputs, None for what is plain; all else in a signature counts their parts.

    `returned`: outputs that are an argument itself, and which one.
    """

    arguments: tuple[Any, ...]
    outputs: tuple[Any, ...]
    returned: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Signature:
    """`inputs` are the graph's: each argument once, without the members of bases, then the bases."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    results: int  # tensors the forward graph returns for the outputs
    differentiable: tuple[int, ...]  # graph results (then mutated inputs) that have tangents, in tangent order
    places: tuple[int, ...] = ()  # for each argument of the caller, the input it is; empty where they are the same
    autocast: bool = False  # traced, and so called, where autocast is on
    recording: bool = False  # parts of it record gradients, though it was traced, and so is called, where they are off
    unrecorded: bool = False  # traced, and so called, where gradients are recorded, and none of its results has one
    bases: tuple[Base, ...] = ()
    returned_members: tuple[tuple[int, int], ...] = ()  # outputs that are the member of a base itself, and which one
    subclasses: Subclasses | None = None  # what the arguments and outputs are to the caller, if not plain tensors
    sizes: tuple[SizeSource, ...] = ()  # where the inputs tell the sizes that vary from call to call
    floats: tuple[NumberSource, ...] = ()  # and the floats

    @property
    def mutated(self) -> tuple[int, ...]:
        return tuple(i for i, x in enumerate(self.inputs) if x.mutated)

    @property
    def returned_mutations(self) -> tuple[int, ...]:
        """Inputs whose new value autograd must see: returned by the graph and copied in afterwards."""
        return tuple(i for i, x in enumerate(self.inputs) if x.mutated and not x.hidden)

    @property
    def symbols(self) -> frozenset[str]:
        """The numbers that what is to be restored depends on, by name."""
        return frozenset(_symbols((self.inputs, self.outputs)))

    def measure(self, inputs: Sequence[Any]) -> Measures:
        """The numbers that vary, in a call with these inputs."""
        return measure(self.sizes, self.floats, inputs)

    @property
    def repeated(self) -> tuple[tuple[int, int], ...]:
        """Arguments that are an input seen before, and which one."""
        return tuple((i, p) for i, p in enumerate(self.places) if p in self.places[:i])

    def __str__(self) -> str:
        lines = [f"argument {i}: input {place} again" for i, place in self.repeated]
        if self.subclasses is not None:
            lines = [f"taken apart: argument {i}, {f}" for i, f in enumerate(self.subclasses.arguments) if f] + lines
        for number, base in enumerate(self.bases, len(self.inputs) - len(self.bases)):
            lines += [f"argument {place}: {window} of input {number}" for place, window in base.members]
        lines += [f"input {i}: {x}" for i, x in enumerate(self.inputs)]
        lines += [f"output {i}: {x}" for i, x in enumerate(self.outputs)]
        if self.autocast:
            lines.append("under autocast")
        if self.unrecorded:
            lines.append("records no gradients")
        if self.recording:
            lines.append("under no_grad, in parts of it under enable_grad")
        return "\n".join(lines)


@dataclass(frozen=True)
class Tangent:
    """The form in which a result's tangent is expected."""

    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Training:
    """How a forward and its backward are one function to autograd.

    What the backward takes: the `saved_primals` among the arguments, the `saved_results` among the forward's own
    results, the `saved` tensors that follow those, plain numbers, and then the tangents.
    """

    tangents: tuple[Tangent, ...]
    gradient_of: tuple[int, ...]  # the argument that each of the backward's results belongs to
    saved_primals: tuple[int, ...]
    saved_results: tuple[int, ...]
    saved: int
    donated: tuple[int, ...] = ()  # of what the backward takes, that which the forward made for it alone


@dataclass(frozen=True)
class Joint:
    """A functional graph, its backward included: primals, then tangents in; results, then gradients out."""

    graph: fx.GraphModule
    signature: Signature
    primals: int
    forward_outputs: int  # of the graph's outputs, those before the gradients
    gradient_of: tuple[int, ...]  # the primal each gradient belongs to
    recipe: Recipe | None = None  # of what is frozen: the constants that are inputs of the graph, and no arguments


def without_inputs(signature: Signature, gone: frozenset[int]) -> Signature:
    """The signature of a function that is not given these inputs. None of them is written to, shares memory with
    others, or is part of a result."""
    kept = [i for i in range(len(signature.inputs)) if i not in gone]
    now = {old: new for new, old in enumerate(kept)}

    def moved(output: Output) -> Output:
        return replace(output, index=now[output.index]) if output.kind in ("input", "view") else output

    return replace(
        signature,
        inputs=tuple(signature.inputs[i] for i in kept),
        outputs=tuple(map(moved, signature.outputs)),
        places=_renumbered(tuple(now[p] for p in signature.places if p not in gone)),
        sizes=tuple(s if s.input is None else replace(s, input=now[s.input]) for s in signature.sizes),
        floats=tuple(s if s.input is None else replace(s, input=now[s.input]) for s in signature.floats),
    )


def _renumbered(places: tuple[int, ...]) -> tuple[int, ...]:
    """Empty where each argument is an input of its own."""
    return () if places == tuple(range(len(places))) else places
