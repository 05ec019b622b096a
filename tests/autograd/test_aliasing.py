"""Outputs that alias inputs, each other or an intermediate; one tensor twice; overlapping inputs; tied weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from litz.capture.wrappers import Eager
from tests.autograd.both import Route, agrees, assert_compiled, both, grad


@both
def test_outputs_that_alias_inputs(route: Route) -> None:
    agrees(route, lambda x: (x[1:], x.t(), x * 2), lambda: [grad(4, 3)])
    agrees(route, lambda x: (x.view(-1), x.unsqueeze(0), x.exp()), lambda: [grad(4, 3)])
    agrees(route, lambda x, y: (x, y, x + y), lambda: [grad(3), torch.randn(3)])


@both
def test_an_alias_of_a_non_leaf_input(route: Route) -> None:
    def made() -> list:
        leaf = grad(4, 3)
        return [leaf * 2, {"leaves": [leaf]}]

    agrees(route, lambda x: (x[1:], x.t().sin()), made)


@both
def test_detached_aliases_need_no_grad(route: Route) -> None:
    agrees(route, lambda x: (x.detach(), x * 2), lambda: [grad(4, 3)])
    agrees(route, lambda x: ((x * 2).detach(), x * 3), lambda: [grad(4, 3)])

    def half(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.detach(), y[0].detach(), y[0]

    agrees(route, half, lambda: [grad(4, 3)])


@both
def test_outputs_that_alias_each_other(route: Route) -> None:
    def base_and_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[0], y.t()

    def same_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y

    agrees(route, base_and_views, lambda: [grad(4, 3)])
    agrees(route, same_twice, lambda: [grad(4, 3)])


@both
def test_outputs_that_alias_an_intermediate(route: Route) -> None:
    """Views of a tensor that is not returned itself: each one's gradient reaches it."""
    agrees(route, lambda x: (x * 2).unbind(0), lambda: [grad(4, 3)])
    agrees(route, lambda x: (x.exp())[1:3], lambda: [grad(4, 3)])
    agrees(route, lambda x: (x.exp())[1:3].t(), lambda: [grad(4, 3)])

    def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y[1:], y[:2], y.t()[0], y.sum()

    agrees(route, rows, lambda: [grad(4, 3)])
    agrees(route, lambda x: torch.chunk(x * 2, 2, 1), lambda: [grad(4, 6)])
    agrees(route, lambda x: (x * 2).expand(5, 4, 3), lambda: [grad(4, 3)])


@both
def test_aliases_of_an_intermediate_that_is_mutated_later(route: Route) -> None:
    def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        first = y[0]
        y.mul_(3)
        return first, y[1:]

    agrees(route, rows, lambda: [grad(4, 3)])


@both
def test_outputs_may_be_modified_by_the_user(route: Route) -> None:
    def program(fast: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = fast(x)
        y.mul_(2)
        z.add_(1)
        return torch.autograd.grad((y.sum() + z.sum()), [x])

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2)[1:3], x + 1

    fast = route(function)
    x = grad(4, 3)
    for got, want in zip(program(fast, x), program(function, x), strict=True):
        torch.testing.assert_close(got, want)


