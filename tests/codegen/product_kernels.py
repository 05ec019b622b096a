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


def of_bytes(
    rows: int | str, columns: int, depth: int, turned: str = "", left: str = "u8", right: str = "i8", beyond: int = 0
) -> Program:
    """`a @ b` in whole numbers. `beyond`: so many rows that are read before the first of `a`, and are 77 throughout."""
    sizes = f"sizes {rows} ~ 40\n" if isinstance(rows, str) else ""
    first = f" - {depth * beyond}" if beyond else ""
    at_left = f"i0 + {rows}*r0" if "a" in turned else f"{depth}*i0 + r0{first}"
    at_right = f"{depth}*i1 + r0" if "b" in turned else f"i1 + {columns}*r0"
    held = _times(depth, rows) if isinstance(rows, str) else str(depth * (rows - beyond))
    read = f"    v0: {left} = load a[{at_left}]\n"
    if beyond:
        read = f"""    p0: i64 = index i0
    p1: i64 = const {beyond}
    p2: b1 = ge p0, p1
    p3: {left} = load a[{at_left}] if p2
    p4: {left} = const 77
    v0: {left} = where p2, p3, p4
"""
    return parse_program(f"""{sizes}program(a: {left}[{held}], b: {right}[{depth * columns}]) -> (y: i32[{_times(columns, rows)}])
buffer y: i32[{_times(columns, rows)}] output
kernel product
  for i0 < {rows} parallel, i1 < {columns} parallel, r0 < {depth} reduce:
{read}    v1: {right} = load b[{at_right}]
    v2: i32 = cast v0
    v3: i32 = cast v1
    v4: i32 = mul v2, v3
    v5: i32 = reduce sum v4
    v6: i32 = const 3
    v7: i32 = add v5, v6
    store y[{columns}*i0 + i1] = v7
""")  # noqa: E501


def _times(number: int, size: int | str) -> str:
    return str(number * size) if isinstance(size, int) else f"{number}*{size}"


__all__ = ["of_bytes", "product"]
