"""The backward: twice, kept, differentiated again, accumulated; tangents that are absent, odd or wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from litz.errors import CallError
from tests.autograd.both import Route, agrees, assert_compiled, both, grad


def curve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sin().exp()


@both
def test_outputs_that_need_no_grad(route: Route) -> None:
    def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, y * 3, x.argmax(), x > 0, x.detach() * 2

    agrees(route, mixed, lambda: [grad(4, 3), torch.randn(3)])


@both
def test_non_tensor_outputs(route: Route) -> None:
    agrees(route, lambda x: (x * 2, 3, None, "text", 2.5, x.shape[0]), lambda: [grad(4, 3)])


@both
def test_nested_containers(route: Route) -> None:
    def nested(d: dict[str, Any]) -> dict[str, Any]:
        return {"a": [d["x"] * 2, (d["y"][0].sin(),)], "b": {"c": d["x"].sum()}, "n": 4}

    agrees(route, nested, lambda: [{"x": grad(4, 3), "y": [grad(2), torch.randn(2)]}])


@both
def test_retain_graph(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    y = route(curve)(x, w).sum()
    first = torch.autograd.grad(y, [x, w], retain_graph=True)
    kept = [g.clone() for g in first]
    for _ in range(2):
        again = torch.autograd.grad(y, [x, w], retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(again, kept, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True)), "a gradient was overwritten later"
    torch.autograd.grad(y, [x, w])


@both
def test_backward_twice_without_retain_graph(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    y = route(curve)(x, w).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@both
def test_double_backward_is_a_clear_error(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    y = route(curve)(x, w).sum()
    (g,) = torch.autograd.grad(y, [x], create_graph=True)
    (want,) = torch.autograd.grad(curve(x, w).sum(), [x])
    torch.testing.assert_close(g, want)
    with pytest.raises(CallError, match="double backward"):
        g.sum().backward()


@both
def test_create_graph_alone_works(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    route(curve)(x, w).sum().backward(create_graph=True)
    found = x.grad.detach().clone(), w.grad.detach().clone()
    x.grad = w.grad = None
    curve(x, w).sum().backward()
    torch.testing.assert_close(found, (x.grad, w.grad))


@both
def test_a_tangent_of_the_wrong_shape(route: Route) -> None:
    y = route(curve)(grad(4, 3), grad(3))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.ones(3, 4))


@both
def test_a_tangent_of_another_type(route: Route) -> None:
    """Eager casts a real tangent to its result's type; so does this. A complex one it refuses."""
    x, w = grad(4, 3), grad(3)
    tangent = torch.rand(4, 3, dtype=torch.float64)
    found = []
    for run in (route(curve), curve):
        x.grad = None
        run(x, w).backward(tangent)
        found.append(x.grad)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(*found)


@both
def test_tangents_in_other_layouts(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    fast = route(curve)
    base = torch.rand(3, 4)
    for tangent in (base.t(), base[:1, :3].expand(4, 3), torch.rand(8, 6)[::2, ::2], torch.rand(4, 3)):
        got = torch.autograd.grad(fast(x, w), [x, w], tangent)
        want = torch.autograd.grad(curve(x, w), [x, w], tangent)
        torch.testing.assert_close(got, want)


@both
def test_unused_outputs(route: Route) -> None:
    """A result nobody differentiates has no tangent, and what it alone would reach gets no gradient."""

    def three(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * w).sin(), (x * u).exp(), w.square()

    fast = route(three)
    inputs = [grad(4, 3), grad(3), grad(3)]
    for used in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)):
        got, want = (
            torch.autograd.grad(sum(run(*inputs)[i].sum() for i in used), inputs, allow_unused=True)
            for run in (fast, three)
        )
        for mine, theirs in zip(got, want, strict=True):
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                torch.testing.assert_close(mine, theirs)


@both
def test_unused_outputs_that_would_be_infinite(route: Route) -> None:
    """The zero tangent of an unused result must not become NaN on its way."""

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.sqrt()

    x = torch.zeros(3, requires_grad=True)
    (found,) = torch.autograd.grad(route(two)(x)[0].sum(), [x])
    assert torch.equal(found, torch.full((3,), 2.0))


@both
def test_unused_gradients(route: Route) -> None:
    agrees(route, lambda x, w, u: x * w, lambda: [grad(4, 3), torch.randn(3), grad(2)])
    agrees(route, lambda x, w: (x * w.detach(), w > 0), lambda: [grad(4, 3), grad(3)])


@both
def test_gradient_accumulation(route: Route) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    fast = route(model)
    batches = [torch.randn(4, 5) for _ in range(3)]
    grads = []
    for run in (model, fast):
        model.zero_grad()
        for batch in batches:
            run(batch).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-6)
    assert_compiled()


