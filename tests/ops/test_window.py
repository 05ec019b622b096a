"""Windows: steps that no position sees inside the image are not walked."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from litz.loop.expr import Axis, expr
from litz.loop.ir import Kernel
from litz.ops.window import SlidingWindow
from tests.ops.lowering import lowered

IMAGE = torch.randn(2, 16, 4, 4)
LAST = IMAGE.to(memory_format=torch.channels_last)
# function, input, the most steps that are worth walking
CASES = {
    "average": (lambda x: F.avg_pool2d(x, 1280, ceil_mode=True), IMAGE, 16),
    "maximum": (lambda x: F.max_pool2d(x, 64, 1, 32), IMAGE, 64 * 64 // 2),
    "depthwise": (lambda x: F.conv2d(x[:, :, :1, :1], torch.ones(16, 1, 5, 5), padding=2, groups=16), LAST, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_no_position_sees_is_not_walked(name: str) -> None:
    function, image, most = CASES[name]
    made, _ = lowered(function, (image,))
    walked = [math.prod(a.size.int for a in s.reduced) for s in made.program.steps if isinstance(s, Kernel)]
    assert max(walked) <= most


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("window", [(3, 1, 1, 1), (7, 2, 3, 1), (3, 1, 4, 2), (2, 3, 2, 4), (9, 1, 0, 1)])
def test_every_element_that_is_seen_is_walked(size: int, window: tuple[int, int, int, int]) -> None:
    steps, stride, padding, dilation = window
    positions = (size + 2 * padding - (steps - 1) * dilation - 1) // stride + 1
    if positions < 1:
        return
    w = SlidingWindow((steps,), (stride,), (padding,), (dilation,))
    out = expr(Axis("o", positions)) if positions > 1 else expr(0)
    (visible,) = w.visible((out,), (expr(size),))
    seen = {k for k in range(steps) for o in range(positions) if 0 <= o * stride + k * dilation - padding < size}
    assert seen <= set(visible) <= set(range(steps))
    assert not seen or (min(seen) == visible[0] and max(seen) == visible[-1])
