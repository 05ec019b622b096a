"""How wide a vector is in memory, on machines that do not say it of each type.

Which axis of a kernel runs across its lanes is found in `loop/lanes.py`.
"""

from __future__ import annotations

from litz.loop.lanes import vector_axis

ACCESS_BYTES = 16  # that a thread of a GPU reads or writes at once
WARP = 32  # threads of a GPU that go in step

__all__ = ["ACCESS_BYTES", "WARP", "vector_axis"]
