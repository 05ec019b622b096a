"""Which values of a kernel need not be good to their last place, since whatever is made of them is rounded to 16 bits.

In: a `Kernel`. Out: such values by name, each with the bits that are seen of it and with what makes it cheaper still.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from litz.loop.ir import Apply, Const, Kernel, Op, Reduce, Store, operands

BITS = {"bf16": 8, "f16": 11}  # of a significand
_ALL = 24  # of a float32


class Multiple(NamedTuple):
    """A function's value times a constant."""

    function: Apply
    factor: float


class Coarse(NamedTuple):
    bits: int  # those seen of what is made of it
    difference: Apply | None = None  # that it is the exponential of, where a common factor of its row makes no odds
    least_one: bool = False  # it is divided by a number that is at least one
    multiple: Multiple | None = None  # that it is


def coarse_values(kernel: Kernel) -> dict[str, Coarse]:
    """Those that end in stores of 16-bit floats alone; and exponentials of what lies below a maximum, where they are
    only added up: an error of theirs is small beside the one that is 1."""
    ops = {op.name: op for op in kernel.body if not isinstance(op, Store)}
    seen: dict[str, int] = {}  # bits
    summed: dict[str, bool] = {}  # whether all who use it are sums
    users: dict[str, list[Op]] = {}
    for op in reversed(kernel.body):
        dtype = ops[op.value].dtype if isinstance(op, Store) else op.dtype
        # What is rounded to 16 bits is done with, whoever uses it; what is compared or counted is not rounded.
        bits = BITS.get(dtype, _ALL)
        if dtype == "f32" and not isinstance(op, Store):
            bits = seen.get(op.name, 0)
        for name in operands(op):
            users.setdefault(name, []).append(op)
            summed[name] = summed.get(name, True) and isinstance(op, Reduce) and op.kind == "sum"
            seen[name] = max(seen.get(name, 0), bits)
    maxima = {op.name: op.value for op in kernel.body if isinstance(op, Reduce) and op.kind == "max"}

    def difference(name: str) -> Apply | None:
        op = ops[name]
        return op if isinstance(op, Apply) and op.op == "sub" else None

    def multiple(op: Apply) -> Multiple | None:
        if op.op != "mul":
            return None
        function, factor = (ops[name] for name in op.args)
        if not (isinstance(function, Apply) and isinstance(factor, Const) and 0 < abs(factor.value) < math.inf):
            return None
        return Multiple(function, float(factor.value))

    def is_share(name: str) -> bool:
        """Whether it is an exponential of what lies below the row's maximum."""
        op = ops[name]
        return isinstance(op, Apply) and op.op == "exp" and is_below(ops[op.args[0]])

    def is_below(op: Op) -> bool:
        """Whether it is how far a number is below its row's maximum, or itself: of the maximum that is 0, and its
        exponential 1, and nothing near it; what is asked for may be the logarithm of a sum that is hardly more."""
        return isinstance(op, Apply) and op.op == "sub" and maxima.get(op.args[1], op.args[1]) == op.args[0]

    def is_divided(name: str) -> bool:
        """Whether it is added up, divided by the sum, and nothing else: a factor that all of a row have cancels."""
        sums = {op.name for op in users.get(name, ()) if isinstance(op, Reduce) and op.kind == "sum"}

        def divides(op: Op) -> bool:
            return isinstance(op, Apply) and op.op == "div" and op.args[0] == name and op.args[1] in sums

        readers = [op for known in (name, *sums) for op in users.get(known, ())]
        return all(divides(op) or (not isinstance(op, Store) and op.name in sums) for op in readers)

    def holds_one(name: str) -> bool:
        op = ops[name]
        return isinstance(op, Reduce) and op.kind == "sum" and is_share(op.value)

    return {
        op.name: Coarse(
            min(seen.get(op.name, 0), max(BITS.values())),
            difference(op.args[0]) if op.op == "exp" and is_divided(op.name) else None,
            op.op == "div" and holds_one(op.args[1]),
            multiple(op),
        )
        for op in kernel.body
        if isinstance(op, Apply)
        and op.dtype == "f32"
        and not is_below(op)
        and (seen.get(op.name, 0) < _ALL or (summed.get(op.name, False) and is_share(op.name)))
    }


__all__ = ["BITS", "Coarse", "coarse_values"]
