"""Programs with `torch.func` transforms inside, each as a function and what makes its inputs.

`PROGRAMS` maps a name to a builder; `test_transforms.py` puts each through both doors and compares with eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn import functional as F

Program = tuple[Callable[..., Any], Callable[[], Sequence[Any]]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(build: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[build.__name__] = build
    return build


def given(*shapes: tuple[int, ...], needs_grad: bool = False) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(shape, requires_grad=needs_grad) for shape in shapes]


def detached(module: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach() for k, v in module.named_parameters()}


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.sum() + x.pow(3)


def total(x: torch.Tensor) -> torch.Tensor:
    return wave(x).sum()


# -- one transform, and pairs of them ------------------------------------------------------------------
@program
def grad_of_sum() -> Program:
    return grad(total), given((5,))


@program
def grad_and_value_with_aux() -> Program:
    def function(x: torch.Tensor) -> Any:
        return grad_and_value(lambda v: (total(v), {"twice": v * 2}), has_aux=True)(x)

    return function, given((5,))


@program
def grad_of_grad() -> Program:
    return grad(lambda x: grad(total)(x).square().sum()), given((5,))


@program
def third_derivative() -> Program:
    return vmap(grad(grad(grad(lambda x: x.sin() * x.exp())))), given((6,))


@program
def vjp_twice_called() -> Program:
    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        y, back = vjp(wave, x)
        return y, back(a)[0], back(b)[0]

    return function, given((5,), (5,), (5,))


@program
def vjp_of_several() -> Program:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        _, back = vjp(lambda a, b: {"m": a @ b, "s": a.sum()}, x, y)
        return back({"m": torch.ones(3, 5), "s": torch.tensor(2.0)})

    return function, given((3, 4), (4, 5))


@program
def jvp_of_net() -> Program:
    net = small_net().requires_grad_(False)
    return lambda x, t: jvp(net, (x,), (t,)), given((6, 4), (6, 4))


@program
def jacrev_of_net() -> Program:
    net = small_net().requires_grad_(False)
    return jacrev(net), given((2, 4))


@program
def jacrev_chunked() -> Program:
    return lambda x: jacrev(wave, chunk_size=2)(x), given((5,))


@program
def jacfwd_of_two() -> Program:
    return lambda x, y: jacfwd(lambda a, b: a.outer(b).sin(), argnums=(0, 1))(x, y), given((3,), (4,))


@program
def jacfwd_with_aux() -> Program:
    return lambda x: jacfwd(lambda v: (wave(v), v.cos()), has_aux=True)(x), given((4,))


@program
def hessian_of_net() -> Program:
    net = small_net().requires_grad_(False)
    return hessian(lambda x: net(x).square().sum()), given((4,))


@program
def hessian_over_parameters() -> Program:
    net = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid(), nn.Linear(2, 2))
    parameters = detached(net)

    def function(p: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        return hessian(lambda q: functional_call(net, q, (x,)).square().mean())(p)

    return function, lambda: [parameters, torch.randn(5, 3)]


@program
def forward_over_reverse() -> Program:
    return lambda x, t: jvp(grad(total), (x,), (t,))[1], given((6,), (6,))


@program
def reverse_over_forward() -> Program:
    return lambda x, t: grad(lambda v: jvp(total, (v,), (t,))[1])(x), given((6,), (6,))


@program
def forward_over_forward() -> Program:
    return lambda x, t: jvp(lambda v: jvp(wave, (v,), (t,))[1], (x,), (t,)), given((6,), (6,))


@program
def reverse_over_reverse() -> Program:
    return lambda x, t: vjp(grad(total), x)[1](t)[0], given((6,), (6,))


@program
def jacobians_nested() -> Program:
    return lambda x: (jacrev(jacfwd(wave))(x), jacfwd(jacrev(wave))(x), jacrev(jacrev(wave))(x)), given((3,))


@program
def linearized() -> Program:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        y, along = linearize(wave, x)
        return y, along(t), along(t * 2)

    return function, given((5,), (5,))


# -- vmap ----------------------------------------------------------------------------------------------
@program
def vmap_over_two() -> Program:
    return vmap(lambda a, b: (a * b).softmax(0), in_dims=(0, 1), out_dims=1), given((3, 5), (5, 3))


@program
def vmap_nested() -> Program:
    inner = vmap(lambda a, b: (a - b).square().sum(), in_dims=(None, 0))
    return vmap(inner, in_dims=(0, None)), given((4, 3), (5, 3))


@program
def vmap_chunked() -> Program:
    return lambda x: vmap(wave, chunk_size=2)(x), given((5, 3))


@program
def vmap_of_convolution() -> Program:
    return (
        vmap(lambda x, w: F.conv2d(x[None], w, padding=1).relu()[0]),
        given((3, 2, 6, 6), (3, 4, 2, 3, 3)),
    )


@program
def vmap_writes_inside() -> Program:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y[1:].add_(x[:-1])
        y[0] = x[-1]
        return y.index_add(0, torch.tensor([0, 0, 2]), x[:3])

    return vmap(inner), given((4, 5))


@program
def vmap_same_randomness() -> Program:
    return vmap(lambda x: x + torch.randn(4) * F.dropout(x, 0.5), randomness="same"), given((3, 4))


@program
def vmap_different_randomness() -> Program:
    return vmap(lambda x: x * torch.rand(4) + torch.randn_like(x), randomness="different"), given((3, 4))


@program
def vmap_dropout_different() -> Program:
    return vmap(lambda x: F.dropout(x, 0.5), randomness="different"), given((6, 40))


@program
def vmap_dropout_same() -> Program:
    return vmap(lambda x: F.dropout(x, 0.5), randomness="same"), given((6, 40))


@program
def vmap_bernoulli_in_place() -> Program:
    return vmap(lambda x: torch.empty_like(x).bernoulli_(0.3) + x, randomness="different"), given((6, 10))


@program
def ensemble() -> Program:
    nets = [small_net().requires_grad_(False) for _ in range(3)]
    parameters, buffers = stack_module_state(nets)
    parameters = {k: v.detach() for k, v in parameters.items()}
    base = small_net()

    def function(p: Any, x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda q, b, v: functional_call(base, (q, b), (v,)), in_dims=(0, 0, None))(p, buffers, x)

    return function, lambda: [parameters, torch.randn(5, 4)]


@program
def ensemble_trained() -> Program:
    nets = [small_net() for _ in range(3)]
    parameters, _ = stack_module_state(nets)
    base = small_net()

    def function(p: Any, x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda q, v: functional_call(base, q, (v,)), in_dims=(0, None))(p, x).square().mean()

    def make() -> list[Any]:
        return [{k: v.detach().clone().requires_grad_() for k, v in parameters.items()}, torch.randn(5, 4)]

    return function, make


# -- per-sample gradients ------------------------------------------------------------------------------
def per_sample(net: nn.Module, data: Callable[[], list[Any]], loss: Callable[..., torch.Tensor]) -> Program:
    parameters = detached(net)

    def one(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(net, p, (x[None],)), y[None])

    return (
        lambda p, x, y: vmap(grad(one), in_dims=(None, 0, 0))(p, x, y),
        lambda: [{k: v.clone() for k, v in parameters.items()}, *data()],
    )


def classes(*shape: int, many: int = 3) -> Callable[[], list[Any]]:
    return lambda: [torch.randn(shape), torch.randint(0, many, (shape[0],))]


@program
def per_sample_linear() -> Program:
    return per_sample(small_net(), classes(5, 4), F.cross_entropy)


@program
def per_sample_convolution() -> Program:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)
    )
    return per_sample(net, classes(4, 2, 6, 6), F.cross_entropy)


@program
def per_sample_attention() -> Program:
    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return per_sample(net, classes(3, 5, 8), lambda out, y: F.cross_entropy(out.mean(1), y))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = (x.new_zeros(x.shape[0], 6), x.new_zeros(x.shape[0], 6))
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.out(state[0])


@program
def per_sample_recurrent() -> Program:
    return per_sample(Recurrent(), classes(3, 4, 4), F.cross_entropy)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(10, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embed(x)).mean(1))


@program
def per_sample_embedding() -> Program:
    return per_sample(Tokens(), lambda: [torch.randint(0, 10, (4, 5)), torch.randint(0, 3, (4,))], F.cross_entropy)


@program
def per_sample_norms() -> Program:
    net = small_net()
    parameters = detached(net)

    def one(p: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, p, (x,)).square().sum()

    def clipped(p: Any, x: torch.Tensor) -> Any:
        found = vmap(grad(one), in_dims=(None, 0))(p, x)
        norms = sum(g.flatten(1).square().sum(1) for g in found.values()).sqrt()
        scale = (1.0 / norms).clamp(max=1.0)
        return {k: torch.einsum("b,b...->...", scale, g) for k, g in found.items()}

    return clipped, lambda: [parameters, torch.randn(6, 4)]


# -- inside a training graph ---------------------------------------------------------------------------
@program
def gradient_penalty() -> Program:
    critic = small_net()

    def function(x: torch.Tensor) -> torch.Tensor:
        inner = vmap(grad(lambda v: critic(v).sum()))(x)
        return critic(x).mean() + (inner.norm(dim=1) - 1).square().mean()

    return Owned(critic, function), given((5, 4))


class Owned(nn.Module):
    """A function and the module whose parameters it trains."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@program
