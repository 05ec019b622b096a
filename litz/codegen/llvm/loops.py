"""Render a kernel as loops of a CPU: rows in parallel, vectors along one axis, passes over the reduced axes.

In: a `Kernel`. Out: one LLVM function `(pointers..., error, begin, end)` that runs the units of work
`begin <= u < end`, and a `Rendered` that says how many units there are.

A unit is a row (or a stretch of the vector axis when rows are few).
"""

from __future__ import annotations

from collections.abc import Collection

from litz.codegen.llvm.body import Scope
from litz.codegen.llvm.rendered import TRAILING, Rendered
from litz.codegen.llvm.rows import Rows
from litz.codegen.llvm.writer import Module, Writer
from litz.codegen.plan_cpu import plan_for_cpu
from litz.codegen.rows import RowPlan, volume, work_of
from litz.loop.expr import ONE, Expr
from litz.loop.ir import Buffer, Kernel
from litz.target import Target

_ROW_STRETCH = 4096  # elements of the vector axis in one unit, when the vector axis itself is split
_FEW_ROWS = 64
_FLAT_GRAIN = 64  # elements: whole cache lines of any type


def render(
    kernel: Kernel, buffers: dict[str, Buffer], target: Target, module: Module, name: str, sizes: tuple[str, ...] = (),
    far: Collection[str] = (),
) -> Rendered:  # fmt: skip
    """`far`: buffers that no cache holds."""
    return _Function(plan_for_cpu(kernel, target, far), buffers, module, name, sizes).run()


def render_flat(
    kernel: Kernel, buffers: dict[str, Buffer], target: Target, module: Module, name: str, sizes: tuple[str, ...] = (),
    far: Collection[str] = (),
) -> Rendered:  # fmt: skip
    """A kernel in its flat form: its units are elements, however many there are."""
    return _Function(plan_for_cpu(kernel, target, far), buffers, module, name, sizes).run_flat()


class _Function:
    def __init__(self, plan: RowPlan, buffers: dict[str, Buffer], module: Module, name: str, sizes: tuple[str, ...]):
        self.plan, self.kernel, self.name = plan, plan.kernel, name
        self.used = tuple(dict.fromkeys((*plan.kernel.reads, *plan.kernel.writes)))
        self.w = Writer(module)
        pointers = {b: f"%b{i}" for i, b in enumerate(self.used)}
        frame = Scope(self.w, buffers, pointers, plan.lanes, plan.vector, plan.varies, ahead=plan.ahead)
        frame.sizes = self.w.load_sizes(sizes)
        self.rows = Rows(plan, self.w, frame)

    def run(self) -> Rendered:
        plan, w = self.plan, self.w
        stretch, pieces, count = 0, ONE, volume(plan.rows)
        if plan.vector is not None and not plan.over_reduced and count.hint < _FEW_ROWS:
            likely = plan.vector.size.hint
            stretch = min(_ROW_STRETCH, -(-likely // (8 * plan.lanes)) * plan.lanes or plan.lanes)
            pieces = (plan.vector.size + (stretch - 1)) // stretch
        piece_count = self.rows.frame.size(pieces)
        with w.loop("%begin", "%end") as unit:
            row, start, stop = unit, "0", None
            if pieces is not ONE and plan.vector is not None:
                row = w.let(f"udiv i64 {unit}, {piece_count}")
                piece = w.let(f"urem i64 {unit}, {piece_count}")
                start = w.mul(piece, str(stretch))
                stop = w.minimum(w.add(start, str(stretch)), self.rows.extent[plan.vector])
            self.rows.bind(row)
            if plan.vector is None or plan.over_reduced:
                self.rows.row()
            else:
                self.rows.along_vector(start, stop)
        return self._finish(count * pieces)

    def run_flat(self) -> Rendered:
        self.rows.along_vector("%begin", "%end")
        return self._finish(volume(self.kernel.axes), _FLAT_GRAIN)

    def _finish(self, units: Expr, grain: int = 1) -> Rendered:
        self.w.emit("ret void")
        parameters = ", ".join([*(f"ptr %b{i}" for i in range(len(self.used))), *TRAILING])
        self.w.define(self.name, parameters)
        return Rendered(self.name, self.used, units, work_of(self.kernel), grain=grain)


__all__ = ["render", "render_flat"]
