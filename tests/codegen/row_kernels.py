"""Programs of one kernel each, as text: what plans and generated code are looked at with."""

from __future__ import annotations

from litz.loop.ir import Program
from litz.loop.parse import parse_program


def layer_norm(rows: int, columns: int, dtype: str = "bf16") -> Program:
    n = rows * columns
    return parse_program(f"""program(x: {dtype}[{n}], w: f32[{columns}], b: f32[{columns}]) -> (y: {dtype}[{n}])
buffer y: {dtype}[{n}] output
kernel layer_norm
  for i0 < {rows} parallel, r0 < {columns} reduce:
    v0: {dtype} = load x[{columns}*i0 + r0]
    v1: f32 = cast v0
    v2: f32 = reduce sum v1
    v3: f32 = const {columns}.0
    v4: f32 = div v2, v3
    v5: f32 = sub v1, v4
    v6: f32 = mul v5, v5
    v7: f32 = reduce sum v6
    v8: f32 = div v7, v3
    v9: f32 = const 1e-05
    v10: f32 = add v8, v9
    v11: f32 = rsqrt v10
    v12: f32 = mul v5, v11
    v13: f32 = load w[r0]
    v14: f32 = mul v12, v13
    v15: f32 = load b[r0]
    v16: f32 = add v14, v15
    v17: {dtype} = cast v16
    store y[{columns}*i0 + r0] = v17
""")


def softmax(rows: int | str, columns: int | str) -> Program:
    """Either may be a size that is known only at run time."""
    sizes = [f"{name} ~ 64" for name in (rows, columns) if isinstance(name, str)]
    product = f"{columns}*{rows}"
    return parse_program(f"""{f"sizes {', '.join(sizes)}" if sizes else ""}
program(x: f32[{product}]) -> (y: f32[{product}])
buffer y: f32[{product}] output
kernel softmax
  for i0 < {rows} parallel, r0 < {columns} reduce:
    v0: f32 = load x[{columns}*i0 + r0]
    v1: f32 = reduce max v0
    v2: f32 = sub v0, v1
    v3: f32 = exp v2
    v4: f32 = reduce sum v3
    v5: f32 = div v3, v4
    store y[{columns}*i0 + r0] = v5
""")


def reduction(kind: str, rows: int, columns: int, along: str = "rows", dtype: str = "f32") -> Program:
    """Over rows that lie in memory one after the other, or over the columns of such."""
    result = "i64" if kind.startswith("arg") else dtype
    index = f"{columns}*i0 + r0" if along == "rows" else f"{rows}*r0 + i0"
    return parse_program(f"""program(x: {dtype}[{rows * columns}]) -> (y: {result}[{rows}])
buffer y: {result}[{rows}] output
kernel {kind}_of_{along}
  for i0 < {rows} parallel, r0 < {columns} reduce:
    v0: {dtype} = load x[{index}]
    v1: {result} = reduce {kind} v0
    store y[i0] = v1
""")


def pointwise(size: int | str, dtype: str = "f32") -> Program:
    return parse_program(f"""{"" if isinstance(size, int) else f"sizes {size} ~ 300000"}
program(x: {dtype}[{size}], z: {dtype}[{size}]) -> (y: {dtype}[{size}])
buffer y: {dtype}[{size}] output
kernel add
  for i0 < {size} parallel:
    v0: {dtype} = load x[i0]
    v1: {dtype} = load z[i0]
    v2: f32 = cast v0
    v3: f32 = cast v1
    v4: f32 = add v2, v3
    v5: {dtype} = cast v4
    store y[i0] = v5
""")


def scan(kind: str, rows: int | str, columns: int | str, along: str = "rows", dtype: str = "f32") -> Program:
    """Over rows that lie in memory one after the other, or over the columns of such."""
    sizes = [f"{name} ~ 64" for name in (rows, columns) if isinstance(name, str)]
    index = f"{columns}*i0 + r0" if along == "rows" else f"{rows}*r0 + i0"
    n = f"{rows}*{columns}" if sizes else int(rows) * int(columns)
    return parse_program(f"""{f"sizes {', '.join(sizes)}" if sizes else ""}
program(x: {dtype}[{n}]) -> (y: {dtype}[{n}])
buffer y: {dtype}[{n}] output
kernel running_{kind}
  for i0 < {rows} parallel, r0 < {columns} reduce:
    v0: {dtype} = load x[{index}]
    v1: {dtype} = scan {kind} v0
    store y[{index}] = v1
""")


def running_sum(rows: int, columns: int) -> Program:
    return scan("sum", rows, columns, "columns")


def scatter(kind: str, rows: int, places: int, columns: int, dtype: str = "f32") -> Program:
    """Rows of `x`, each combined with the one of the caller's `y` that its index means."""
    x, y = f"{dtype}[{places * columns}]", f"{dtype}[{rows * columns}]"
    return parse_program(f"""program(x: {x}, i: i64[{places}], y: {y}) -> (y: {y})
kernel scatter_{kind}
  for i0 < {columns} parallel, r0 < {places} reduce:
    v0: i64 = load i[r0]
    v1: i64 = check v0 < {rows}
    v2: {dtype} = load x[{columns}*r0 + i0]
    update {kind} y[{columns}*v1 + i0] = v2
""")


def histogram(size: int, bins: int) -> Program:
    """What is at `x` counts as often as it is there, in the caller's memory."""
    return parse_program(f"""program(x: i64[{size}], y: i64[{bins}]) -> (y: i64[{bins}])
kernel histogram
  for r0 < {size} reduce:
    v0: i64 = load x[r0]
    v1: i64 = check 0 <= v0 < {bins}
    v2: i64 = const 1
    update sum y[v1] = v2
""")


__all__ = [
    "histogram", "layer_norm", "pointwise", "reduction", "running_sum", "scan", "scatter", "softmax",
]  # fmt: skip