def penalty_on_input() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return grad(lambda v: (v @ w).tanh().sum())(x).square().sum() + (x @ w).sum()

    return function, given((3, 4), (4, 2), needs_grad=True)


@program
def hessian_vector_product_trained() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return jvp(grad(lambda v: (v @ w).tanh().square().sum()), (x,), (t,))[1]

    return function, given((4,), (4, 3), (4,), needs_grad=True)


@program
def jacobian_trained() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return jacrev(lambda v: (v @ w).sigmoid())(x).square().sum() + jacfwd(lambda v: (v @ w).exp())(x).mean()

    return function, given((4,), (4, 3), needs_grad=True)


@program
def vmap_trained() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return vmap(lambda v: F.layer_norm(v @ w, (3,)).relu())(x)

    return function, given((5, 4), (4, 3), needs_grad=True)


@program
def maml() -> Program:
    net = small_net()
    parameters = detached(net)

    def loss(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(functional_call(net, p, (x,)), y)

    def adapted(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        fast = p
        for _ in range(2):
            step = grad(loss)(fast, x, y)
            fast = {k: v - 0.1 * step[k] for k, v in fast.items()}
        return loss(fast, x, y)

    def function(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return vmap(adapted, in_dims=(None, 0, 0))(p, x, y).mean()

    def make() -> list[Any]:
        own = {k: v.clone().requires_grad_() for k, v in parameters.items()}
        return [own, torch.randn(3, 5, 4), torch.randn(3, 5, 3)]

    return function, make


@program
def maml_by_func() -> Program:
    function, make = maml()
    return grad(function), lambda: [{k: v.detach() for k, v in make()[0].items()}, *make()[1:]]


@program
def implicit_layer() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(x)
        for _ in range(4):
            z = (z @ w + x).tanh()
        _, back = vjp(lambda v: (v @ w + x).tanh(), z.detach())
        return z + back(torch.ones_like(z))[0]

    return function, given((3, 4), (4, 4), needs_grad=True)


# -- buffers, modes ------------------------------------------------------------------------------------
@program
def jacobian_with_buffers() -> Program:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).eval().requires_grad_(False)
    net[1].running_mean.uniform_()
    return jacrev(lambda x: net(x).sum(0)), given((3, 4))


@program
def grad_through_batch_norm() -> Program:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2))
    parameters = detached(net)

    def function(p: Any, x: torch.Tensor) -> Any:
        return grad(lambda q: functional_call(net, q, (x,)).square().mean())(p)

    return function, lambda: [parameters, torch.randn(7, 4)]


