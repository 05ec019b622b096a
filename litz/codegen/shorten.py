"""Write formulas in fewer operators, where what is made of them is rounded to 16 bits.

In: a `Kernel`. Out: one that rounds elsewhere, by as little.

- A power times a constant has the constant in its exponent: one multiplication with an addition in the place of three
  multiplications, as in the derivative of a gelu.
- What was summed over a row is subtracted and multiplied at once, as in `(x - mean) * rstd`. The sum was rounded, and
  what is lost here is no more than that. Of what was not (a maximum), a difference may be nothing at all, and stays so.
- Of a gelu or a silu of which some is dropped, the share is multiplied: it is an inverse, and a factor of that is free.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from litz.codegen.coarse import coarse_values
from litz.codegen.depend import depends
from litz.loop.ir import Apply, Const, Definition, Kernel, Op, Reduce, Store, operands

Definitions = tuple[Definition, ...]
_SHARES = ("normal_cdf", "sigmoid")


def shorten(kernel: Kernel) -> Kernel:
    formulas = _Formulas(kernel)
    body: list[Op] = []
    for op in kernel.body:
        shorter: Definitions = ()
        if isinstance(op, Apply) and op.op == "mul" and op.name in formulas.coarse:
            shorter = formulas.scaled_power(op) or formulas.shifted(op) or formulas.dropped(op)
        body += shorter or (op,)
    used: set[str] = set()
    kept: list[Op] = []
    for op in reversed(body):
        if isinstance(op, Store) or op.name in used or op.name not in formulas.replaced:
            kept.append(op)
            used.update(operands(op))
    return replace(kernel, body=tuple(reversed(kept)))


class _Formulas:
    """What the operators of a kernel compute together."""

    def __init__(self, kernel: Kernel):
        self.ops = {op.name: op for op in kernel.body if not isinstance(op, Store)}
        self.uses = Counter(name for op in kernel.body for name in operands(op))
        self.coarse = coarse_values(kernel)
        self.varies = depends(kernel.body, kernel.reduced)
        self.replaced: set[str] = set()

    def scaled_power(self, op: Apply) -> Definitions:
        """exp(x c) k, as a power of two."""
        for power, constant in (op.args, op.args[::-1]):
            factor, exponent = self._constant(constant), self._alone(power, "exp")
            if factor is None or exponent is None or not 0 < factor < math.inf:
                continue
            x, scale = self._unscaled(exponent.args[0])
            self.replaced |= {power, *exponent.args}
            scaled, shift, whole = (f"{op.name}_{part}" for part in ("scale", "shift", "exponent"))
            return (
                Const(scaled, "f32", scale * math.log2(math.e)), Const(shift, "f32", math.log2(factor)),
                Apply(whole, "f32", "fma", (x, scaled, shift)), replace(op, op="exp2", args=(whole,)),
            )  # fmt: skip
        return ()

    def shifted(self, op: Apply) -> Definitions:
        """(x - a) b, where a is of a sum, and both vary along fewer axes than x."""
        for difference, factor in (op.args, op.args[::-1]):
            found = self._alone(difference, "sub")
            if found is None:
                continue
            x, less = found.args
            if self._is_of_sum(less) and self.varies[less] | self.varies[factor] < self.varies[x]:
                self.replaced.add(difference)
                product, shift = f"{op.name}_product", f"{op.name}_shift"
                return (
                    Apply(product, "f32", "mul", (less, factor)), Apply(shift, "f32", "neg", (product,)),
                    replace(op, op="fma", args=(x, factor, shift)),
                )  # fmt: skip
        return ()

    def dropped(self, op: Apply) -> Definitions:
        """x f(x), times a constant or nothing."""
        for product, chosen in (op.args, op.args[::-1]):
            found, choice = self._alone(product, "mul"), self._alone(chosen, "where")
            if found is None or choice is None or self._constant(choice.args[2]) != 0:
                continue
            for x, share in (found.args, found.args[::-1]):
                if self._constant(choice.args[1]) and any(self._alone(share, name) for name in _SHARES):
                    self.replaced |= {product, chosen}
                    multiple, rest = f"{op.name}_multiple", f"{op.name}_rest"
                    condition, factor, nothing = choice.args
                    return (
                        Apply(multiple, "f32", "mul", (share, factor)),
                        Apply(rest, "f32", "where", (condition, multiple, nothing)),
                        replace(op, args=(x, rest)),
                    )
        return ()

    def _is_of_sum(self, name: str) -> bool:
        op = self.ops[name]
        if isinstance(op, Apply) and op.op in ("mul", "div"):
            return any(map(self._is_of_sum, op.args))
        return isinstance(op, Reduce) and op.kind == "sum"

    def _unscaled(self, name: str) -> tuple[str, float]:
        """The value that this is a constant multiple of."""
        op = self.ops[name]
        for value, factor in (op.args, op.args[::-1]) if isinstance(op, Apply) and op.op == "mul" else ():
            if (found := self._constant(factor)) is not None:
                return value, found
        return name, 1.0

    def _alone(self, name: str, operator: str) -> Apply | None:
        """The operator that this is the result of, if that is what it is and no one else uses it."""
        op = self.ops[name]
        return op if isinstance(op, Apply) and op.op == operator and self.uses[name] == 1 else None

    def _constant(self, name: str) -> float | None:
        op = self.ops[name]
        return float(op.value) if isinstance(op, Const) else None


__all__ = ["shorten"]
