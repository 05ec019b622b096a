"""A kernel under construction: bodies appended one after the other, values in the place of memory.

In: the bodies of kernels, and where their axes are now. Out: one body, in which an equal value is written once and
what was stored is not loaded again.

The one idea: a body grows at its end. What an `Addition` would append is worked out aside, at the cost of the new
operators alone; only when nothing speaks against it is it taken over, so a kernel that grows a hundred times is not
copied a hundred times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

from litz.loop.contraction import Contraction, contraction
from litz.loop.exact import exact
from litz.loop.expr import Axis, Expr, FloorDiv, Mod, Value, expr
from litz.loop.ir import POSITIONS, Apply, Check, Const, Index, Kernel, Load, Op, Reduce, Store
from litz.loop.passes import last_pass_only
from litz.loop.remember import remembered
from litz.schedule.align import Moved, Refusal, Space

_STORED_TWICE = Refusal("both store to one buffer")
_ELSEWHERE = Refusal("one loads what the other stores at another place, or under a mask")
_READ_AFTER = Refusal("a buffer would be read after, or elsewhere than, it is overwritten")
_VECTORS = Refusal("an index would divide the axis that vectors run along")


class _Body:
    """What is known of operators in a row without looking at them again."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.seen: dict[tuple, str] = {}  # what a value is -> its name
        self.stored: dict[str, tuple[Expr, str]] = {}  # buffer -> where, and which value
        self.loaded: dict[str, set[Expr]] = {}  # in the order of the first loads
        self.unmasked: dict[str, Expr] = {}  # buffer -> where it is loaded first without a mask
        self.indices: set[Expr] = set()
        self.reductions = 0
        self.gives_positions = False


class Draft(_Body):
    def __init__(self, name: str, space: Space):
        super().__init__()
        self.name, self.space = name, space
        self.origins: dict[str, None] = {}
        self.divided: set[Axis] = set()  # axes under a division or remainder in some index
        self.ordered = self.updates = False
        self._kernel: Kernel | None = None  # the body as a kernel, as long as nothing joins it
        self._product: tuple[Contraction | None] | None = None

    @classmethod
    def of(cls, kernel: Kernel) -> Draft | None:
        """The kernel, ready to grow; None if its own body is such that nothing may join it."""
        draft = cls(kernel.name, Space(kernel.axes, kernel.reduced))
        addition = draft.addition(kernel.body, {})
        if isinstance(addition, Refusal):
            return None
        draft.take(addition, kernel.name, kernel.origins)
        draft.ordered, draft._kernel = kernel.ordered, kernel
        draft.updates = any(store.updates for store in kernel.stores)
        return draft

    def addition(
        self, body: Iterable[Op], moved: Moved, known: Mapping[str, str] | None = None
    ) -> Union[Addition, Refusal]:
        """What `body` with its axes replaced adds. `known` names values that exist already."""
        addition = Addition(self, known)
        refusal = addition.extend(body, moved)
        return addition if refusal is None else refusal

    def take(self, addition: Addition, name: str, origins: Iterable[str]) -> None:
        self.name = name
        self.ops += addition.ops
        self.seen.update(addition.seen)
        self.stored.update(addition.stored)
        for buffer, indices in addition.loaded.items():
            self.loaded.setdefault(buffer, set()).update(indices)
        for buffer, index in addition.unmasked.items():
            self.unmasked.setdefault(buffer, index)
        self.indices |= addition.indices
        self.divided |= addition.divided
        self.reductions += addition.reductions
        self.gives_positions |= addition.gives_positions
        self.origins.update(dict.fromkeys(origins))
        self._kernel = self._product = None

    def kernel(self) -> Kernel:
        if self._kernel is None:
            self._kernel = self._as_kernel(self.ops)
        return self._kernel

    def _as_kernel(self, ops: Sequence[Op]) -> Kernel:
        return Kernel(self.name, self.space.parallel, self.space.reduced, tuple(ops), tuple(self.origins))

    @property
    def product(self) -> Contraction | None:
        """The matrix product in it, if it is one."""
        if self.reductions != 1:
            return None
        if self._product is None:
            self._product = (contraction(self.kernel()),)
        return self._product[0]

    def index_of(self, buffer: str) -> Expr | None:
        """Where it stores to the buffer; if it does not, where it loads from it."""
        return self.stored[buffer][0] if buffer in self.stored else self.unmasked.get(buffer)

    # -- what speaks against an addition --------------------------------------------------------------
    def objection(self, addition: Addition, divided: set[Axis]) -> Refusal | None:
        """`divided`: axes that stood under a division before the two were joined."""
        if not self._memory_is_safe(addition):
            return _READ_AFTER
        broken = (self.divided | addition.divided) - divided
        if any(_is_unit(index, axis) for axis in broken for index in (*self.indices, *addition.indices)):
            return _VECTORS
        return None

    def _memory_is_safe(self, addition: Addition) -> bool:
        """A buffer both read and written is read only where the same point writes it, and never after."""
        stored = {**self.stored, **addition.stored} if addition.stored else self.stored
        both = [b for b in stored if b in self.loaded or b in addition.loaded]
        if not both:
            return True
        if any(self._loads(addition, buffer) != {stored[buffer][0]} for buffer in both):
            return False
        if not self.space.reduced:
            return True
        whole = self._as_kernel((*self.ops, *addition.ops))
        return all(last_pass_only(whole, buffer) for buffer in both)

    def _loads(self, addition: Addition, buffer: str) -> set[Expr]:
        return self.loaded.get(buffer, set()) | addition.loaded.get(buffer, set())

    def product_with(self, addition: Addition) -> Contraction | None:
        return contraction(self._as_kernel((*self.ops, *addition.ops)))


