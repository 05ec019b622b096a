"""The one place for what differs among the torch versions Litz accepts (2.11 to 2.13).

In: the installed torch. Out: answers that hold for all of them. A difference is named here as a function or
a constant, with the versions it applies to; no other module asks for torch's version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from traceback import StackSummary
from types import CodeType, FrameType
from typing import Any, NamedTuple

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 13)


def parse_version(text: str) -> tuple[int, int, int]:
    """`"2.13.0+cpu"` → `(2, 13, 0)`; pre-release and local parts are ignored."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def torch_version() -> tuple[int, int, int]:
    import torch

    return parse_version(torch.__version__)


def captures_transforms_again() -> bool:
    """Whether Dynamo can capture a graph of its own in which a `torch.func` transform is written out (2.13 can, 2.11
    fails half-way, and leaves the transform's levels behind)."""
    return torch_version() >= (2, 13, 0)


def adds_nothing_of_varying_sizes() -> bool:
    """Whether a tensor of zeros without memory can be added to another when sizes are symbols (2.13; in 2.11 the
    operator that asks for its sizes does not exist)."""
    return torch_version() >= (2, 13, 0)


def selective_context(result: Any) -> Any:
    """What a policy of selective checkpointing is given first; from 2.12 on it may look at the operator's result."""
    from torch.utils.checkpoint import SelectiveCheckpointContext

    if torch_version() >= (2, 12, 0):
        return SelectiveCheckpointContext(is_recompute=False, op_output=result)
    return SelectiveCheckpointContext(is_recompute=False)


@lru_cache(maxsize=1)
def ignores_a_lone_bound_of_nan() -> bool:
    """Whether `x.clamp(min=nan)` is `x` (2.11), not NaN (2.13). With both bounds it is NaN in all."""
    import torch

    return not bool(torch.zeros(1, device="cpu").clamp(min=float("nan")).isnan())


@contextmanager
def forgetting_fakes() -> Iterator[None]:
    """What operators give for fakes is remembered by torch for as long as the process lives, shapes and all. What is
    added in here is dropped again."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    remembered = getattr(FakeTensorMode, "cache", {})
    before = len(remembered)
    try:
        yield
    finally:
        for key in list(remembered)[before:]:
            remembered.pop(key, None)


@contextmanager
def fakes_not_remembered(args: Iterable[Any]) -> Iterator[None]:
    """What operators give for these fakes is found out anew in here, and not remembered."""
    from torch._subclasses.fake_tensor import FakeTensor

    modes = {x.fake_mode for x in args if isinstance(x, FakeTensor)}
    before = [(mode, mode.cache_enabled) for mode in modes]
    try:
        for mode in modes:
            mode.cache_enabled = False
        yield
    finally:
        for mode, enabled in before:
            mode.cache_enabled = enabled


def recompile_reason() -> str | None:
    """Within a backend's call: what Dynamo found changed since it compiled the function before; None the first time.

    There is no public way to ask; where the private one is not as in the versions known, nothing is said.
    """
    from torch._dynamo import utils

    context = getattr(utils, "get_metrics_context", lambda: None)()
    return getattr(context, "_metrics", {}).get("recompile_reason")


def capture_number() -> str | None:
    """Within a backend's call: Dynamo's number for the function, and for which of its compiles this is."""
    from torch._guards import CompileContext

    found = CompileContext.current_compile_id()
    return None if found is None else f"{found.frame_id}/{found.frame_compile_id}"


def graph_break(graph_module: Any) -> tuple[str, str] | None:
    """The graph break that Dynamo's graph ends with: why, and the traceback of the user's lines."""
    found = getattr(graph_module, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return None
    return str(found.reason), "".join(StackSummary.from_list(found.user_stack).format())


def source_name(node: Any) -> str | None:
    """Where Dynamo took an input of its graph from, as Python would spell it; None where it does not say. The name is a
    method in some versions, and a property in others."""
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        source = getattr(getattr(node, "meta", {}).get("grapharg"), "source", None)
    name = getattr(source, "name", None)
    found = name() if callable(name) else name
    return found if isinstance(found, str) else None


class Place(NamedTuple):
    """Where a function is written; code that Dynamo makes of it has the same place."""

    file: str
    line: int
    name: str


class Captured(NamedTuple):
    """The function that Dynamo captures, for which backend, and who called it, innermost first, up to the function that
    was compiled."""

    code: CodeType
    backend: object
    callers: tuple[Place, ...]

    @property
    def place(self) -> Place:
        return _place_of(self.code)

    @property
    def goes_on(self) -> bool:
        """Whether it is the rest of a function, after a break."""
        return self.code.co_name.startswith("torch_dynamo_resume_in")


def captured_now() -> Captured | None:
    """Within a backend's call: what is being captured. None where that cannot be told.

    Dynamo does not say, but it is on the stack: its own frames, then those of the callers.
    """
    captured: tuple[CodeType, object] | None = None
    callers: list[Place] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own = "torch._dynamo" in frame.f_globals.get("__name__", "")
        if captured is None:
            if own and frame.f_code.co_name == "_compile":
                captured = frame.f_locals["code"], _innermost(frame.f_locals["compiler_fn"])
        elif own and frame.f_code.co_name == "compile_wrapper":
            return Captured(*captured, tuple(callers))
        elif not frame.f_globals.get("__name__", "").startswith("torch."):
            callers.append(_place_of(frame.f_code))
        frame = frame.f_back
    return None


def _innermost(backend: object) -> object:
    while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = inner
    return backend


def backends_of(code: CodeType) -> list[object]:
    """For each capture of the function that Dynamo still has, the backend it is for."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return [entry.backend for entry in _debug_get_cache_entry_list(code)]


def _place_of(code: CodeType) -> Place:
    return Place(code.co_filename, code.co_firstlineno, code.co_name)


