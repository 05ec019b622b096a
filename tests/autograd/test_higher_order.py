"""Checkpoint, other higher-order operators, custom autograd functions, hooks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.autograd.both import Route, agrees, assert_compiled, both, grad, through_compile


@both
def test_checkpoint(route: Route) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

        def inner(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(F.gelu(self.first(x)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + checkpoint(self.inner, x, use_reentrant=False)

    torch.manual_seed(0)
    agrees(route, Net(), lambda: [grad(4, 8)], rtol=1e-4, atol=1e-5)


@both
def test_checkpoint_with_dropout(route: Route) -> None:
    """The recompute draws the same numbers: here it does not draw again at all."""

    def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout((x @ w).sin(), 0.4)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, x, w, use_reentrant=False) * 2

    agrees(route, function, lambda: [grad(4, 8), grad(8, 8)], compiled=False, rtol=1e-4, atol=1e-5)


def _drops(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 2, 0.4) * x


NESTED = {
    "a checkpoint in a checkpoint": lambda x: checkpoint(
        lambda u: checkpoint(_drops, u.sin(), use_reentrant=False).cos(), x, use_reentrant=False
    ),
    "three": lambda x: checkpoint(
        lambda u: checkpoint(lambda v: checkpoint(_drops, v * 2, use_reentrant=False), u.sin(), use_reentrant=False),
        x,
        use_reentrant=False,
    ),
    "a region compiled once": lambda x: _region(_region(x)),
    "a checkpoint in such a region": lambda x: _checkpointed_region(x) + _checkpointed_region(x.sin()),
    "a region in a checkpoint": lambda x: checkpoint(lambda u: _region(u.sin()), x, use_reentrant=False),
}


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.sin(), 0.4) + 1


@torch.compiler.nested_compile_region
def _checkpointed_region(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(_drops, x, use_reentrant=False)


@pytest.mark.parametrize("name", NESTED)
def test_one_in_another(name: str) -> None:
    """Each is written out, however deep: the random numbers of eager, and nothing left to it."""
    function = NESTED[name]
    agrees(through_compile, lambda x: function(x) * 2, lambda: [grad(4, 8)], rtol=1e-4, atol=1e-5)


def test_cond() -> None:
    """Its branches are differentiated by PyTorch; what stands around it is compiled. (Called directly, without
    Dynamo to lift its branches out, it cannot be traced.)"""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x * 2,)) * 3

    agrees(through_compile, function, lambda: [grad(4, 3)])


class Clipped(torch.autograd.Function):
    """A gradient that is not the derivative, so that it shows whose backward ran."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, limit: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.exp()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (tangent * x * 10).clamp(-ctx.limit, ctx.limit), None


@both
def test_custom_autograd_functions(route: Route) -> None:
    agrees(route, lambda x, w: Clipped.apply(x * w, 0.5) * w, lambda: [grad(4, 3), grad(3)])


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return None


@both
def test_a_custom_function_that_passes_no_gradient_on(route: Route) -> None:
    agrees(route, lambda x: NoGradient.apply(x), lambda: [grad(4, 3)])


@both
def test_tensor_hooks_on_inputs(route: Route) -> None:
    fast = route(lambda x, w: (x * w).sin())
    for run in (fast, lambda x, w: (x * w).sin()):
        torch.manual_seed(1)
        x, w = grad(4, 3), grad(3)
        seen: list[torch.Tensor] = []
        w.register_hook(seen.append)
        w.register_hook(lambda g: g * 3)
        run(x, w).sum().backward()
        if run is fast:
            found = seen[0], w.grad
    torch.testing.assert_close(found, (seen[0], w.grad))


@both
def test_tensor_hooks_on_outputs(route: Route) -> None:
    fast = route(lambda x, w: (x * w).sin())
    x, w = grad(4, 3), grad(3)
    y = fast(x, w)
    y.register_hook(lambda g: g * 5)
    y.retain_grad()
    y.sum().backward()
    torch.testing.assert_close(w.grad, (5 * (x * w).cos() * x).sum(0).detach())
    assert y.grad is not None


@both
def test_tensor_hooks_inside(route: Route) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        y.register_hook(lambda g: g * 3)
        return y.sin()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(route, function, lambda: [grad(4, 3), grad(3)], compiled=False)


@both
def test_module_hooks(route: Route) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    model[0].register_forward_hook(lambda m, args, out: out * 2)
    model[1].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    agrees(route, model, lambda: [grad(3, 4)])


@both
def test_module_backward_hooks(route: Route) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    model[2].register_full_backward_hook(lambda m, gin, gout: (gin[0] * 2,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(route, model, lambda: [grad(3, 4)], compiled=False)


@both
def test_a_tensor_of_the_closure_that_requires_grad(route: Route) -> None:
    """Dynamo makes it an input. Called directly, it is no argument, and so is left to eager: no gradient is lost."""
    w = grad(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * w

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = route(function)(torch.ones(4, 3))
    y.sum().backward()
    torch.testing.assert_close(w.grad, torch.full((3,), 4.0))


@both
def test_everything_at_once(route: Route) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.w = nn.Parameter(torch.randn(6, 6))
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.norm(x) @ self.w
            self.seen.add_(y.detach().mean(0))
            z = F.dropout(Clipped.apply(y, 1.0), 0.5)
            return {"z": z, "rows": z.unbind(0)[:2], "w": self.w, "x": x[1:]}

    torch.manual_seed(0)
    eager, mine = Net(), Net()
    mine.load_state_dict(eager.state_dict())
    fast = route(mine)
    for seed in range(2):
        grads = []
        for model, run in ((eager, eager), (mine, fast)):
            torch.manual_seed(seed)
            x = grad(8, 6)
            out = run(x)
            total = out["z"].sum() + out["rows"][1].square().sum() + out["w"].sum() + out["x"].exp().sum()
            grads.append(torch.autograd.grad(total, [x, *model.parameters()]))
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.seen, eager.seen, rtol=1e-4, atol=1e-5)
    assert_compiled()


class Kept(torch.autograd.Function):
    """Saves in every way: a tensor, another on the context itself, a size and a number; one result has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        ctx.sine, ctx.rows, ctx.scale = x.sin(), x.shape[0], scale
        largest = x.argmax(-1)
        ctx.mark_non_differentiable(largest)
        return ctx.sine * scale, largest

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return tangent * (x.cos() + ctx.sine) * ctx.rows * ctx.scale, None


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_function_of_the_users_own_at_any_size(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, largest = Kept.apply(x * 2, 0.5)
        return y.exp(), largest + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    for rows in (3, 5, 8):
        agrees(lambda _, made=compiled: made, function, lambda n=rows: [grad(n, 4)], calls=1)