@program
def grad_through_running_statistics() -> Program:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    parameters = detached(net)

    def function(p: Any, buffers: Any, x: torch.Tensor) -> Any:
        def loss(q: Any) -> Any:
            own = {k: v.clone() for k, v in buffers.items()}
            return functional_call(net, {**q, **own}, (x,)).square().mean(), own

        return grad(loss, has_aux=True)(p)

    return function, lambda: [parameters, dict(net.named_buffers()), torch.randn(7, 4)]


@program
def vmap_over_batch_norm() -> Program:
    norm = nn.BatchNorm1d(4, track_running_stats=False).requires_grad_(False)
    return vmap(norm), given((3, 5, 4))


@program
def grad_under_autocast() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return grad(lambda v: (v @ w).float().sum())(x)

    return function, given((3, 4), (4, 2))


@program
def grad_inside_no_grad() -> Program:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            a = grad(total)(x)
        return a, grad(total)(x) * a

    return function, given((4,))


@program
def no_grad_inside_grad() -> Program:
    def inner(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.abs().max()
        return (x / scale).sin().sum()

    return grad(inner), given((4,))


@program
def detach_inside_grad() -> Program:
    return grad(lambda x: (x * x.detach().exp()).sum()), given((4,))


@program
def custom_function_under_grad() -> Program:
    return grad(lambda x: Cubed.apply(x).sum()), given((4,))


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return given * 3 * x**2

    generate_vmap_rule = True


@program
def custom_function_under_vmap() -> Program:
    return vmap(grad(lambda x: Cubed.apply(x).sum())), given((3, 4))


@program
def writes_to_an_argument_beside_grad() -> Program:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(1)
        g = grad(total)(x)
        state.mul_(2)
        return g + state

    return function, given((4,), (4,))


@program
def writes_inside_grad() -> Program:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[1:].mul_(x[:-1])
        return y.exp_().sum()

    return grad(inner), given((5,))


@program
def views_inside_vmap_and_grad() -> Program:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return (x.t().reshape(-1)[::2] * x.flatten()[1::2]).sum()

    return vmap(grad(inner)), given((3, 4, 4))


@program
def inner_optimizer_loop() -> Program:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        momentum = torch.zeros_like(w)
        for _ in range(3):
            g = grad(lambda v: (x @ v).square().mean())(w)
            momentum = 0.9 * momentum + g
            w = w - 0.1 * momentum
        return w

    return function, given((5, 4), (4,))


@program
def neural_tangent_kernel() -> Program:
    net = small_net()
    parameters = detached(net)

    def function(p: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def jacobian(x: torch.Tensor) -> Any:
            return jacrev(lambda q: functional_call(net, q, (x,)))(p)

        left, right = vmap(jacobian)(a), vmap(jacobian)(b)
        return sum(torch.einsum("nof,mpf->nmop", left[k].flatten(2), right[k].flatten(2)) for k in left)

    return function, lambda: [parameters, torch.randn(3, 4), torch.randn(2, 4)]


@program
def laplacian() -> Program:
    net = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1)).requires_grad_(False)

    def one(x: torch.Tensor) -> torch.Tensor:
        def along(v: torch.Tensor) -> torch.Tensor:
            return (jvp(grad(lambda u: net(u).squeeze()), (x,), (v,))[1] * v).sum()

        return vmap(along)(torch.eye(3)).sum()

    return vmap(one), given((4, 3))


