"""Which values of a kernel need not be good to their last place, since whatever is made of them is rounded to 16 bits.

In: a `Kernel`. Out: such values by name, each with what makes it cheaper still.
"""

from __future__ import annotations

from typing import NamedTuple

from litz.loop.ir import Apply, Kernel, Reduce, Store, operands

_SHORT = ("bf16", "f16")


class Coarse(NamedTuple):
    difference: Apply | None = None  # that it is the exponential of
    least_one: bool = False  # it is divided by a number that is at least one


def coarse_values(kernel: Kernel) -> dict[str, Coarse]:
    """Those that end in stores of 16-bit floats alone; and exponentials of what lies below a maximum, where they are
    only added up: an error of theirs is small beside the one that is 1."""
    ops = {op.name: op for op in kernel.body if not isinstance(op, Store)}
    exact: set[str] = set()  # values on which something depends that is not rounded so
    summed: dict[str, bool] = {}  # whether all who use it are sums
    for op in reversed(kernel.body):
        if isinstance(op, Store):
            stays = ops[op.value].dtype not in _SHORT
        else:
            # What is rounded to 16 bits is done with, whoever uses it; what is compared or counted is not rounded.
            stays = op.dtype not in _SHORT and (op.name in exact or op.dtype != "f32")
        for name in operands(op):
            summed[name] = summed.get(name, True) and isinstance(op, Reduce) and op.kind == "sum"
            if stays:
                exact.add(name)
    maxima = {op.name: op.value for op in kernel.body if isinstance(op, Reduce) and op.kind == "max"}

    def difference(name: str) -> Apply | None:
        op = ops[name]
        return op if isinstance(op, Apply) and op.op == "sub" else None

    def is_share(name: str) -> bool:
        """Whether it is an exponential of what lies below the row's maximum."""
        op = ops[name]
        if not (isinstance(op, Apply) and op.op == "exp"):
            return False
        below = difference(op.args[0])
        return below is not None and maxima.get(below.args[1]) == below.args[0]

    def holds_one(name: str) -> bool:
        op = ops[name]
        return isinstance(op, Reduce) and op.kind == "sum" and is_share(op.value)

    return {
        op.name: Coarse(difference(op.args[0]) if op.op == "exp" else None, op.op == "div" and holds_one(op.args[1]))
        for op in kernel.body
        if isinstance(op, Apply)
        and op.dtype == "f32"
        and (op.name not in exact or (summed.get(op.name, False) and is_share(op.name)))
    }


__all__ = ["Coarse", "coarse_values"]
