"""What lowerings are written with: a `Body` grows one kernel, a `Builder` grows the program.

In: fake tensors (shape, strides, dtype) and views of earlier results. Out: steps and buffers.
Every buffer has the strides eager would give it, so a view operator costs nothing: its result is
another window on the same buffer, read off its fake tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Union

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from litz.context import Context
from litz.errors import LoweringError, source_of
from litz.loop.dtype import DTYPES, compute_type, from_torch
from litz.loop.exact import exact
from litz.loop.expr import ONE, ZERO, Axis, Expr, ExprLike, Value, expr
from litz.loop.formula import Formula
from litz.loop.ir import (
    POSITIONS,
    Apply,
    Buffer,
    Call,
    Check,
    Const,
    Index,
    Kernel,
    Load,
    Number,
    Op,
    Reduce,
    Scan,
    Step,
    Store,
    View,
    contiguous,
)
from litz.loop.panels import Panels, panels
from litz.loop.reach import outside
from litz.loop.scalar import BOOL, SCALARS
from litz.ops.held import Held, InPanels
from litz.ops.sizes import symbolic_float, symbolic_size

Point = tuple[Expr, ...]  # one index an axis of a tensor
# A number in a formula; some are known only when the program is called.
Numeral = Union[int, float, bool, Expr, torch.SymInt, torch.SymFloat]


@dataclass(frozen=True, eq=False)
class Val:
    """A value of a body, with the arithmetic one writes formulas in. Python numbers become constants, and those known
    only at run time (sizes, symbolic numbers) what the kernel is told when called."""

    body: Body
    name: str
    dtype: str

    def _op(self, op: str, other: Val | Numeral) -> Val:
        return self.body.apply(op, self, other)

    def _rop(self, op: str, other: Val | Numeral) -> Val:
        return self.body.apply(op, self.body.like(self, other), self)

    def __add__(self, other):
        return self._op("add", other)

    def __radd__(self, other):
        return self._rop("add", other)

    def __sub__(self, other):
        return self._op("sub", other)

    def __rsub__(self, other):
        return self._rop("sub", other)

    def __mul__(self, other):
        return self._op("mul", other)

    def __rmul__(self, other):
        return self._rop("mul", other)

    def __truediv__(self, other):
        return self._op("div", other)

    def __rtruediv__(self, other):
        return self._rop("div", other)

    def __neg__(self):
        return self.body.apply("neg", self)

    def __and__(self, other):
        return self._op("and", other)

    def __or__(self, other):
        return self._op("or", other)

    def __invert__(self):
        return self.body.apply("not", self)

    def __lt__(self, other):
        return self._op("lt", other)

    def __le__(self, other):
        return self._op("le", other)

    def __gt__(self, other):
        return self._op("gt", other)

    def __ge__(self, other):
        return self._op("ge", other)

    def eq(self, other):
        return self._op("eq", other)

    def ne(self, other):
        return self._op("ne", other)


class DoesNotFit(Exception):
    """A lowering read or wrote outside a tensor: its operands' sizes do not go together as it takes them to, which
    fakes do not always see. Eager broadcasts them, or refuses."""


def _inside(view: View, point: Point) -> Expr:
    for i, size in zip(point, view.sizes, strict=True):
        if size.is_int and outside(i, size.int, True) is not None:
            raise DoesNotFit(f"index {i} of a dimension of size {size}")
    return view.at(point)


class Body:
    """One kernel's operators in order; the same operator on the same arguments is written once."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.numbers: dict[str, Formula] = {}  # floats known only at run time that it reads
        self._seen: dict[tuple, Val] = {}

    def _value(self, make: Callable[[str], Op], dtype: str, *key: Any) -> Val:
        found = self._seen.get(key)
        if found is None:
            found = Val(self, f"v{len(self.ops)}", dtype)
            self.ops.append(make(found.name))
            self._seen[key] = found
        return found

    def load(self, view: View, point: Point, mask: Val | None = None) -> Val:
        index, masked = (_inside(view, point), None) if mask is None else (view.at(point), mask.name)
        return self._value(
            lambda name: Load(name, view.dtype, view.buffer, index, masked),
            view.dtype, "load", view.buffer, index, masked,
        )  # fmt: skip

    def const(self, value: Numeral, dtype: str) -> Val:
        """The number in that type."""
        if isinstance(value, torch.SymInt):
            value = symbolic_size(value)
        if isinstance(value, Expr):
            if not value.is_int:
                return self.cast(self.index(value), dtype)
            value = value.int
        if isinstance(value, torch.SymFloat):
            formula = symbolic_float(value)
            if isinstance(formula, Formula):
                return self.cast(self._number(formula), dtype)
            value = formula
        kind = DTYPES[dtype].kind
        value = float(value) if kind == "float" else bool(value) if kind == "bool" else _wrapped(int(value), dtype)
        return self._value(lambda name: Const(name, dtype, value), dtype, "const", dtype, exact(value))

    def _number(self, formula: Formula) -> Val:
        """A float that the host computes, or is given, at each call."""
        name = formula.name
        self.numbers[name] = formula
        return self._value(lambda made: Load(made, "f64", name, ZERO), "f64", "load", name, ZERO, None)

    def like(self, value: Val, other: Val | Numeral) -> Val:
        return other if isinstance(other, Val) else self.const(other, value.dtype)

    def index(self, e: ExprLike, dtype: str = "i64") -> Val:
        e = expr(e)
        return self._value(lambda name: Index(name, dtype, e), dtype, "index", dtype, e)

    def apply(self, op: str, *args: Val | Numeral) -> Val:
        row = SCALARS[op]
        typed = next(a for a in reversed(args) if isinstance(a, Val))
        vals = [a if isinstance(a, Val) else self.const(a, typed.dtype) for a in args]
        assert len(vals) == row.arity, f"{op} takes {row.arity} arguments"
        dtype = "b1" if row.result == BOOL else vals[-1].dtype
        names = tuple(v.name for v in vals)
        return self._value(lambda name: Apply(name, dtype, op, names), dtype, op, names)

    def cast(self, value: Val, dtype: str) -> Val:
        if value.dtype == dtype:
            return value
        return self._value(lambda name: Apply(name, dtype, "cast", (value.name,)), dtype, "cast", dtype, value.name)

    def where(self, condition: Val, yes: Val | Numeral, no: Val | Numeral) -> Val:
        typed = yes if isinstance(yes, Val) else no
        assert isinstance(typed, Val)
        return self.apply("where", condition, self.like(typed, yes), self.like(typed, no))

    def reduce(self, kind: str, value: Val) -> Val:
        dtype = "i64" if kind in POSITIONS else value.dtype
        return self._value(lambda name: Reduce(name, dtype, kind, value.name), dtype, "reduce", kind, value.name)

    def scan(self, kind: str, value: Val) -> Val:
        """`kind` over the steps of the reduced axis up to each."""
        return self._value(
            lambda name: Scan(name, value.dtype, kind, value.name), value.dtype, "scan", kind, value.name
        )

    def position(self, value: Val, limit: ExprLike, wrap: bool = True, fault: str = "index") -> Expr:
        """A loaded integer as an index: wrapped when negative (unless not `wrap`), checked against `limit`."""
        limit, whole = expr(limit), self.cast(value, "i64").name
        checked = self._value(
            lambda name: Check(name, "i64", whole, limit, wrap, fault), "i64", "check", whole, limit, wrap, fault
        )  # fmt: skip
        return expr(Value(checked.name, limit))

    def store(self, view: View, point: Point, value: Val) -> None:
        self.ops.append(Store(view.buffer, _inside(view, point), self.cast(value, view.dtype).name))

    def update(self, view: View, point: Point, kind: str, value: Val) -> None:
        """Combine `value` with what is there, step by step of the reduced axes; `put` replaces it."""
        self.ops.append(Store(view.buffer, _inside(view, point), self.cast(value, view.dtype).name, kind))


