"""Products as programs of one kernel each: what their plans and generated code are looked at with."""

from __future__ import annotations

from litz.loop.ir import Program
from litz.loop.parse import parse_program


def product(
    rows: int | str, columns: int, depth: int, dtype: str = "bf16", turned: str = "", batch: int = 1, out: str = ""
) -> Program:
    """`relu(a @ b)`, each of a batch. `turned`: "a", "b" or both, for operands that lie there transposed."""
    out = out or dtype
    sizes = f"sizes {rows} ~ 40\n" if isinstance(rows, str) else ""
    left = f"i0 + {rows}*r0" if "a" in turned else f"{depth}*i0 + r0"
    right = f"{depth}*i1 + r0" if "b" in turned else f"i1 + {columns}*r0"
    text = f"""{sizes}program(a: {dtype}[{_times(batch * depth, rows)}], b: {dtype}[{batch * depth * columns}]) -> (y: {out}[{_times(batch * columns, rows)}])
buffer y: {out}[{_times(batch * columns, rows)}] output
kernel product
  for i2 < {batch} parallel, i0 < {rows} parallel, i1 < {columns} parallel, r0 < {depth} reduce:
    v0: {dtype} = load a[{_times(depth, rows)}*i2 + {left}]
    v1: {dtype} = load b[{depth * columns}*i2 + {right}]
    v2: f32 = cast v0
    v3: f32 = cast v1
    v4: f32 = mul v2, v3
    v5: f32 = reduce sum v4
    v6: f32 = const 0.0
    v7: f32 = max v5, v6
    v8: {out} = cast v7
    store y[{_times(columns, rows)}*i2 + {columns}*i0 + i1] = v8
"""  # noqa: E501
    if dtype == "f32":
        casts = ("    v2: f32 = cast v0\n", "    v3: f32 = cast v1\n")
        text = text.replace(casts[0], "").replace(casts[1], "").replace("mul v2, v3", "mul v0, v1")
    return parse_program(text)


def _times(number: int, size: int | str) -> str:
    return str(number * size) if isinstance(size, int) else f"{number}*{size}"


__all__ = ["product"]
