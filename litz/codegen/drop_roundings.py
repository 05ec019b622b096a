"""Leave out roundings to bfloat16 that no one sees.

In: a `Kernel`. Out: one that rounds less often.

Between operators that were fused, numbers are rounded to 16 bits and made float32 again, since each operator of eager's
leaves its result in memory. Where all that comes of them is stored in 16 bits, what is computed without is nearer to
what was meant, and takes two instructions a number less. A rounding stays where it is seen:

- where a comparison depends on it, or a position, however far away; or a float32 that is stored, if it is not rounded
  once more before;
- where something is added to it, which may leave nothing else, or another uses the number as it was;
- before a function that has steps or edges, on which rounded numbers tend to lie: the arc cosine of a number that is 1
  when rounded, and a little more when not. A sum of many is on no edge;
- to float16, where large numbers become infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.loop.ir import Apply, Definition, Kernel, Op, Reduce, Scan, Store, operands

_FLOATS = ("f32", "bf16", "f16")
_FACTORS = frozenset(("mul", "div", "neg", "sigmoid", "tanh", "erf", "normal_cdf"))  # what may be done with it
_EDGED = frozenset(
    (
        "floor", "ceil", "trunc", "round", "sign", "floor_div", "trunc_div", "remainder", "fmod", "nextafter", "pow",
        "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "lgamma", "asin", "acos", "acosh", "atanh",
    )
)  # fmt: skip


def drop_roundings(kernel: Kernel) -> Kernel:
    ops = {op.name: op for op in kernel.body if not isinstance(op, Store)}
    users: dict[str, list[Op]] = {}
    for op in kernel.body:
        for name in operands(op):
            users.setdefault(name, []).append(op)
    seen: set[str] = set()  # values that are compared or counted
    stored: set[str] = set()  # that become a float32 in memory
    edged: set[str] = set()  # that come to an edge
    known: dict[str, str] = {}  # a number that was rounded, as it was
    for op in reversed(kernel.body):
        dtype = ops[op.value].dtype if isinstance(op, Store) else op.dtype
        if dtype not in _FLOATS or (not isinstance(op, Store) and op.name in seen):
            seen.update(operands(op))
        if dtype == "f32" and (isinstance(op, Store) or op.name in stored):
            stored.update(operands(op))
        if isinstance(op, Apply) and dtype == "f32" and (op.op in _EDGED or op.name in edged):
            edged.update(op.args)
        again = _made_of_rounded(op, ops, users)
        if again and not any(name in seen | stored | edged for name in again):
            known |= dict.fromkeys(again, operands(op)[0])
    if not known:
        return kernel
    body = [_renamed(op, known) for op in kernel.body if isinstance(op, Store) or op.name not in known]
    used = {name for op in body for name in operands(op)}
    roundings = {user.args[0] for name in known if isinstance(user := ops[name], Apply)}
    return replace(
        kernel, body=tuple(op for op in body if isinstance(op, Store) or op.name in used or op.name not in roundings)
    )


def _made_of_rounded(op: Op, ops: Mapping[str, Definition], users: Mapping[str, Sequence[Op]]) -> list[str]:
    """Where a number is rounded to a bfloat16 and nothing is left of what it was: the numbers that are made of it
    again, if they and stores are all that it is for, and they are multiplied, or summed over a row."""
    if not (isinstance(op, Apply) and op.op == "cast" and op.dtype == "bf16" and ops[op.args[0]].dtype == "f32"):
        return []
    again = [user for user in users.get(op.name, ()) if not isinstance(user, Store)]
    made = [user.name for user in again if isinstance(user, Apply) and user.op == "cast" and user.dtype == "f32"]
    if len(users[op.args[0]]) > 1 or len(made) < len(again):
        return []
    return made if all(_is_factor(user) for name in made for user in users.get(name, ())) else []


def _is_factor(op: Op) -> bool:
    """Whether it does with a number what leaves its error as large, beside it, as it was."""
    if isinstance(op, Reduce):
        return op.kind == "sum"
    return isinstance(op, Apply) and op.op in _FACTORS


def _renamed(op: Op, known: Mapping[str, str]) -> Op:
    def name_of(value: str) -> str:
        while value in known:
            value = known[value]
        return value

    if isinstance(op, Apply):
        return replace(op, args=tuple(map(name_of, op.args)))
    return replace(op, value=name_of(op.value)) if isinstance(op, (Reduce, Scan)) else op


__all__ = ["drop_roundings"]
