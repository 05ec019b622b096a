"""What every test here asks: the package does with Litz what it does in eager, and Litz did compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import litz
from litz.report import HISTORY, Report


@contextmanager
def compiled_whole(most: int | None = None) -> Iterator[list[Report]]:
    """Within it something is compiled, nothing is left to eager, and at most `most` graphs are made."""
    torch._dynamo.reset()
    HISTORY.clear()
    found: list[Report] = []
    yield found
    found += litz.reports()
    assert found, "nothing was compiled"
    left = [(report.occasion.source, report.left_to_eager) for report in found if report.left_to_eager]
    assert not left, f"left to eager: {left}"
    per_size = [note for report in found for note in report.notes if "combination of sizes" in note]
    assert not per_size, per_size
    if most is not None:
        assert len(found) <= most, "\n".join(report.title for report in found)


def close(mine: Any, eager: Any, factor: float = 1.0) -> None:
    torch.testing.assert_close(mine, eager, rtol=2e-4 * factor, atol=2e-5 * factor)


def twins(make: Callable[[], torch.nn.Module]) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Two modules with the same weights: one to compile, one to leave as it is."""
    torch.manual_seed(0)
    first, second = make(), make()
    second.load_state_dict(first.state_dict())
    return first, second


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
