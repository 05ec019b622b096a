"""Kernels that go through memory element by element: the same code whatever the number of elements.

In: a `Kernel`. Out: its flat form, over one axis of a length that means nothing, or None. Kernels of one flat form
differ in nothing but how many elements they have, and are built once: the step of an optimizer has one for each shape
of a parameter.
"""

from __future__ import annotations

from dataclasses import replace

from litz.loop.expr import ONE, ZERO, Axis, Expr, constant
from litz.loop.ir import Apply, Const, Kernel, Load, Store

_ALONG = Axis("along", constant(1 << 20))


def flat_form(kernel: Kernel) -> Kernel | None:
    if len(kernel.axes) != 1 or kernel.reduced or kernel.ordered:
        return None
    (axis,) = kernel.axes
    body = []
    for op in kernel.body:
        if isinstance(op, (Load, Store)):
            step = op.index.coefficient(axis)
            if step is None or step not in ((ONE,) if isinstance(op, Store) else (ZERO, ONE)):
                return None
            if not (op.index - step * axis).is_int:
                return None
            op = replace(op, index=op.index.substitute({axis: _ALONG}))
        elif not isinstance(op, (Apply, Const)):
            return None
        body.append(op)
    return replace(kernel, axes=(_ALONG,), body=tuple(body))


def elements(kernel: Kernel) -> Expr:
    """How many there are in a kernel that has a flat form."""
    (axis,) = kernel.axes
    return axis.size
