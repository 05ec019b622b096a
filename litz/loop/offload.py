"""Memory that is not in memory: an operator of Litz's own that puts a tensor in a file.

In: a tensor, a folder. Out: the same tensor, mapped from a file that has no name any more. The system writes it to disk
when it wants the memory, and reads it back when somebody reads the tensor; when the last who holds the tensor lets go
of it, the file is gone, written or not.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from litz.errors import CallError
from litz.loop.draw import LIBRARY

LIBRARY.define("offload(Tensor x, str folder) -> Tensor")


def usual_folder() -> str:
    """One that is on a disk, where there is a choice: what is for temporary files may be memory itself."""
    disk = Path("/var/tmp")
    return str(disk) if os.access(disk, os.W_OK) else tempfile.gettempdir()


def _offload(x: torch.Tensor, folder: str) -> torch.Tensor:
    size = x.numel() * x.element_size()
    if not size:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    elements = x.as_strided((x.numel(),), (1,), x.storage_offset())
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            _write(file.fileno(), memoryview(elements.view(torch.uint8).numpy()))
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise CallError(
            f"{size:,} bytes could not be put in a file in {folder}: {error.strerror or error}",
            hint="name a folder with more room: options={'offload': '/scratch'}",
        ) from error
    # The tensor holds the mapping, and the mapping the file.
    return torch.frombuffer(mapped, dtype=torch.uint8).view(x.dtype).as_strided(x.shape, x.stride())


def _write(file: int, data: Any) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(file, data[at:], at)


def _offload_meta(x: torch.Tensor, folder: str) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


LIBRARY.impl("offload", _offload, "CPU")
LIBRARY.impl("offload", _offload_meta, "Meta")
OFFLOAD = torch.ops.litz.offload.default
NAME = "litz::offload"

__all__ = ["NAME", "OFFLOAD", "usual_folder"]
