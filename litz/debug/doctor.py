"""`litz doctor`: what this machine has, and whether Litz works here.

In: nothing. Out: a `Finding` for each thing that matters, and whether it is well; the last ones are of programs that
are compiled and compared with eager.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

_NEEDED, _USED_IF_THERE = ("torch", "llvmlite", "numpy"), ("triton", "transformers")


@dataclass(frozen=True)
class Finding:
    what: str
    told: str
    well: bool = True

    def __str__(self) -> str:
        return f"{'' if self.well else '! '}{self.what}: {self.told}"


def examine() -> list[Finding]:
    return [*_versions(), *_processor(), *_gpu(), *_cache(), *_environment(), *_smoke()]


def _versions() -> Iterator[Finding]:
    from litz import __version__
    from litz.compat import NEWEST_TORCH, OLDEST_TORCH, torch_version

    yield Finding("Litz", f"{__version__}, Python {platform.python_version()} on {platform.platform()}")
    for name in (*_NEEDED, *_USED_IF_THERE):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            if name in _NEEDED:
                yield Finding(name, "not installed", well=False)
    known = OLDEST_TORCH <= torch_version()[:2] <= NEWEST_TORCH
    if not known:
        span = " to ".join(".".join(map(str, each)) for each in (OLDEST_TORCH, NEWEST_TORCH))
        yield Finding("torch's version", f"Litz is for {span}", well=False)


def _processor() -> Iterator[Finding]:
    import torch

    from litz.compat import openmp_library, torch_library
    from litz.errors import LitzError
    from litz.target import detect

    try:
        yield Finding("processor", str(detect(None)))
    except LitzError as error:
        yield Finding("processor", str(error), well=False)
    yield Finding("threads", f"{torch.get_num_threads()} of {os.cpu_count()} processors")
    for what, path in (("OpenMP", openmp_library()), ("torch's library", torch_library())):
        yield Finding(what, path or "not found", well=path is not None)


def _gpu() -> Iterator[Finding]:
    import torch

    from litz.compat import jit_linker_library
    from litz.errors import LitzError
    from litz.target import detect_gpu

    if not torch.cuda.is_available():
        yield Finding("GPU", "none that torch can use")
        return
    yield Finding("CUDA", f"{torch.version.cuda}; machine code by {jit_linker_library() or 'the driver'}")
    for index in range(torch.cuda.device_count()):
        try:
            yield Finding(f"GPU {index}", f"{torch.cuda.get_device_name(index)}: {detect_gpu(index)}")
        except LitzError as error:
            yield Finding(f"GPU {index}", str(error), well=False)


def _cache() -> Iterator[Finding]:
    from litz.runtime.cache import cache_of

    if os.environ.get("LITZ_CACHE") == "0":
        yield Finding("cache", "off (LITZ_CACHE=0)")
        return
    cache = cache_of(os.environ)
    if cache is None:
        yield Finding("cache", "cannot be used; a warning says why", well=False)
        return
    files = list(cache.files())
    total = sum(file.bytes for file in files)
    yield Finding("cache", f"{cache.folder}: {total:,} of {cache.most_bytes:,} bytes in {len(files)} files")


def _environment() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.startswith("LITZ_"):
            yield Finding(name, os.environ[name])


def _smoke() -> Iterator[Finding]:
    import torch

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for what, check in (("inference", _infers), ("training", _trains)):
            begun = time.perf_counter()
            try:
                check(device)
            except Exception as error:
                told, well = f"{type(error).__name__}: {error}", False
            else:
                told, well = f"right, in {time.perf_counter() - begun:.1f} s", True
            yield Finding(f"{what} on {device}", told, well)


def _infers(device: str) -> None:
    import torch

    x = torch.linspace(-2, 2, 600, device=device).view(20, 30)
    _same(lambda x: torch.nn.functional.gelu(x @ x.mT).softmax(-1), x)


def _trains(device: str) -> None:
    import torch

    x = torch.linspace(-2, 2, 600, device=device).view(20, 30).requires_grad_()
    _same(lambda x: torch.autograd.grad((x @ x.mT).tanh().square().sum(), x)[0], x)


def _same(function: Callable[..., object], x: object) -> None:
    import torch

    from litz.frontdoor import compile

    torch.testing.assert_close(compile(function, verify=True)(x), function(x), rtol=1e-4, atol=1e-5)


__all__ = ["Finding", "examine"]