@both
def test_the_same_tensor_passed_twice(route: Route) -> None:
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.sin()

    def twice() -> list:
        x = grad(4, 3)
        return [x, x]

    agrees(route, product, twice)

    def mutated(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y * w

    def one() -> list:
        x = torch.randn(3)
        return [x, x, grad(3)]

    agrees(route, mutated, one)
    fast = route(mutated)
    for same in (False, True, False):
        x = torch.ones(3)
        w = grad(3)
        found = fast(x, x if same else torch.ones(3), w)
        assert torch.equal(found, (2 if same else 1) * w)


@both
def test_overlapping_views_of_one_storage_as_two_inputs(route: Route) -> None:
    def read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b.sin()

    def write(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return b * w

    def views() -> list:
        base = grad(10)
        whole = base * 1
        return [whole[:6], whole[3:9], {"leaves": [base]}]

    def written() -> list:
        base = torch.randn(10)
        return [base[:6], base[3:9], grad(6)]

    def apart() -> list:
        base = torch.randn(12)
        return [base[:6], base[6:], grad(6)]

    agrees(route, read, views)
    agrees(route, write, written)
    agrees(route, write, apart)


@both
def test_overlapping_inputs_that_need_gradients(route: Route) -> None:
    def write(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = (
            b.sum()
        )  # before the write: Dynamo fails on an argument first seen after its base came to need a gradient
        a.mul_(w)
        return (a * b.sin()).sum() * before, b.exp()

    def views(windows: Callable[[torch.Tensor], list[torch.Tensor]], of_a_leaf: bool = False) -> list:
        leaf = torch.randn(12) if of_a_leaf else grad(12)
        w = grad(6)
        return [*windows(leaf if of_a_leaf else leaf * 1), w, {"leaves": [w] if of_a_leaf else [leaf, w]}]

    for windows in (
        lambda t: [t[:6], t[3:9]],
        lambda t: [t[3:9], t[:6]],
        lambda t: [t[::2], t[1::2]],
        lambda t: [t[::2], t.view(2, 6)[1]],
        lambda t: [t[:6], t[6:]],
        lambda t: [t.view(2, 6), t[2:8]],
        lambda t: [t[2:8], t.view(2, 6)],
    ):
        agrees(route, write, lambda windows=windows: views(windows))
        agrees(route, write, lambda windows=windows: views(windows, of_a_leaf=True))


@both
def test_one_input_is_the_memory_of_the_other(route: Route) -> None:
    def write(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        part.add_(1)
        return whole.cumsum(0)

    def views() -> list:
        leaf = grad(8)
        whole = leaf * 1
        return [whole, whole[2:5], {"leaves": [leaf]}]

    def plain() -> list:
        whole = torch.randn(8)
        return [whole, whole[2:5]]

    agrees(route, write, views)
    agrees(route, write, plain)


@both
def test_outputs_that_are_overlapping_inputs(route: Route) -> None:
    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple:
        a.mul_(2)
        return b, a, b[1:], c.view(-1), a + c.sum()

    def views() -> list:
        base = torch.randn(10)
        return [base[:6], base[3:9], torch.randn(2, 2)]

    def needing_grad() -> list:
        leaf = grad(10)
        base = leaf * 1
        return [base[:6], base[3:9], grad(2, 2), {"leaves": [leaf]}]

    agrees(route, write, views)
    agrees(route, write, needing_grad)
    base = torch.randn(10)
    a, b, c = base[:6], base[3:9], torch.ones(2, 2)
    found = route(write)(a, b, c)
    assert found[0] is b and found[1] is a


@both
def test_overlapping_inputs_do_not_run_in_eager(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = []
    monkeypatch.setattr(Eager, "__init__", lambda *_: raised.append(1))
    compiled = route(_shifted)
    base, leaf = torch.randn(10), grad(10)
    for whole in (base, leaf * 1):
        compiled(whole[:6], whole[3:9])
    assert_compiled()
    assert not raised


@both
def test_overlapping_inputs_that_move(route: Route) -> None:
    """Compiled for one place in memory, called with others: still right."""
    compiled = route(_shifted)
    for first, second in ((0, 3), (0, 3), (1, 4), (0, 5), (4, 0), (0, 6)):
        mine, eager = torch.arange(12.0), torch.arange(12.0)
        got = compiled(mine[first : first + 6], mine[second : second + 6])
        want = _shifted(eager[first : first + 6], eager[second : second + 6])
        torch.testing.assert_close((got, mine), (want, eager))


@both
def test_a_write_to_one_shows_in_the_version_of_the_other(route: Route) -> None:
    base = torch.randn(10)
    a, b = base[:6], base.data[3:9]  # memory shared, counters not
    before = a._version, b._version
    route(_shifted)(a, b)
    assert a._version > before[0] and b._version > before[1]


def _shifted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return b + 1


@both
def test_overlapping_inputs_autograd_does_not_know_of(route: Route) -> None:
    def write(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a.mul_(w)
        return b * 2 + a

    def detached() -> list:
        base = torch.randn(10)
        w = grad(6)
        return [base[:6], base.data[3:9], w]

    agrees(route, write, detached, compiled=False)


@both
def test_tied_parameters(route: Route) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.head(self.embed(ids).sin()).flatten(0, 1), ids.flatten())

    model = Tied()
    ids = torch.randint(0, 11, (2, 5))
    model(ids).backward()
    want = model.embed.weight.grad.clone()
    model.zero_grad()
    route(model)(ids).backward()
    torch.testing.assert_close(model.embed.weight.grad, want, rtol=1e-4, atol=1e-6)
    assert model.head.weight.grad is model.embed.weight.grad


@both
def test_functions_that_return_parameters_and_buffers(route: Route) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.register_buffer("scale", torch.randn(3))

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.weight, self.weight, self.scale, {"view": self.weight[1:]}

    model = Layer()
    fast = route(model)
    x = grad(4, 3)
    found, wanted = fast(x), model(x)
    assert found[1] is model.weight and found[2] is model.scale
    for got, want in ((found, wanted),):
        torch.testing.assert_close(got[3]["view"], want[3]["view"])
    total = lambda r: r[0].sum() + r[1].square().sum() + r[3]["view"].exp().sum()  # noqa: E731
    for got, want in zip(
        torch.autograd.grad(total(found), [x, model.weight]),
        torch.autograd.grad(total(wanted), [x, model.weight]),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


@both
def test_parts_that_autograd_does_not_know_share_the_memory_of_the_whole(route: Route) -> None:
    def split(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p, q = torch.cat([a.sin(), b.cos()]).split(2)
        return p.detach(), q.detach()

    def second_first(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p, q = torch.stack([a.sin(), b.cos()]).unbind()
        return q.data, p.data[1:], a * 2

    def views_of_them(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p, q = torch.cat([a.sin(), b.cos()]).split(2)
        return p.detach().t(), q.detach()[1:], p * 2

    def written(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p, q = torch.cat([a.sin(), b.cos()]).detach().split(2)
        q.add_(1)
        return p, q, a * 2

    for function in (split, second_first, views_of_them, written):
        agrees(route, function, lambda: [grad(2, 4), grad(2, 4)], calls=1)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "with gaps": lambda h: h[:, ::2],
    "expanded": lambda h: h[:, :1].expand(4, 3),
    "transposed": lambda h: h.t(),
    "with gaps, transposed": lambda h: h[:, ::2].t(),
}


@both
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_computed_keeps_its_layout_as_an_argument(route: Route, layout: str) -> None:
    """What is a copy and what a view depends on it."""

    def make() -> list[Any]:
        leaf = grad(4, 6)
        return [LAYOUTS[layout](leaf * 1), {"leaves": [leaf]}]

    agrees(route, lambda x: x.contiguous(), make, calls=1)
    agrees(route, lambda x: (x[1:].reshape(-1), x.reshape(-1), x[0]), make, calls=1)
    agrees(route, lambda x: (x * 2, x.t().contiguous(), x.clone(), x.is_contiguous()), make, calls=1)


SEVERAL: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "of an argument": lambda x: x.split(2, 1),
    "one of them used": lambda x: (x.split(2, 1)[0], x.unbind(1)[3] * 2),
    "and one of them changed": lambda x: (lambda v: (v[0], v[1] * 2))(x.chunk(2, 1)),
    "of an intermediate": lambda x: (lambda v: (v[0], v[1], v[1] * 2))((x * 3).split(2, 1)),
    "views of them": lambda x: (lambda v: (v[0].t(), v[1][1:] * 2))(x.split((1, 3), 1)),
}


@both
@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_of_views_made_at_once_are_put_side_by_side(route: Route, name: str) -> None:
    """Added to zeros, -0.0 would become 0.0. And autograd lets no one write to such views."""
    function = SEVERAL[name]
    theirs, mine = grad(3, 4), grad(3, 4)
    want, found = function(theirs * 1), route(function)(mine * 1)
    assert_compiled()
    tangents = [torch.full_like(w, -0.0) for w in want]
    (eager,), (own,) = torch.autograd.grad(want, theirs, tangents), torch.autograd.grad(found, mine, tangents)
    assert torch.equal(own.signbit(), eager.signbit())
    for results in (want, found):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            results[0].mul_(2)


@both
def test_views_made_at_once_lie_as_eagers_where_a_size_is_one(route: Route) -> None:
    x = grad(1, 7)
    want, found = x.chunk(2, 1), route(lambda x: x.chunk(2, 1))(x)
    assert [f.stride() for f in found] == [w.stride() for w in want]


@both
def test_views_made_with_gradients_off_have_none_to_give(route: Route) -> None:
    def of_argument(x: torch.Tensor) -> Any:
        with torch.no_grad():
            view = x[1:]
        return view, view * 2, x * 2

    def of_intermediate(x: torch.Tensor) -> Any:
        h = x * 3
        with torch.no_grad():
            view = h.t()
        return view, h, view.sin()

    for function in (of_argument, of_intermediate):
        agrees(route, function, lambda: [grad(4, 6)], calls=1)
