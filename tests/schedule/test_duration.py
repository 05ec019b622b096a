"""The time that a program is said to take: its products by their operations, all else by the bytes it touches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.capture.joint import trace_joint
from litz.context import Context
from litz.graph.partition.cost import Ceilings
from litz.graph.partition.split import Policy
from litz.loop.ir import Program
from litz.ops.decompose import decompositions
from litz.options import Options
from litz.peak_budget import foretell
from litz.pipeline import scheduled
from litz.schedule.duration import duration
from litz.target import detect

BY_BYTES, BY_FLOPS = Ceilings(math.inf, 1.0), Ceilings(1.0, math.inf)


def programs(function: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> tuple[Program, Program]:
    inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    joint = trace_joint(function, inputs, None, decompositions(), True)
    return foretell(joint, Policy(), Context(Options.parse(options), detect()), scheduled).programs


def test_a_fused_kernel_touches_each_of_its_buffers_once() -> None:
    forward, backward = programs(lambda x, y: (x * y).exp(), (300, 7), (300, 7))
    assert duration(forward, BY_BYTES) == 3 * 300 * 7 * 4
    # The tangent, the result, x, y, and two gradients.
    assert duration(backward, BY_BYTES) == 6 * 300 * 7 * 4
    assert duration(forward, BY_FLOPS) == 0.0


def test_what_is_spread_is_read_once() -> None:
    forward, _ = programs(lambda x, y: x * y, (300, 8), (8,))
    assert duration(forward, BY_BYTES) == (2 * 300 * 8 + 8) * 4


@pytest.mark.parametrize("matmul", ["generate", "library"])
def test_products_count_their_operations(matmul: str) -> None:
    forward, backward = programs(lambda x, w: x @ w, (64, 96), (96, 128), matmul=matmul)
    assert duration(forward, BY_FLOPS) == 2 * 64 * 96 * 128
    assert duration(backward, BY_FLOPS) == 4 * 64 * 96 * 128
    assert duration(forward, BY_BYTES) == (64 * 96 + 96 * 128 + 64 * 128) * 4