class Space:
    """The axes of one kernel: a parallel axis for each dimension of `sizes`, in order of falling stride."""

    def __init__(self) -> None:
        self.parallel: list[Axis] = []
        self.reduced: list[Axis] = []

    def over(self, sizes: Sequence[Expr], strides: Sequence[Expr] | None = None) -> Point:
        """A point running over a tensor of `sizes`; axes of size 1 are left out (index 0)."""
        order = list(range(len(sizes)))
        if strides is not None:
            order.sort(key=lambda d: -strides[d].hint)  # stable: ties keep the order of dimensions
        point: list[Expr] = [ZERO] * len(sizes)
        for d in order:
            if sizes[d] is not ONE:
                axis = Axis(f"i{len(self.parallel)}", sizes[d])
                self.parallel.append(axis)
                point[d] = expr(axis)
        return tuple(point)

    def reduce_over(self, size: ExprLike) -> Expr:
        if expr(size) is ONE:
            return ZERO
        axis = Axis(f"r{len(self.reduced)}", size)
        self.reduced.append(axis)
        return expr(axis)


class Builder:
    def __init__(self, ctx: Context):
        self.ctx = ctx
        self.buffers: dict[str, Buffer] = {}
        self.numbers: dict[str, Formula] = {}  # floats known only at run time that any step reads
        self.steps: list[Step] = []
        self.node: fx.Node | None = None  # the operator being lowered
        self.constants: list[torch.Tensor | Held | InPanels] = []  # values of the inputs that follow the user's own
        self.constant_names: list[str] = []
        self._storage_offset: dict[str, Expr] = {}

    # -- buffers ------------------------------------------------------------------------------
    def allocate(self, fake: torch.Tensor, kind: str = "temp", name: str | None = None) -> View:
        """A buffer with the shape and strides of `fake`; but no two elements of what is computed are one, whatever a
        fake says (torch 2.11's, of what is scattered into an expanded tensor)."""
        dtype = dtype_of(fake)
        sizes, strides = sizes_of(fake), tuple(self.size_expr(s) for s in fake.stride())
        if kind == "temp" and any(st is ZERO and size is not ONE for size, st in zip(sizes, strides, strict=True)):
            strides = contiguous(sizes)
        extent = ONE
        for size, stride in zip(sizes, strides, strict=True):
            extent = extent + (size - 1) * stride
        if any(size is ZERO for size in sizes):
            extent = ZERO
        name = name or f"t{len(self.buffers)}"
        self.buffers[name] = Buffer(name, dtype, extent, kind)
        self._storage_offset[name] = self.size_expr(fake.storage_offset())
        return View(name, dtype, sizes, strides)

    def scratch(self, sizes: Sequence[ExprLike], dtype: str) -> View:
        """A new contiguous buffer of a shape no fake tensor has."""
        dims = tuple(expr(s) for s in sizes)
        name = f"t{len(self.buffers)}"
        self.buffers[name] = Buffer(name, dtype, numel(dims))
        self._storage_offset[name] = ZERO
        return View(name, dtype, dims, contiguous(dims))

    def constant(self, fake: torch.Tensor, value: torch.Tensor | Held) -> View:
        name = f"const{len(self.constants)}"
        self.constants.append(value)
        self.constant_names.append(name)
        return self.allocate(fake, "input", name)

    def packed(self, matrix: View, lanes: int, group: int) -> tuple[Panels, str] | None:
        """A matrix of lines by steps by columns in panels, for vectors of so many words of so many steps, and the
        buffer that holds it so; None where it is no constant whose value comes with the call."""
        if matrix.buffer not in self.constant_names:
            return None
        held = self.constants[self.constant_names.index(matrix.buffer)]
        if not isinstance(held, Held):
            return None
        if self.ctx.options.freeze == "discard" and any(matrix.buffer in step.reads for step in self.steps):
            return None  # a table that is looked up too, and lies as it is for that, is not kept twice
        *lines, steps, columns = (size.int for size in matrix.sizes)
        found = panels(prod(lines), steps, columns, lanes, group)
        sizes, strides = (tuple(e.int for e in part) for part in (matrix.sizes, matrix.strides))
        packed = InPanels(held.number, sizes, strides, matrix.offset.int, found)
        if packed in self.constants:
            return found, self.constant_names[self.constants.index(packed)]
        name = f"const{len(self.constants)}"
        self.constants.append(packed)
        self.constant_names.append(name)
        self.buffers[name] = Buffer(name, matrix.dtype, expr(found.size), "input")
        self._storage_offset[name] = ZERO
        return found, name

    def window(self, base: View, fake: torch.Tensor) -> View:
        """Another window on `base`'s buffer, as `fake` describes it."""
        offset = self.size_expr(fake.storage_offset()) - self._storage_offset[base.buffer]
        return View(base.buffer, base.dtype, sizes_of(fake), tuple(self.size_expr(s) for s in fake.stride()), offset)

    @staticmethod
    def size_expr(size: int | torch.SymInt) -> Expr:
        return expr(size) if isinstance(size, int) else symbolic_size(size)

    # -- steps --------------------------------------------------------------------------------
    def emit(self, space: Space, body: Body) -> None:
        # A dimension of size 0 means nothing to do.
        if any(axis.size is ZERO for axis in space.parallel):
            return
        name = self.name_of(self.node)
        self.numbers.update(body.numbers)
        self.steps.append(
            Kernel(
                f"{name}_{len(self.steps)}", tuple(space.parallel), tuple(space.reduced), tuple(body.ops), self.origin()
            )
        )

    def pointwise(self, fake: torch.Tensor, formula: Callable[[Body, Point], Val], out: View | None = None) -> View:
        """A kernel that computes each element of a result like `fake` by `formula`."""
        out = out or self.allocate(fake)
        space, body = Space(), Body()
        point = space.over(out.sizes, out.strides)
        body.store(out, point, formula(body, point))
        self.emit(space, body)
        return out

    def library(self, node: fx.Node, args: tuple, kwargs: dict, leaves_out: Collection[int] = ()) -> Any:
        """A heavy operator that the library does as well: called, and no fallback. `leaves_out`: results, by number,
        that it is not asked for."""
        return self._call(node, args, kwargs, "library", leaves_out)

    def call(self, node: fx.Node, args: tuple, kwargs: dict, why: str) -> Any:
        """The operator as it is, on windows of buffers; a fallback, counted and reported."""
        self.ctx.fallback(str(node.target), why, source_of(node))
        return self._call(node, args, kwargs, why)

    def _call(self, node: fx.Node, args: tuple, kwargs: dict, why: str, leaves_out: Collection[int] = ()) -> Any:
        fakes = node.meta.get("val")  # None: an operator called for its effect alone
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        several = isinstance(fakes, (tuple, list))
        # A result that nobody reads is not held: tracing does not always know its shape.
        results = [
            self._held(f) if not several or (wants(node, i) and i not in leaves_out) else tree_map(lambda _: None, f)
            for i, f in enumerate(fakes if several else (fakes,))
        ]
        mutates = tuple(
            value.buffer
            for spec, value in zip(target._schema.arguments, args, strict=False)
            if spec.alias_info is not None and spec.alias_info.is_write and isinstance(value, View)
        )
        name = target.name()
        self.steps.append(
            Call(
                f"c{len(self.steps)}",
                name,
                self.freeze(args),
                self.freeze(tuple(kwargs.items())),
                tuple(tree_leaves(results, is_leaf=lambda part: isinstance(part, View))),
                mutates,
                why,
                self.origin(),
            )
        )
        if several:
            return tuple(results)
        return results[0] if results else None

    def _held(self, fake: Any) -> Any:
        """A buffer for the result; for a list of results, a list of buffers."""
        if isinstance(fake, (tuple, list)):
            return tuple(self._held(part) for part in fake)
        return self.allocate(fake) if isinstance(fake, torch.Tensor) else None

    def freeze(self, arg: Any) -> Any:
        """An argument as a step keeps it: symbolic numbers as what they are at run time."""
        if isinstance(arg, (list, tuple)):
            return tuple(self.freeze(a) for a in arg)
        if isinstance(arg, torch.SymInt):
            return symbolic_size(arg)
        if isinstance(arg, torch.SymBool):
            return bool(arg)
        if not isinstance(arg, torch.SymFloat):
            return arg
        formula = symbolic_float(arg)
        if not isinstance(formula, Formula):
            return formula
        self.numbers[formula.name] = formula
        return Number(formula.name)

    def origin(self) -> tuple[str, ...]:
        return () if self.node is None else (self.node.name,)

    @staticmethod
    def name_of(node: fx.Node | None) -> str:
        target = getattr(node, "target", None)
        if isinstance(target, torch._ops.OpOverload):
            return target._schema.name.split("::")[-1].strip("_")
        return "kernel"


