"""Which values of a kernel need not be good to their last place, since whatever is made of them is rounded to 16 bits.

In: a `Kernel`. Out: the names of such values.
"""

from __future__ import annotations

from litz.loop.ir import Apply, Kernel, Reduce, Store, operands

_SHORT = ("bf16", "f16")


def coarse_values(kernel: Kernel) -> frozenset[str]:
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

    def below_maximum(name: str) -> bool:
        op = ops[name]
        return isinstance(op, Apply) and op.op == "sub" and maxima.get(op.args[1]) == op.args[0]

    return frozenset(
        name
        for name, op in ops.items()
        if isinstance(op, Apply)
        and op.dtype == "f32"
        and (name not in exact or (op.op == "exp" and summed.get(name, False) and below_maximum(op.args[0])))
    )


__all__ = ["coarse_values"]
