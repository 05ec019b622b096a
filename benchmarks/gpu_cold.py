"""The first call on a GPU: where its seconds go, with nothing kept from before, and in a second process.

`python -m benchmarks.gpu_cold` measures bert and gpt2, inference and training, each contender in a process of its own:
Dynamo with no compiler behind it, Litz, Litz where an earlier process has filled its cache, and `inductor`. The model
has run once before, uncompiled, so that the libraries it calls are loaded. `--models llama`, `--modes training,one` for
a part, `--without-inductor` leaves the longest part out, `--output F` writes what was found. `--profile` has Litz alone
run, its first call looked at now and then (`sampling.py`), and prints where it was seen most; `--device cpu --small` is
for trying this out where there is no GPU.

Stages are those of Litz's report; LLVM's and machine code's seconds are added up over the threads that build, while the
stage `build` is what was left to wait for. `run` are the calls of what was compiled, up to the host's return, with the
beginnings of libraries that eager does not use. What is in no stage is Dynamo, and the run itself.
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
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.process import in_fresh_process, without_caches
from benchmarks.sampling import Sampler
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
    from litz.runtime.executable import Executable
    from litz.target import GpuTarget

    def llvm(text: str, target: Any, *rest: Any) -> str:
        return "LLVM, kernels" if isinstance(target, GpuTarget) else "LLVM, host"

    loaded: list[Any] = []
    make = link.Kernels

    def kernels(codes: Any) -> Any:
        loaded.extend(codes)
        with clock("load kernels"):
            return make(codes)

    Executable.__call__ = clock.around(Executable.__call__, lambda *_: "run")  # type: ignore[method-assign]
    Executable.consume = clock.around(Executable.consume, lambda *_: "run")  # type: ignore[method-assign]
    build.object_of = clock.around(build.object_of, llvm)  # type: ignore[assignment]
    machine_code.cubin_of = clock.around(machine_code.cubin_of, lambda *_: "machine code")
    link.Kernels = kernels  # type: ignore[assignment, misc]
    return clock.around(litz, lambda *_, **__: "backend"), loaded


def measure(name: str, mode: str, contender: str, device: str, small: bool, profile: bool) -> dict[str, Any]:
    """The first call of a model that has run uncompiled; and the second."""
    import torch

    from benchmarks.gpu_models import make, step_of, synchronize

    model, inputs = make(name, mode, device, small)
    step = step_of(model, inputs, mode)
    step(model)
    clock, loaded, sampler = Clock(), [], Sampler()
    backend: Any = contender
    with clock("imports"):
        import torch._dynamo

        if contender == "litz":
            backend, loaded = watched(clock)
        run = torch.compile(model, backend=backend, **({"mode": "reduce-overhead"} if mode == "one" else {}))
    for what in ("first", "second"):
        with clock(what), sampler if profile and what == "first" else nullcontext():
            step(run)
            synchronize(device)
        clock.seconds[f"run, {what}"] = clock.seconds.pop("run", 0.0)
    found: dict[str, Any] = dict(clock.seconds)
    if profile:
        found["profile"] = sampler.found()
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


def contenders(name: str, mode: str, options: Any) -> dict[str, Any]:
    """Each in a fresh process; the last of Litz's two finds what the one before has kept."""
    off = {**without_caches(), **ALONE}
    folder = Path(tempfile.mkdtemp(prefix="litz-gpu-cold-"))
    kept = {**off, "LITZ_CACHE": "1", "LITZ_CACHE_DIR": str(folder / "litz")}

    def one(contender: str, environment: dict[str, str]) -> dict[str, Any]:
        how = ["--device", options.device, *["--small"] * options.small, *["--profile"] * options.profile]
        what = f"{name}:{mode}:{contender}"
        return in_fresh_process("benchmarks.gpu_cold", "--worker", what, *how, environment=environment)

    try:
        if options.profile:
            return {"litz": one("litz", off)}
        found = {"dynamo": one("eager", off), "litz": one("litz", off), "filling": one("litz", kept)}
        found["kept"] = one("litz", kept)
        return found | ({} if options.without_inductor else {"inductor": one("inductor", off)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(off["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


def report(found: dict[str, dict[str, Any]]) -> str:
    head = ["seconds", "imports", "first", *SHOWN, "other stages", "no stage", "run", "LLVM", "machine code", "kernels"]
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
            cells = [*(stages.get(stage) for stage in SHOWN), others, one["first"] - sum(stages.values())]
            cells += [one.get("run, first"), llvm, one.get("machine code", 0.0)]
            count = str(one.get("kernels", "-"))
            lines.append([title, *(figure(x) for x in (one["imports"], one["first"], *cells)), count])
        share = ratio(*(_until_it_has_run(row.get(contender, {})) for contender in ("litz", "inductor")))
        ratios.append(f"{name}: {figure(share)} of inductor (bar {MOST_OF_INDUCTOR})")
        for what, seconds in row.get("litz", {}).get("loading", {}).items():
            ratios.append(f"  loading {what}: {seconds:.4g}")
        ratios += [f"  note: {note}" for note in row.get("litz", {}).get("notes", [])]
        for what, seen in row.get("litz", {}).get("profile", {}).items():
            ratios += [f"  {what}:", *(f"    {seconds:8.3f} {where}" for where, seconds in seen)]
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
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(measure(*options.worker.split(":"), options.device, options.small, options.profile)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name in options.models.split(","):
        for mode in options.modes.split(","):
            found[f"{name}, {mode}"] = contenders(name, mode, options)
            shown = {
                who: {k: v for k, v in one.items() if k != "profile"} for who, one in found[f"{name}, {mode}"].items()
            }
            print(f"{name}, {mode}: {json.dumps(shown)}", flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(report(found))


if __name__ == "__main__":
    main()
