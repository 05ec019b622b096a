"""The machine that code is generated for.

In: this process (its CPU, torch's thread count, `LITZ_ISA`). Out: a frozen `Target`.

Code generation asks the `Target` and never the machine, so that a narrower instruction set can be tested
on a wider machine: `LITZ_ISA=avx2` describes the same CPU with its wider features switched off.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Union

from litz.compat import torch_exports
from litz.errors import OptionError, UnsupportedPlatform

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX2 = ("avx2", "fma")
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# Widest first: the first level whose features are all present is the machine's.
_LEVELS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "x86_64": (("avx512", _AVX512), ("avx2", _AVX2), ("sse2", ())),
    "aarch64": (("neon", ()),),
}
_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "sse2": 16, "neon": 16}
_VECTOR_REGISTERS = {"avx512": 32, "avx2": 16, "sse2": 16, "neon": 32}
# LLVM's name of the least processor with a level, and all that it has.
_BASELINE = "+cmov,+cx8,+fxsr,+mmx,+sse,+sse2"
_V3 = (
    f"{_BASELINE},+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
)
_PORTABLE = {
    "sse2": ("x86-64", _BASELINE),
    "avx2": ("x86-64-v3", _V3),
    # Left alone, LLVM would split vectors of 512 bits for this one.
    "avx512": ("x86-64-v4", f"{_V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl,-prefer-256-bit"),
    "neon": ("generic", "+neon,+fp-armv8"),
}
_FALLBACK_L2 = 512 * 1024
_FALLBACK_LAST = 32 << 20


@dataclass(frozen=True)
class Target:
    """`cpu` and `features` are LLVM's own spellings; `vector_bytes` is the width to generate for."""

    arch: str
    isa: str
    cpu: str
    features: str
    vector_bytes: int
    vector_registers: int
    threads: int
    l2_bytes: int = _FALLBACK_L2
    last_cache_bytes: int = _FALLBACK_LAST
    function_bytes: tuple[int, ...] = ()  # vectors that torch carries mathematical functions for, the widest first

    def lanes(self, element_bytes: int) -> int:
        """Elements of that size in one vector register."""
        return self.vector_bytes // element_bytes

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    def has_all(self, features: Iterable[str]) -> bool:
        return all(map(self.has, features))

    @property
    def features_needed(self) -> frozenset[str]:
        """What a processor must have to run code for this one."""
        return frozenset(feature[1:] for feature in self.features.split(",") if feature.startswith("+"))

    @property
    def without_tiles(self) -> Target:
        """The same, for processes that nobody has asked permission for to use registers that are tiles."""
        return replace(self, features=_without(self.features, ("amx",)))

    @property
    def packing_less(self) -> Target:
        """The same, for products that are to get along with half the workspace: they pack columns in smaller blocks,
        and so rows more often."""
        return replace(self, l2_bytes=self.l2_bytes // 2)

    @property
    def host(self) -> Target:
        """The processor that a program is called from."""
        return self

    @property
    def generates_products(self) -> bool:
        """Whether generated matrix products and convolutions may be better than those of libraries."""
        return True

    @property
    def channels_last(self) -> tuple[str, ...]:
        """Types whose convolutions are best given images with the channels innermost."""
        return ("f32",)

    @property
    def convolves_with_bias(self) -> bool:
        """Whether the library's convolutions add their bias on the way, and not in a walk of its own afterwards."""
        return True

    @property
    def walks_in_order(self) -> bool:
        """Whether a row is soon walked by one thread, as what depends on the order of its steps must be."""
        return True

    @property
    def spreads_steps(self) -> bool:
        """Whether steps that depend on their order are spread over lanes and threads as any others are, so that what
        surrounds them is as well computed with them."""
        return False

    @property
    def accumulates_wide(self) -> bool:
        """Whether what is scanned or scattered is accumulated in a wider type, as eager does it there: float32 in
        float64, half precision in float32."""
        return True

    @property
    def drawing_threads(self) -> int | None:
        """Threads among which eager's kernels deal out random numbers, where those can be drawn in kernels; on a CPU
        they come one after the other, and so from eager's operators."""
        return None

    @property
    def looks_up(self) -> bool:
        """Whether an instruction looks up 32 numbers in registers, one for each lane."""
        return self.isa == "avx512"

    @property
    def host_computes(self) -> bool:
        """Whether host functions do work of the program's, besides starting what does."""
        return True

    @property
    def joins_by_masks(self) -> bool:
        """Whether what is put together out of parts is one kernel that looks up, for each element, whose it is, and
        that its readers can join; or a copy of each part, without a question asked."""
        return False

    @property
    def starts_are_dear(self) -> bool:
        """Whether to start a kernel costs more than to have it do something for a few thousand elements."""
        return False

    @property
    def cuts_sums_early(self) -> bool:
        """Whether long sums are cut where operators are written as loops, and not when all that joins them is known."""
        return True

    def parts(self, reductions: int, length: int, abreast: int | None) -> int:
        """Into how many parts reductions are cut once they are kernels: so many of that length each. `abreast`: how
        many of them a thread does side by side, where neighbours in memory are of different ones; none, where a
        reduction's own elements lie side by side."""
        return 1

    @property
    def takes_rows_in_turn(self) -> bool:
        """Whether `row_blocks` has an answer for any."""
        return False

    def row_blocks(self, rows: int, length: int, width: int, sums: int) -> int | None:
        """How many blocks of threads take rows in turn, each adding up so many sums down their columns; None where the
        rows are walked by themselves, and the columns too. `width`: bytes of an element."""
        return None

    @property
    def sums_first(self) -> bool:
        """Whether a product's kernel has all of an element's sum before it loads, once, what that is combined with: a
        result may then lie over what it is made of."""
        return True

    @property
    def reads_around_arguments(self) -> bool:
        """Whether arguments are always read where they lie, with what lies around them, and never from copies."""
        return True

    @property
    def races_eager(self) -> bool:
        """Whether compiled code is timed against eager, unless the user says otherwise."""
        return False

    @property
    def memory_bytes(self) -> int:
        """All that it has."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def device(self) -> str:
        """What torch calls it."""
        return "cpu"

    def cache_key_entries(self) -> dict[str, str]:
        """The target's share of a cache key, as named entries."""
        return {
            "target.arch": self.arch,
            "target.isa": self.isa,
            "target.cpu": self.cpu,
            "target.features": self.features,
            "target.threads": str(self.threads),
            "target.cache": f"{self.l2_bytes}/{self.last_cache_bytes}",
            "target.functions": "/".join(map(str, self.function_bytes)),
        }

    def __str__(self) -> str:
        return f"{self.cpu} ({self.isa}, {self.threads} thread{'' if self.threads == 1 else 's'})"


@dataclass(frozen=True)
class GpuTarget:
    """A GPU of NVIDIA's. `cpu` and `features` are LLVM's names of the instructions to use, all of which later GPUs have
    too; `level` is its own, ten times what is called the compute capability; `host` is the processor that starts its
    kernels."""

    host: Target
    cpu: str
    features: str
    processors: int
    level: int = 90
    threads_each: int = 2048  # that a processor has under way at most
    shared_bytes: int = 227 << 10  # that the threads of a block may share
    memory_bytes: int = 80 << 30  # all that it has

    arch = "nvptx64"
    device = "cuda"
    vector_bytes = 16
    vector_registers = 32
    threads = 1
    l2_bytes = 0
    generates_products = False
    channels_last = ("bf16", "f16")
    convolves_with_bias = False
    walks_in_order = False
    spreads_steps = True
    accumulates_wide = False
    host_computes = False
    starts_are_dear = True
    joins_by_masks = True
    cuts_sums_early = False
    sums_first = False
    reads_around_arguments = False
    races_eager = True

    @property
    def drawing_threads(self) -> int:
        return self.processors * (self.threads_each // _DRAWING_BLOCK) * _DRAWING_BLOCK

    def parts(self, reductions: int, length: int, abreast: int | None) -> int:
        if reductions == 0 or length < _SHORT:
            return 1
        if abreast is None:  # a block of threads each
            found = min(_BLOCKS * self.processors // reductions, length // _LEAST_ROW)
        else:
            found = min(_THREADS * self.processors * abreast // reductions, length // _LEAST_COLUMN)
        return found if found >= _FEWEST_PARTS else 1

    @property
    def takes_rows_in_turn(self) -> bool:
        return True

    def row_blocks(self, rows: int, length: int, width: int, sums: int) -> int | None:
        if length < _LEAST_ACCUMULATED or rows < _LEAST_TURNS * self.processors or sums > _MOST_SUMS:
            return None
        at_a_time = _WARPS if length * width <= _WARP_ROW else 1
        if length * (at_a_time * sums * _SUM_BYTES + _STAGED_BYTES) > self.shared_bytes - _SPARE_BYTES:
            return None
        taken = length * width * at_a_time  # bytes of rows that a block has
        abreast = max(1, (_ABREAST + taken // 2) // taken)
        blocks = min(self.processors * abreast, rows // _LEAST_TURNS)
        return blocks * -(-rows // (blocks * _MOST_TURNS))  # a sum takes in so many numbers and no more

    def lanes(self, element_bytes: int) -> int:
        return self.vector_bytes // element_bytes

    def cache_key_entries(self) -> dict[str, str]:
        return self.host.cache_key_entries() | {
            "target.gpu": self.cpu, "target.gpu_features": self.features, "target.processors": str(self.processors),
            "target.threads_each": str(self.threads_each),
            "target.gpu_level": str(self.level),
            "target.shared_bytes": str(self.shared_bytes),
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.cpu} ({self.processors} multiprocessors)"


# What keeps a GPU's multiprocessor busy, and what a block, or the threads that share a column, should have to reduce at
# least.
_BLOCKS, _THREADS = 4, 512
_LEAST_ROW, _LEAST_COLUMN = 4096, 64
# Rows whose columns are summed on the way: how long they are at least, how many a block takes at least and at most, and
# how many sums there are at most.
_LEAST_ACCUMULATED, _LEAST_TURNS, _MOST_TURNS, _MOST_SUMS = 256, 4, 512, 4
# Bytes of a row that is a warp's, of which a block has so many; of all rows that a processor has under way; of a sum;
# of a weight beside it; and of what else a block shares, vectors behind the end of a row included.
_WARP_ROW, _WARPS, _ABREAST = 2048, 8, 24 << 10
_SUM_BYTES, _STAGED_BYTES, _SPARE_BYTES = 4, 2, 5 << 10
# Below these, two kernels in the place of one are not worth it.
_SHORT, _FEWEST_PARTS = 128, 4

Machine = Union[Target, GpuTarget]
# The newest instructions that are asked for, and what LLVM calls the language that has them.
_NEWEST_GPU, _PTX = 90, "+ptx80"
_OLDEST_GPU = 80
_DRAWING_BLOCK = 256  # threads of a block of eager's kernels that draw; they fill the device and no more


def detect_gpu(index: int, threads: int | None = None) -> GpuTarget:
    """The GPU that torch calls `cuda:index`."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    level = 10 * properties.major + properties.minor
    if level < _OLDEST_GPU:
        raise UnsupportedPlatform(f"{properties.name} has compute capability {level / 10}; Litz needs 8.0 or newer.")
    cpu = f"sm_{min(level, _NEWEST_GPU)}"
    return GpuTarget(
        detect(threads), cpu, _PTX, properties.multi_processor_count, level,
        properties.max_threads_per_multi_processor, properties.shared_memory_per_block_optin,
        properties.total_memory,
    )  # fmt: skip


def detect(threads: int | None = None) -> Target:
    """This machine, with `threads` threads or as many as torch uses."""
    if threads is None:
        import torch

        threads = torch.get_num_threads()
    return replace(_machine(os.environ.get("LITZ_ISA", "")), threads=threads)


def portable(isas: Sequence[str], threads: int | None = None) -> list[Target]:
    """Any processor with these instruction sets, the widest first. Nothing of this machine's is used but its kind."""
    here = detect(threads)
    known = [isa for isa, _ in _LEVELS[here.arch]]
    unknown = [isa for isa in isas if isa not in known]
    if unknown:
        raise OptionError(f"there is no instruction set {unknown[0]!r} on {here.arch}: {', '.join(known)}")
    return [
        Target(
            here.arch, isa, *_PORTABLE[isa], _VECTOR_BYTES[isa], _VECTOR_REGISTERS[isa], here.threads,
            function_bytes=_function_bytes(_VECTOR_BYTES[isa]),
        )
        for isa in known
        if isa in isas
    ]  # fmt: skip


@lru_cache(maxsize=None)
def _machine(wanted_isa: str) -> Target:
    refuse_system(platform.system())
    arch = architecture(platform.machine(), sys.maxsize > 2**32)
    cpu, features = _host_cpu()
    if not tiles_are_permitted(features):
        features = _without(features, ("amx",))
    isa = _choose_isa(arch, features, wanted_isa)
    return Target(
        arch=arch,
        isa=isa,
        cpu=cpu,
        features=_restrict(features, isa),
        vector_bytes=_VECTOR_BYTES[isa],
        vector_registers=_VECTOR_REGISTERS[isa],
        threads=1,
        l2_bytes=_cache_bytes(2, _FALLBACK_L2),
        last_cache_bytes=_cache_bytes(3, _FALLBACK_LAST),
        function_bytes=_function_bytes(_VECTOR_BYTES[isa]),
    )


def refuse_system(name: str) -> None:
    """Unless it is one that generated code can be loaded and run on."""
    if name != "Linux":
        known = {"Darwin": "macOS", "": "a system that Python has no name for"}.get(name, name)
        raise UnsupportedPlatform(
            f"Litz generates code for Linux, and this is {known}.",
            hint="compile with another backend of torch.compile here"
            + (", or run Python in the Windows Subsystem for Linux" if name == "Windows" else ""),
        )


def architecture(machine: str, is_64_bit: bool) -> str:
    """The name of a supported architecture, or a refusal."""
    arch = _ARCHITECTURES.get(machine.lower())
    if arch is None or not is_64_bit:
        bits = "64-bit" if is_64_bit else "32-bit"
        raise UnsupportedPlatform(
            f"Litz generates code for 64-bit x86_64 and aarch64 processors, and this is a {bits} Python on {machine!r}."
        )
    return arch


def _host_cpu() -> tuple[str, str]:
    """CPU name and features as LLVM spells them: `("znver4", "+avx2,-sse4a,…")`."""
    try:
        from llvmlite import binding as llvm
    except ImportError as error:
        raise UnsupportedPlatform(
            "Litz needs llvmlite to generate code for a CPU, and it cannot be imported.",
            hint="pip install llvmlite",
        ) from error
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


# Linux keeps registers that are tiles from a process until it asks for them: the call, what is asked, and of what.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def tiles_are_permitted(features: str) -> bool:
    """Whether this process may use registers that are tiles, asked once for all its threads."""
    if "+amx-tile" not in features.split(",") or sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def _choose_isa(arch: str, features: str, wanted: str) -> str:
    present = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    available = [isa for isa, needs in _LEVELS[arch] if present.issuperset(needs)]
    if not wanted:
        return available[0]
    known = [isa for isa, _ in _LEVELS[arch]]
    if wanted not in known:
        raise OptionError(f"LITZ_ISA accepts {', '.join(known)} on {arch}, not {wanted!r}")
    if wanted not in available:
        raise UnsupportedPlatform(f"LITZ_ISA={wanted} was asked for, and this processor does not have it.")
    return wanted


def _restrict(features: str, isa: str) -> str:
    """The features with everything wider than `isa` switched off."""
    banned: tuple[str, ...] = ()
    if isa in ("avx2", "sse2"):
        banned += ("avx512", "avx10", "amx", "evex512")
    if isa == "sse2":
        banned += ("avx", "fma", "f16c", "vaes", "vpclmulqdq", "xop")
    return _without(features, banned)


def _without(features: str, banned: tuple[str, ...]) -> str:
    if not banned:
        return features
    return ",".join(f"-{item[1:]}" if item[1:].startswith(banned) else item for item in features.split(","))


def _cache_bytes(level: int, fallback: int) -> int:
    """Size of the first core's data cache of that level, as Linux tells it."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((folder / "level").read_text()) != level or (folder / "type").read_text().strip() == "Instruction":
                continue
            size = (folder / "size").read_text().strip()
            return int(size[:-1]) * 1024 if size.endswith("K") else int(size[:-1]) * 1024**2
        except (OSError, ValueError):
            continue
    return fallback


def _function_bytes(vector_bytes: int) -> tuple[int, ...]:
    """SLEEF has each function in several widths, and libtorch exports those that ATen uses on this architecture."""
    sizes = (size for size in (64, 32, 16) if size <= vector_bytes)
    return tuple(size for size in sizes if torch_exports(f"Sleef_sinf{size // 4}_u10"))
