"""A kernel for GPUs, as it is kept: PTX, which any later GPU's driver reads, and machine code of some GPUs.

GPUs are told apart by their level, ten times what NVIDIA calls the compute capability: 90 is a Hopper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from litz.errors import UnsupportedPlatform

_ENTRY = re.compile(rb"\.entry (\w+)\(")
_LEVEL = re.compile(rb"\.target sm_(\d+)")


@dataclass(frozen=True)
class GpuCode:
    ptx: bytes
    cubins: tuple[tuple[int, bytes], ...] = ()  # machine code, and the level it is for

    @property
    def name(self) -> bytes:
        """Of the kernel."""
        found = _ENTRY.search(self.ptx)
        assert found is not None, "a module has one kernel"
        return found[1]

    @property
    def least_level(self) -> int:
        """Of the GPUs for which drivers can make machine code of the PTX."""
        found = _LEVEL.search(self.ptx)
        assert found is not None, "PTX says what it is for"
        return int(found[1])

    def cubin_for(self, level: int) -> bytes | None:
        """The machine code nearest to what a GPU has: a GPU runs that of earlier ones of its own generation too."""
        fitting = {made_for: cubin for made_for, cubin in self.cubins if level // 10 * 10 <= made_for <= level}
        return fitting[max(fitting)] if fitting else None

    def check_runs_on(self, level: int) -> None:
        """Raises where a GPU of that level cannot run the kernel."""
        if level >= self.least_level or self.cubin_for(level) is not None:
            return
        made_for = sorted({self.least_level, *(made_for for made_for, _ in self.cubins)})
        raise UnsupportedPlatform(
            f"the code is for GPUs of compute capability {capability(self.least_level)} or newer, "
            f"and this one has {capability(level)}.",
            hint=f"compile for such a GPU, on one: this was compiled for {', '.join(map(capability, made_for))}",
        )

    def __len__(self) -> int:
        """Bytes."""
        return len(self.ptx) + sum(len(cubin) for _, cubin in self.cubins)


def capability(level: int) -> str:
    """The level as NVIDIA writes it."""
    return f"{level // 10}.{level % 10}"


__all__ = ["GpuCode", "capability"]
