"""`time_kernels` shows every step of a program once, forward and backward, and leaves results as they are."""

from __future__ import annotations

import torch

from litz.debug.time_kernels import time_kernels


def test_every_step_has_its_time() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(torch.tanh(x) @ w).square().sum()

    x, w = torch.randn(8, 8).double(), torch.randn(8, 8).double().requires_grad_()
    found = time_kernels(loss, x, w, after=lambda result: result.backward(), runs=2)
    assert {t.program for t in found.steps} == {0, 1}
    assert all(0 < t.microseconds < float("inf") for t in found.steps)
    assert any(t.name.startswith("call") for t in found.steps) and any("loops" in t.name for t in found.steps)
    assert str(found).count("µs") == len(found.steps) + 1
    (exact,) = torch.autograd.grad(loss(x, w), w)
    assert w.grad is not None
    torch.testing.assert_close(w.grad, 3 * exact)