def _wrapped(value: int, dtype: str) -> int:
    """As eager converts a Python number: modulo the type's range."""
    bits = DTYPES[dtype].bits
    low = 0 if DTYPES[dtype].kind == "uint" else -(1 << (bits - 1))
    return (value - low) % (1 << bits) + low


def wants(node: fx.Node, result: int) -> bool:
    """Whether anything reads that one of the operator's results."""
    return any(user.target is not operator.getitem or (user.args[1] == result and user.users) for user in node.users)


def sizes_of(fake: torch.Tensor) -> tuple[Expr, ...]:
    return tuple(Builder.size_expr(s) for s in fake.shape)


def broadcast(view: View, point: Point) -> Point:
    """`point` of the result, seen from an operand that broadcasts to it."""
    own = point[len(point) - len(view.sizes) :]
    return tuple(ZERO if size is ONE else i for size, i in zip(view.sizes, own, strict=True))


def line(view: View) -> View:
    """A 0-d tensor as the 1-d one that many operators take it for."""
    return view if view.sizes else View(view.buffer, view.dtype, (ONE,), (ONE,), view.offset)


def numel(sizes: Sequence[Expr]) -> Expr:
    total = ONE
    for size in sizes:
        total = total * size
    return total


def operand(body: Body, point: Point, arg: View | Numeral, dtype: str) -> Val:
    """An argument of a pointwise operator as a value of `dtype`: loaded and broadcast, or a number."""
    if isinstance(arg, View):
        return body.cast(body.load(arg, broadcast(arg, point)), dtype)
    return body.const(arg, dtype)


def dtype_of(fake: torch.Tensor) -> str:
    """The loop IR's name of the type; one it does not have keeps torch's, and only called operators use it."""
    return from_torch(fake.dtype) or str(fake.dtype)


def computed(fake: torch.Tensor) -> str:
    """The type in which a result like `fake` is computed."""
    dtype = from_torch(fake.dtype)
    if dtype is None:
        raise LoweringError(f"no loop type for {fake.dtype}")
    return compute_type(dtype)