@both
def test_a_saved_input_modified_before_the_backward(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    y = route(curve)(x, w).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@both
def test_a_saved_output_modified_before_the_backward(route: Route) -> None:
    x = grad(4, 3)
    w = grad(3, 5)
    y, z = route(lambda x, w: ((y := x @ w), y.sin()))(x, w)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@both
def test_a_view_of_something_saved_modified_before_the_backward(route: Route) -> None:
    x = grad(4, 3)
    y = route(lambda x: x.sin().exp()[1:])(x)
    with torch.no_grad():
        y.add_(1)
    try:
        (found,) = torch.autograd.grad(y.sum(), [x])
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:  # it may also not depend on what was modified
        (want,) = torch.autograd.grad(x.sin().exp()[1:].sum(), [x])
        torch.testing.assert_close(found, want)


@both
def test_requires_grad_changes(route: Route) -> None:
    fast = route(curve)
    x, w = torch.randn(4, 3), torch.randn(3)
    for need in ((True, False), (False, True), (False, False), (True, True), (True, False)):
        inputs = [t.clone().requires_grad_(n) for t, n in zip((x, w), need, strict=True)]
        y = fast(*inputs)
        assert y.requires_grad == any(need)
        if any(need):
            wanted = [t for t in inputs if t.requires_grad]
            torch.testing.assert_close(
                torch.autograd.grad(y.sum(), wanted), torch.autograd.grad(curve(*inputs).sum(), wanted)
            )


@both
def test_part_of_the_graph_frozen(route: Route) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    fast = route(model)
    x = torch.randn(4, 5)
    fast(x).sum().backward()
    model.zero_grad()
    model[0].weight.requires_grad_(False)
    fast(x).sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None


@both
def test_saved_tensor_hooks_see_what_is_saved(route: Route) -> None:
    packed: list[torch.Tensor] = []
    unpacked: list[int] = []

    def pack(t: torch.Tensor) -> int:
        packed.append(t)
        return len(packed) - 1

    def unpack(i: int) -> torch.Tensor:
        unpacked.append(i)
        return packed[i]

    x, w = grad(4, 3), grad(3)
    fast = route(curve)
    fast(x, w)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = fast(x, w)
    got = torch.autograd.grad(y.sum(), [x, w])
    torch.testing.assert_close(got, torch.autograd.grad(curve(x, w).sum(), [x, w]))
    assert packed and sorted(set(unpacked)) == list(range(len(packed)))
    for before, after in zip(packed, [t.clone() for t in packed], strict=True):
        assert torch.equal(before, after)


Hook = Callable[[Any], Any]
# What is packed, and what is made of it: the values, in another layout or of another type.
HOOKS: dict[str, tuple[Hook, Hook]] = {
    "flattened": (lambda t: (t.reshape(-1).clone(), t.shape), lambda kept: kept[0].view(kept[1])),
    "contiguous": (lambda t: t.contiguous(), lambda t: t),
    "transposed": (lambda t: t.t().contiguous() if t.dim() == 2 else t, lambda t: t.t() if t.dim() == 2 else t),
    "as numbers": (lambda t: t.tolist(), lambda t: torch.tensor(t)),
    "in float64": (lambda t: t.double(), lambda t: t),
    "negated by a bit": (lambda t: -t, lambda t: torch._neg_view(t)),
    "with gaps": (lambda t: torch.stack([t, t], -1), lambda t: t[..., 0]),
}


@both
@pytest.mark.parametrize("hook", HOOKS)
def test_what_hooks_give_back_is_laid_out_as_it_was_saved(route: Route, hook: str) -> None:
    pack, unpack = HOOKS[hook]

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin().t().exp().cumsum(0) * x.sum()

    def run(function: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        if function is product:
            return torch.autograd.grad(function(x, w).sum(), [x, w])
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = function(x, w)
        return torch.autograd.grad(y.sum(), [x, w])

    torch.manual_seed(0)
    w = torch.randn(3, 5) / 5
    fast = route(product)
    for x in (torch.randn(3, 4).t(), torch.randn(4, 6)[:, ::2], torch.randn(4, 1).expand(4, 3), torch.randn(4, 3)):
        torch.testing.assert_close(run(fast, x, w), run(product, x, w), rtol=1e-4, atol=1e-5)


@both
def test_hooks_that_give_back_another_shape_raise(route: Route) -> None:
    x, w = grad(4, 3), grad(3)
    fast = route(curve)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:2]):
        y = fast(x, w)
    with pytest.raises(CallError, match="a hook on saved tensors gave back"):
        y.sum().backward()


def test_the_backward_is_compiled_once_under_the_options_of_the_forward() -> None:
    import litz

    torch._dynamo.reset()
    fast = torch.compile(curve, backend="litz", options={"snapshots": True})
    x, w = grad(4, 3), grad(3)
    y = fast(x, w)
    before = len(litz.last_report().snapshots)
    y.sum().backward()
    after = len(litz.last_report().snapshots)
    assert after > before, "the backward was not compiled with snapshots"
    fast(x, w).sum().backward()
    assert len(litz.last_report().snapshots) == after


def test_the_backward_is_compiled_with_the_forward_if_asked() -> None:
    import litz

    counts = []
    for when in ("lazy", "eager"):
        torch._dynamo.reset()
        x, w = grad(4, 3), grad(3)
        result = torch.compile(curve, backend="litz", options={"backward": when})(x, w)
        before = litz.last_report().kernels
        found = torch.autograd.grad(result.sum(), [x, w])
        torch.testing.assert_close(found, torch.autograd.grad(curve(x, w).sum(), [x, w]))
        counts.append((before, litz.last_report().kernels))
    (lazy, whole), eager = counts
    assert lazy < whole and eager == (whole, whole)
