"""The first call on a GPU: where its seconds go, with nothing kept from before, and in a second process.

`python -m benchmarks.gpu_cold` measures bert and gpt2, inference and training, each contender in a process of its own:
Dynamo with no compiler behind it, Litz, Litz where an earlier process has filled its cache, and `inductor`. The model
has run once before, uncompiled, so that the libraries it calls are loaded. `--models llama`, `--modes training` for a
part, `--without-inductor` leaves the longest part out, `--output F` writes what was found.

Stages are those of Litz's report; LLVM's and machine code's seconds are added up over the threads that build, while the
stage `build` is what was left to wait for. What is in no stage is Dynamo, and the run itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.process import in_fresh_process, without_caches
from benchmarks.table import figure, ratio, render

MOST_OF_INDUCTOR = 0.3
SHOWN = ("trace", "rewrite_joint", "lower", "fuse", "render", "build", "load")
# The driver keeps machine code of its own making on disk, which would answer for a later process.
ALONE = {"CUDA_CACHE_DISABLE": "1"}


class Clock:
    """Seconds by what they were spent on, over all threads."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[what] += time.perf_counter() - start

    def around(self, function: Callable[..., Any], what: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self(what(*args, **kwargs)):
                return function(*args, **kwargs)

        return timed


def watched(clock: Clock) -> tuple[Callable[..., Any], list[Any]]:
    """Litz's backend with clocks in it, and a list that will have the kernels that were loaded."""
    from litz.capture.backend import litz
    from litz.codegen import machine_code
    from litz.codegen.llvm import build
    from litz.runtime import link
    from litz.target import GpuTarget

    def llvm(text: str, target: Any, *rest: Any) -> str:
        return "LLVM, kernels" if isinstance(target, GpuTarget) else "LLVM, host"

    loaded: list[Any] = []
    make = link.Kernels

    def kernels(codes: Any) -> Any:
        loaded.extend(codes)
        with clock("load kernels"):
            return make(codes)

    build.object_of = clock.around(build.object_of, llvm)  # type: ignore[assignment]
    machine_code.cubin_of = clock.around(machine_code.cubin_of, lambda *_: "machine code")
    link.Kernels = kernels  # type: ignore[assignment, misc]
    return clock.around(litz, lambda *_, **__: "backend"), loaded


def measure(model: Any, inputs: dict[str, Any], training: bool, contender: str) -> dict[str, Any]:
    """The first call of a model that has run uncompiled; and the second."""
    import torch

    def step(run: Any) -> None:
        if not training:
            with torch.no_grad():
                run(**inputs)
        else:
            model.zero_grad(set_to_none=True)
            run(**inputs).loss.backward()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    step(model)
    clock, loaded = Clock(), []
    backend: Any = contender
    with clock("imports"):
        import torch._dynamo

        if contender == "litz":
            backend, loaded = watched(clock)
        run = torch.compile(model, backend=backend)
    with clock("first"):
        step(run)
    with clock("second"):
        step(run)
    found: dict[str, Any] = dict(clock.seconds)
    if contender == "litz":
        import litz

        reports = litz.reports()
        found["stages"] = dict(sum((Counter(dict(report.timings)) for report in reports), Counter()))
        found["notes"] = [note for report in reports for note in report.notes]
        found["kernels"] = len(loaded)
        found["recalled"] = all("from the cache" in report.cache for report in reports)
        if loaded:
            found["loading"] = loading(loaded)
    return found


def loading(codes: list[Any]) -> dict[str, float]:
    """Seconds of handing kernels to the driver: machine code, and PTX, of which it makes some."""
    from litz.codegen.gpu_code import GpuCode
    from litz.runtime.driver import Kernels

    found = {}
    for what, given in (("machine code", codes), ("PTX", [GpuCode(code.ptx) for code in codes])):
        start = time.perf_counter()
        kept = Kernels(given)
        found[what] = time.perf_counter() - start
        found[f"{what}, of which from PTX"] = kept.from_ptx
    return found


def built(name: str, training: bool) -> tuple[Any, dict[str, Any]]:
    import torch

    from benchmarks.gpu import _models

    torch.manual_seed(0)
    model, inputs = _models()[name]()
    model = model.cuda().bfloat16().train(training)
    inputs = {k: (v.bfloat16() if v.is_floating_point() else v).cuda() for k, v in inputs.items()}
    if training:
        first = next(iter(inputs.values()))
        inputs["labels"] = inputs.get("input_ids", torch.zeros(len(first), dtype=torch.long, device="cuda"))
    return model, inputs


def contenders(name: str, mode: str, with_inductor: bool) -> dict[str, Any]:
    """Each in a fresh process; the last of Litz's two finds what the one before has kept."""
    off = {**without_caches(), **ALONE}
    folder = Path(tempfile.mkdtemp(prefix="litz-gpu-cold-"))
    kept = {**off, "LITZ_CACHE": "1", "LITZ_CACHE_DIR": str(folder / "litz")}

    def one(contender: str, environment: dict[str, str]) -> dict[str, Any]:
        what = f"{name}:{mode}:{contender}"
        return in_fresh_process("benchmarks.gpu_cold", "--worker", what, environment=environment)

    try:
        found = {"dynamo": one("eager", off), "litz": one("litz", off), "filling": one("litz", kept)}
        found["kept"] = one("litz", kept)
        return found | ({"inductor": one("inductor", off)} if with_inductor else {})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(off["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


def report(found: dict[str, dict[str, Any]]) -> str:
    head = ["seconds", "imports", "first", *SHOWN, "other stages", "no stage", "LLVM", "machine code", "kernels"]
    lines, ratios = [], []
    for name, row in found.items():
        for contender, one in row.items():
            title = f"{name}: {contender}"
            if "failed" in one:
                lines.append([title, one["failed"], *[""] * (len(head) - 2)])
                continue
            stages = one.get("stages", {})
            others = sum(s for stage, s in stages.items() if stage not in SHOWN)
            llvm = one.get("LLVM, kernels", 0.0) + one.get("LLVM, host", 0.0)
            cells = [*(stages.get(stage) for stage in SHOWN), others, one["first"] - sum(stages.values()), llvm]
            cells.append(one.get("machine code", 0.0))
            count = str(one.get("kernels", "-"))
            lines.append([title, *(figure(x) for x in (one["imports"], one["first"], *cells)), count])
        share = ratio(*(_until_it_has_run(row.get(contender, {})) for contender in ("litz", "inductor")))
        ratios.append(f"{name}: {figure(share)} of inductor (bar {MOST_OF_INDUCTOR})")
        for what, seconds in row.get("litz", {}).get("loading", {}).items():
            ratios.append(f"  loading {what}: {seconds:.4g}")
        ratios += [f"  note: {note}" for note in row.get("litz", {}).get("notes", [])]
        if row.get("kept", {}).get("recalled") is False:
            ratios.append("  the second process did not find all in the cache")
    return "\n".join([render(head, lines), "", *ratios])


def _until_it_has_run(one: dict[str, Any]) -> float | None:
    return one["imports"] + one["first"] if "first" in one else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="bert,gpt2")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        name, mode, contender = options.worker.split(":")
        print(json.dumps(measure(*built(name, mode == "training"), mode == "training", contender)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name in options.models.split(","):
        for mode in options.modes.split(","):
            found[f"{name}, {mode}"] = contenders(name, mode, not options.without_inductor)
            print(f"{name}, {mode}: {json.dumps(found[f'{name}, {mode}'])}", flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(report(found))


if __name__ == "__main__":
    main()
