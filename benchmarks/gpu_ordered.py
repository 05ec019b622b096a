"""Scatters, scans and functions on one GPU: Litz's kernels and eager's, as the device counts their time.

`python -m benchmarks.gpu_ordered` prints microseconds, and what a copy of the bytes that must be moved takes;
`--inductor` adds PyTorch's own compiler. Each is also compared with float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.gpu import _device_microseconds, _kernel_time
from benchmarks.table import figure, ratio, render

Case = tuple[Callable[..., Any], tuple[Any, ...], int, bool]  # the bytes it must move; whether its backward is meant


def _cases() -> dict[str, Case]:
    import torch
    from torch.nn import functional as F

    def given(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda").to(dtype)

    def below(limit: int, *shape: int) -> Any:
        return torch.randint(0, limit, shape, device="cuda")

    single = torch.float32
    tokens, few = below(50257, 16, 1024), below(2, 32, 512)
    skewed = (50257 * torch.rand(16, 1024, device="cuda") ** 8).long()  # as words are: some are everywhere
    table, small = given(50257, 768), given(2, 768)
    rows, places = given(100_000, 256, dtype=single), below(100_000, 400_000)
    messages = given(400_000, 256, dtype=single)
    long, wide, tall = (given(*shape, dtype=single) for shape in ((256, 65536), (8192, 4096), (16384, 64)))
    flat = given(1 << 25, dtype=single)
    taken = tokens.numel() * 768 * 2
    added = 2 * messages.nbytes + 2 * rows.nbytes
    return {
        "embedding, backward": (F.embedding, (tokens, table), table.nbytes + taken, True),
        "embedding of words, backward": (F.embedding, (skewed, table), table.nbytes + taken, True),
        "embedding of float32, backward": (F.embedding, (tokens, table.float()), 2 * (table.nbytes + taken), True),
        "embedding of two rows, backward": (F.embedding, (few, small), few.numel() * 768 * 2, True),
        "index_add": (lambda x, i, s: x.index_add(0, i, s), (rows, places, messages), added, False),
        "index_add of bfloat16": (
            lambda x, i, s: x.index_add(0, i, s), (rows.bfloat16(), places, messages.bfloat16()), added // 2, False,
        ),
        "scatter_add": (
            lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 256), s), (rows, places, messages), added, False,
        ),
        "scatter_reduce amax": (
            lambda x, i, s: x.scatter_reduce(0, i[:, None].expand(-1, 256), s, "amax"), (rows, places, messages),
            added, False,
        ),
        "indexing, backward": (lambda x, i: x[i], (rows, places), added, True),
        "histogram": (
            lambda i: torch.zeros(1000, device="cuda", dtype=torch.int64).index_add(0, i, torch.ones_like(i)),
            (below(1000, 1 << 22),), 8 << 22, False,
        ),
        "cumsum of long rows": (lambda x: x.cumsum(1), (long,), 2 * long.nbytes, False),
        "cumsum of rows": (lambda x: x.cumsum(1), (wide,), 2 * wide.nbytes, False),
        "cumsum of columns": (lambda x: x.cumsum(0), (wide,), 2 * wide.nbytes, False),
        "cumsum of few columns": (lambda x: x.cumsum(0), (tall,), 2 * tall.nbytes, False),
        "cummax of rows": (lambda x: x.cummax(1).values, (wide,), 2 * wide.nbytes, False),
        "logcumsumexp of rows": (lambda x: x.logcumsumexp(1), (wide,), 2 * wide.nbytes, False),
        "exp, cumsum, log": (lambda x: x.exp().cumsum(1).log(), (wide,), 2 * wide.nbytes, False),
        "sin and cos": (lambda x: x.sin() * x.cos(), (flat,), 2 * flat.nbytes, False),
        "sin of large angles": (torch.sin, (flat * 1e20,), 2 * flat.nbytes, False),
        "pow": (lambda x: x.abs() ** 1.7, (flat,), 2 * flat.nbytes, False),
        "log1p, expm1, erfc, atan2": (
            lambda x: torch.atan2(x.abs().log1p(), x.expm1()) + x.erfc(), (flat,), 2 * flat.nbytes, False,
        ),
        "softplus, mish of bfloat16": (lambda x: F.mish(F.softplus(x)), (flat.bfloat16(),), flat.nbytes, False),
    }  # fmt: skip


def _error(run: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...], backward: bool) -> float:
    """The largest, of what its largest result is, against float64."""
    import torch

    def results(f: Callable[..., Any], given: list[Any]) -> Any:
        if not backward:
            with torch.no_grad():
                return f(*given)
        learns = [a.clone().requires_grad_() if a.is_floating_point() else a for a in given]
        out = f(*learns)
        torch.manual_seed(0)
        tangent = torch.randn(out.shape, device="cuda").bfloat16()  # the same for all types
        return torch.autograd.grad(out, [a for a in learns if a.requires_grad], tangent.to(out.dtype))[0]

    exact = results(function, [a.double() if a.is_floating_point() else a for a in args]).double()
    found = results(run, list(args)).double()
    return float((found - exact).abs().nan_to_num(0.0).max() / exact.abs().nan_to_num(0.0, 0.0, 0.0).max())


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    options = parser.parse_args()
    contenders = ["eager", "litz", *(["inductor"] if options.inductor else [])]
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = _device_microseconds(lambda: target.copy_(source)) / (2 * source.nbytes)
    rows = []
    for name, (function, args, moved, backward) in _cases().items():
        if options.only not in name:
            continue
        found: dict[str, float] = {}
        errors: dict[str, float] = {}
        for contender in contenders:
            torch._dynamo.reset()
            run = function if contender == "eager" else torch.compile(function, backend=contender)
            try:
                errors[contender] = _error(run, function, args, backward)
                found[contender] = _kernel_time(run, args, backward)
            except Exception as error:
                print(f"{name}, {contender}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        torch.cuda.empty_cache()
        times = [figure(found.get(contender), ".1f") for contender in contenders]
        speed = ratio(found.get("eager"), found.get("litz"))
        wrong = [figure(errors.get(contender), ".1e") for contender in ("eager", "litz")]
        rows.append([name, figure(copy * moved, ".1f"), *times, figure(speed), *wrong])
        print(" ".join(rows[-1]), flush=True)
    print(render(["microseconds", "copy", *contenders, "of eager", "error: eager", "litz"], rows))


if __name__ == "__main__":
    main()
