"""Gradients of norms on one GPU, by size, against a copy of the bytes they must move.

`LITZ_CACHE=0 python -m benchmarks.gpu_norms` prints, for each, the microseconds of its kernels alone: what a copy takes
(a weight's gradient included, which is next to nothing), Litz, and Litz with the choices of its plans changed one at a
time, to see whether they are the right ones here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

from benchmarks.gpu_kernels import device_microseconds
from benchmarks.process import describe, litz_backend
from benchmarks.table import render
from litz import target
from litz.codegen import plan_gpu

Function = Callable[..., torch.Tensor]
NORMS: dict[str, Function] = {
    "rms norm": lambda x, w: F.rms_norm(x, x.shape[-1:], w),
    "layer norm": lambda x, w: F.layer_norm(x, x.shape[-1:], w, w),
    "layer norm, gelu, dropout": lambda x, w: F.dropout(F.gelu(F.layer_norm(x, x.shape[-1:], w, w)), 0.1),
}
SIZES = ((16384, 768), (8192, 1024), (8192, 4096), (4096, 8192), (4096, 32000))
# What is changed, of which module or class, and to what.
CHANGES: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "as planned": (),
    "two kernels": ((target.GpuTarget, "row_blocks", lambda *_: None),),
    "not ahead": ((plan_gpu.GpuPlan, "loads_ahead", property(lambda _: False)),),
    "shared totals": ((plan_gpu, "_TOTAL_REGISTERS", 0),),
    "fewer abreast": (
        (target, "_ABREAST", 16 << 10), (plan_gpu, "_TURN_VALUES", 8192), (plan_gpu, "_TURN_THREADS", 512),
    ),
    "more abreast": (
        (target, "_ABREAST", 32 << 10), (plan_gpu, "_TURN_VALUES", 16384), (plan_gpu, "_TURN_THREADS", 1024),
    ),
}  # fmt: skip


@contextmanager
def changed(what: str) -> Iterator[None]:
    patches = [mock.patch.object(*change) for change in CHANGES[what]]
    for patch in patches:
        patch.start()
    yield
    for patch in patches:
        patch.stop()


def backward_microseconds(function: Function, rows: int, columns: int) -> float:
    torch._dynamo.reset()
    shapes = (rows, columns), (columns,)
    x, w = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for shape in shapes)
    out = torch.compile(function, backend=litz_backend(), options={"never_slower": False})(x, w)
    tangent = torch.randn_like(out)
    return device_microseconds(lambda: torch.autograd.grad(out, [x, w], tangent, retain_graph=True))


def main() -> None:
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    place = torch.empty_like(source)
    copy = device_microseconds(lambda: place.copy_(source)) / (2 * source.nbytes)
    table = []
    for name, function in NORMS.items():
        for rows, columns in SIZES:
            row = [f"{name}, {rows} x {columns}", f"{copy * 3 * 2 * rows * columns:.1f}"]
            for what in CHANGES:
                try:
                    with changed(what):
                        row.append(f"{backward_microseconds(function, rows, columns):.1f}")
                except Exception as error:
                    print(f"{row[0]}, {what}: {describe(error)[:300]}", file=sys.stderr)
                    row.append("-")
            table.append(row)
    print(render(["backward, µs", "copy", *CHANGES], table))


if __name__ == "__main__":
    main()