@program
def residual_of_a_pde() -> Program:
    """Training on derivatives with respect to the input, as physics-informed networks do."""
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def u(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return net(torch.stack([t, x])).squeeze()

    def residual(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return grad(u, 0)(t, x) - grad(grad(u, 1), 1)(t, x)

    return Owned(net, lambda t, x: vmap(residual)(t, x).square().mean()), given((6,), (6,))


@program
def integers_and_booleans_beside() -> Program:
    def function(x: torch.Tensor, index: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return vmap(grad(lambda v, i, k: torch.where(k, v.index_select(0, i), 0.0).prod()))(x, index, keep)

    return function, lambda: [torch.randn(3, 5), torch.randint(0, 5, (3, 4)), torch.rand(3, 4) > 0.3]


@program
def sorts_and_scans() -> Program:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return (x.sort().values.cumsum(0) * x.topk(2).values.sum()).logsumexp(0)

    return vmap(grad(inner)), given((3, 5))


@program
def linear_algebra() -> Program:
    def inner(a: torch.Tensor) -> torch.Tensor:
        m = a @ a.t() + 3 * torch.eye(3)
        return torch.linalg.cholesky(m).diagonal().log().sum() + torch.linalg.solve(m, a).sum()

    return vmap(grad(inner)), given((2, 3, 3))


@program
def complex_jacobian() -> Program:
    def inner(x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.view(-1, 2).contiguous())
        return torch.view_as_real(z * z.conj() + z.exp()).flatten()

    return jacrev(inner), given((6,))
