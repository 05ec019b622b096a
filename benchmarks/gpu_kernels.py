"""Single kernels on one GPU against the copy bandwidth of the same run.

In: who takes part. Out: for each function the microseconds of its kernels alone, as the device counts them, and what a
copy of as many bytes as it must move takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from benchmarks.process import describe, litz_backend


class Timed(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    moved: int  # bytes that it must read and write
    backward: bool = False  # whether its backward is what is meant


# What the bar speaks of; the others are for orientation.
JUDGED = (
    "layer norm, gelu, dropout", "rms norm", "softmax", "cross entropy", "layer norm, gelu, dropout, backward",
    "rms norm, backward", "softmax, backward", "cross entropy, backward",
)  # fmt: skip


def kernels() -> dict[str, Timed]:
    def given(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, w, wide = given(8192, 4096), given(4096), given(32000)
    rows, labels = given(4096, 32000), torch.randint(0, 32000, (4096,), device="cuda")
    tall = given(16384, 3072)
    image = given(64, 64, 112, 112).to(memory_format=torch.channels_last)
    channels = given(64)
    ln = lambda x, w: F.dropout(F.gelu(F.layer_norm(x, (4096,), w, w)), 0.1)  # noqa: E731
    rms = lambda x, w: F.rms_norm(x, (x.shape[-1],), w)  # noqa: E731
    softmax = lambda x: torch.softmax(x, -1)  # noqa: E731
    loss = lambda x, y: F.cross_entropy(x.float(), y)  # noqa: E731
    batch = lambda x, w: F.relu(F.batch_norm(x, None, None, w, w, training=True))  # noqa: E731
    return {
        "layer norm, gelu, dropout": Timed(ln, (x, w), 2 * x.nbytes),
        "rms norm": Timed(rms, (rows, wide), 2 * rows.nbytes),
        "softmax": Timed(softmax, (rows,), 2 * rows.nbytes),
        "cross entropy": Timed(loss, (rows, labels), rows.nbytes),
        "layer norm, gelu, dropout, backward": Timed(ln, (x, w), 3 * x.nbytes, True),
        "rms norm, backward": Timed(rms, (rows, wide), 3 * rows.nbytes, True),
        "softmax, backward": Timed(softmax, (rows,), 3 * rows.nbytes, True),
        "cross entropy, backward": Timed(loss, (rows, labels), 2 * rows.nbytes, True),
        "rms norm of 4096": Timed(rms, (x, w), 2 * x.nbytes),
        "rms norm of 4096, backward": Timed(rms, (x, w), 3 * x.nbytes, True),
        "sum of columns": Timed(lambda x: x.sum(0), (tall,), tall.nbytes),
        "sum of all": Timed(lambda x: x.float().square().sum(), (rows,), rows.nbytes),
        "batch norm, relu": Timed(batch, (image, channels), 2 * image.nbytes),
        "batch norm, relu, backward": Timed(batch, (image, channels), 3 * image.nbytes, True),
    }


def measure_kernels(contenders: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = device_microseconds(lambda: target.copy_(source)) / (2 * source.nbytes)
    for name, timed in kernels().items():
        row: dict[str, float] = {"copy": copy * timed.moved}
        for contender in contenders:
            torch._dynamo.reset()
            backend = litz_backend() if contender == "litz" else contender
            # A race would have eager run some of the calls.
            options = {"never_slower": False} if contender == "litz" else None
            run = torch.compile(timed.function, backend=backend, options=options)
            run = timed.function if contender == "eager" else run
            try:
                row[contender] = _microseconds(run, timed)
            except Exception as error:
                print(f"{name}, {contender}: {describe(error)[:300]}", file=sys.stderr)
        found[name] = row
    return found


def _microseconds(run: Callable[..., Any], timed: Timed) -> float:
    if not timed.backward:
        with torch.no_grad():
            return device_microseconds(lambda: run(*timed.args))
    learns = [a.clone().requires_grad_() if a.is_floating_point() else a for a in timed.args]
    out = run(*learns)
    tangent = torch.randn_like(out)
    wanted = [a for a in learns if a.requires_grad]
    return device_microseconds(lambda: torch.autograd.grad(out, wanted, tangent, retain_graph=True))


def device_microseconds(run: Callable[[], Any], times: int = 20) -> float:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / times


__all__ = ["JUDGED", "device_microseconds", "kernels", "measure_kernels"]
