"""A model of the benchmarks called from C, in a process without Python, against the same model in this process.

`python -m benchmarks.from_c [resnet]`: the milliseconds of a step, the best of each in turns, and how far the outputs
are apart. It takes a C compiler.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import build, tensors
from benchmarks.process import THREADS

ROUNDS, STEPS = 7, 6
MORE = 0.03  # of in-process time
TYPES = {torch.float32: 6, torch.int64: 4}
PROGRAM = r"""
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(void) {{
  int64_t sizes[] = {{{sizes}}}, shape[8];
  void *data = malloc({bytes}), *model = litz_model_open();
  FILE *file = fopen("input", "rb");
  if (model == NULL || fread(data, 1, {bytes}, file) != {bytes}) return 2;
  litz_tensor in = {{data, sizes, NULL, {rank}, {type}}}, out[{outputs}] = {{{{0}}}};
  double best = 1e30;
  for (int i = 0; i < {steps}; ++i) {{
    struct timespec a, b;
    for (int o = 0; o < {outputs}; ++o) {{ free(out[o].data); out[o].data = NULL; }}
    out[0].sizes = shape;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int32_t code = litz_model_run(model, &in, 1, out, {outputs});
    clock_gettime(CLOCK_MONOTONIC, &b);
    if (code) {{ puts(litz_model_error(code)); return 1; }}
    double ms = (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) * 1e-6;
    if (ms < best) best = ms;
  }}
  size_t count = 4;
  for (int d = 0; d < out[0].rank; ++d) count *= shape[d];
  fwrite(out[0].data, 1, count, fopen("output", "wb"));
  printf("%f\n", best);
  return 0;
}}
"""


def measure(name: str) -> dict[str, Any]:
    import litz

    torch.set_num_threads(THREADS)
    module, kwargs = build(name)
    ((argument, x),) = kwargs.items()

    class Outputs(torch.nn.Module):
        """Whatever containers a model returns, its tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(tensors(self.module(**{argument: x})))

    whole = Outputs().eval()
    folder = Path(tempfile.mkdtemp(prefix="litz-from-c-"))
    with torch.no_grad():
        compiled = torch.compile(whole, backend="litz")
        expected = compiled(x)
        litz.aot_compile(whole, (x,), path=folder / "model.so")
        program = _built(folder, x, len(expected))
        found: dict[str, list[float]] = {"python": [], "c": []}
        for _ in range(ROUNDS):
            found["c"].append(float(program().strip()))
            found["python"].append(_best(lambda: compiled(x)))
    data = bytearray((folder / "output").read_bytes())
    result = torch.frombuffer(data, dtype=torch.float32).view(expected[0].shape)
    apart = float((result - expected[0]).abs().max() / expected[0].abs().max())
    best = {kind: min(times) for kind, times in found.items()}
    return {**best, "ratio": best["c"] / best["python"], "apart": apart}


def _built(folder: Path, x: torch.Tensor, outputs: int) -> Any:
    (folder / "input").write_bytes(ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()))
    sizes = ", ".join(map(str, x.shape))
    text = PROGRAM.format(
        sizes=sizes, bytes=x.numel() * x.element_size(), rank=x.dim(), type=TYPES[x.dtype], outputs=outputs, steps=STEPS
    )
    (folder / "main.c").write_text(text)
    torch_folder = Path(torch.__file__).parent / "lib"
    libraries = [f"-L{torch_folder}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_folder}:{folder}"]
    command = ["gcc", "main.c", "model.so", "-o", "main", *libraries, "-Wl,--allow-shlib-undefined"]
    subprocess.run(command, cwd=folder, check=True)
    environment = {"OMP_NUM_THREADS": str(THREADS), "PATH": "/usr/bin:/bin"}

    def run() -> str:
        return subprocess.run(
            ["./main"], cwd=folder, check=True, capture_output=True, text=True, env=environment
        ).stdout

    return run


def _best(function: Any) -> float:
    best = 1e30
    for _ in range(STEPS):
        start = time.perf_counter()
        function()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best


if __name__ == "__main__":
    figures = measure(sys.argv[1] if len(sys.argv) > 1 else "resnet")
    print(json.dumps(figures))
    verdict = "met" if figures["ratio"] <= 1 + MORE else "MISSED"
    print(f"a step from C takes {figures['ratio']:.3f} of one from Python: {verdict}")