def leave_code(code: CodeType) -> None:
    """Dynamo lets the function be from its next call on, until it is reset; what the function calls is captured by
    itself."""
    from torch._dynamo.eval_frame import set_code_exec_strategy
    from torch._dynamo.types import FrameAction, FrameExecStrategy

    set_code_exec_strategy(code, FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT))


@lru_cache(maxsize=1)
def torch_library() -> str | None:
    """Path of the library that holds ATen, SLEEF and the C shim, which is loaded for as long as there is torch."""
    return _library("libtorch_cpu", _paths_in_memory())


def torch_exports(function: str) -> bool:
    """Whether that library has the function for others to call."""
    import ctypes

    path = torch_library()
    return path is not None and hasattr(ctypes.CDLL(path), function)


def openmp_library() -> str | None:
    """Path of the OpenMP runtime torch itself uses, so that kernels share its threads."""
    return _of_openmp(_paths_in_memory())


def _of_openmp(loaded: Sequence[str]) -> str | None:
    return next(filter(None, (_library(stem, loaded) for stem in ("libgomp", "libomp", "libiomp5"))), None)


def called_libraries() -> list[str]:
    """Paths of the libraries that generated code calls, of those that this process has: OpenMP's runtime, ATen, the
    driver of GPUs, and ATen's part for them."""
    loaded = _paths_in_memory()
    found = (
        _of_openmp(loaded), _library("libtorch_cpu", loaded),
        _library("libcuda", loaded, beside_torch=False), _library("libtorch_cuda", loaded, beside_torch=False),
    )  # fmt: skip
    return [path for path in found if path is not None]


def jit_linker_library() -> str | None:
    """Path of nvJitLink, NVIDIA's library that makes machine code of PTX: the one this process has loaded, as torch's
    builds for CUDA do, or the newest of those installed beside it."""
    import importlib.util
    from pathlib import Path

    loaded = _library("libnvJitLink", _paths_in_memory(), beside_torch=False)
    packages = importlib.util.find_spec("nvidia")
    if loaded is not None or packages is None:
        return loaded
    folders = packages.submodule_search_locations or ()
    found = [path for folder in folders for path in Path(folder).glob("*/lib/libnvJitLink.so.*")]
    return str(max(found, key=lambda path: path.name)) if found else None


def _paths_in_memory() -> list[str]:
    """The files that are mapped into this process, each once. With a GPU in use there are thousands of mappings, so
    whoever looks for several libraries asks once."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return list(dict.fromkeys(line[line.index("/") : -1] for line in maps if "/" in line))
    except OSError:
        return []  # no procfs on this system: look beside torch instead


def _library(stem: str, loaded: Sequence[str], beside_torch: bool = True) -> str | None:
    import os
    from pathlib import Path

    import torch

    for path in loaded:
        if os.path.basename(path).startswith((stem + ".", stem + "-")):
            return path
    if not beside_torch:
        return None
    for found in sorted((Path(torch.__file__).parent / "lib").glob(stem + "*")):
        return str(found)
    return None


def mend_after_capture(graph: Any, device: int, pool: Any) -> None:
    """After a capture that torch could not end: memory is given out as before, and random numbers drawn. The current
    stream is the one that was captured.

    Up to 2.11 the allocator goes on to believe that it serves a capture, and the default generator that it is part of
    one, which another capture, ended in order, puts right. In all versions nobody else gives the capture's share of the
    pool back.
    """
    import torch

    try:
        graph.pool()
    except RuntimeError:
        for give_back in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with suppress(RuntimeError):  # "not currently recording": later versions have done so themselves
                give_back(device, pool)
    else:
        graph.reset()  # it ended, and only then something failed
    if torch_version() < (2, 12, 0):
        cell, again = torch.empty(1, device=torch.device("cuda", device)), torch.cuda.CUDAGraph()
        with suppress(RuntimeError):
            again.capture_begin(capture_error_mode="thread_local")
            cell.zero_()
            again.capture_end()
            again.reset()


def highest_allocation(function: Any) -> int:
    """Bytes that the CPU's allocator has given to this thread at once while the function ran; 0 where somebody is
    counting already. PyTorch's older profiler counts in a moment; the newer one takes seconds to begin."""
    from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy, _profiler_enabled
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    if _profiler_enabled():
        function()
        return 0
    counting = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    _enable_profiler_legacy(counting)
    try:
        function()
    finally:
        threads = _disable_profiler_legacy()
    live = highest = 0
    for event in (event for thread in threads for event in thread if event.kind() == "memory_alloc"):
        live += event.cpu_memory_usage()
        highest = max(highest, live)
    return highest


class ReplayTable:
    """What torch 2.11's functionalisation asks of the tracer below it: the node of each tensor it is about to sync.

    2.13 asks through a method that `capture/joint.py` overrides; 2.11 reads `tracer.tensor_tracker` of whatever mode
    stands in the proxy's place. It uses the node to annotate what PyTorch's own tracer would record, so any will do.
    """

    class _Entry:
        node = None

        @property
        def proxy(self) -> ReplayTable._Entry:
            return self

    def __init__(self) -> None:
        self.tensor_tracker = self
        self.enable_thunkify = False  # nested tensors turn it on for a while, for their sizes
        self._entry = self._Entry()

    def __getitem__(self, tensor: object) -> ReplayTable._Entry:
        return self._entry


def precision_of_products() -> str:
    """Of float32: as a whole, or, where libraries were told apart, for which torch has no such word, of each."""
    import torch

    try:
        return torch._C._get_float32_matmul_precision()
    except RuntimeError:
        backends = torch.backends
        return f"mkldnn {backends.mkldnn.matmul.fp32_precision}, cuda {backends.cuda.matmul.fp32_precision}"