class Addition(_Body):
    """What would be appended to a draft, which stays as it is."""

    def __init__(self, draft: Draft, known: Mapping[str, str] | None = None):
        super().__init__()
        self.draft = draft
        self.names: dict[str, str] = dict(known or {})  # what each value of the bodies is called now
        self.divided: set[Axis] = set()

    def extend(self, body: Iterable[Op], moved: Moved) -> Refusal | None:
        """Append the body with its axes replaced, or say why it cannot be."""
        names = self.names
        for op in body:
            if isinstance(op, Store):
                if op.buffer in self.stored or op.buffer in self.draft.stored:
                    return _STORED_TWICE
                index = self._renamed(op.index, moved)
                self.stored[op.buffer] = (index, names[op.value])
                self.ops.append(Store(op.buffer, index, names[op.value], op.update))
                self._touch(index)
            elif op.name in names:
                continue
            elif isinstance(op, Apply):
                args = tuple([names[a] for a in op.args])
                names[op.name] = self._define(Apply, op.dtype, op.op, args)
            elif isinstance(op, Load):
                index = self._renamed(op.index, moved)
                made = self.stored.get(op.buffer) or self.draft.stored.get(op.buffer)
                if made is not None:
                    if made[0] is not index or op.mask is not None:
                        return _ELSEWHERE
                    names[op.name] = made[1]
                    continue
                self._note_load(op, index)
                mask = None if op.mask is None else names[op.mask]
                names[op.name] = self._define(Load, op.dtype, op.buffer, index, mask)
            elif isinstance(op, Const):
                names[op.name] = self._define(Const, op.dtype, op.value, key=(Const, op.dtype, exact(op.value)))
            elif isinstance(op, Index):
                names[op.name] = self._define(Index, op.dtype, self._renamed(op.expr, moved))
            elif isinstance(op, Check):
                limit = self._renamed(op.limit, moved)
                names[op.name] = self._define(Check, op.dtype, names[op.value], limit, op.wrap, op.fault)
            else:
                self.reductions += isinstance(op, Reduce)
                self.gives_positions |= isinstance(op, Reduce) and op.kind in POSITIONS
                names[op.name] = self._define(type(op), op.dtype, op.kind, names[op.value])
        return None

    def _define(self, kind: Callable[..., Op], *fields: Any, key: tuple | None = None) -> str:
        """The name of that value, which is written unless an equal one is there."""
        key = key or (kind, *fields)
        found = self.draft.seen.get(key) or self.seen.get(key)
        if found is None:
            found = f"v{len(self.draft.ops) + len(self.ops)}"
            self.ops.append(kind(found, *fields))
            self.seen[key] = found
        return found

    def _note_load(self, op: Load, index: Expr) -> None:
        self.loaded.setdefault(op.buffer, set()).add(index)
        if op.mask is None:
            self.unmasked.setdefault(op.buffer, index)
        self._touch(index)

    def _touch(self, index: Expr) -> None:
        if index not in self.indices:
            self.indices.add(index)
            self.divided |= divided_axes(index)

    def _renamed(self, e: Expr, moved: Moved) -> Expr:
        """The expression with the axes and values it has now."""
        values = {v: expr(Value(self.names[v.name], v.limit)) for v in _values(e)}
        return e.substitute({**moved, **values}) if moved or values else e


@remembered
def _values(e: Expr) -> tuple[Value, ...]:
    return tuple(e.values())


@remembered
def divided_axes(index: Expr) -> frozenset[Axis]:
    """Axes that stand under a division or remainder."""
    divisions = (atom for atom in index.atoms() if isinstance(atom, (FloorDiv, Mod)))
    return frozenset().union(*(atom.num.axes() for atom in divisions))


def _is_unit(index: Expr, axis: Axis) -> bool:
    """Whether neighbours along the axis are neighbours in memory."""
    step = index.coefficient(axis)
    return step is not None and step.is_int and step.int == 1
