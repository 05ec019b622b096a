"""Calls that raise: eager's error, and eager's state afterwards; no update is made twice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.autograd.both import ROUTES, Route, agrees, assert_compiled, both

FAR = torch.tensor([1, 9])


def fails_alike(
    route: Route, function: Callable[..., Any], make: Callable[[], list[Any]], words: bool = True, compiled: bool = True
) -> None:
    """The same error, and the same arguments, buffers and random numbers after it, at every call."""
    own = function if isinstance(function, nn.Module) else None
    theirs = copy.deepcopy(own) if own is not None else function
    fast = route(function)
    for call in range(2):
        found = []
        for run, module in ((theirs, theirs), (fast, own)):
            torch.manual_seed(call)
            args = make()
            try:
                run(*args)
                raised = None
            except Exception as error:
                raised = error
            tensors = [a.detach() for a in args if isinstance(a, torch.Tensor)]
            tensors += list(module.buffers()) if isinstance(module, nn.Module) else []
            found.append((raised, [t.clone() for t in tensors], torch.rand(2)))
        (want, values, drawn), (got, mine, own_drawn) = found
        assert want is not None and type(got) is type(want), (got, want)
        assert not words or str(got).splitlines()[0] == str(want).splitlines()[0]
        torch.testing.assert_close(mine, values, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert torch.equal(own_drawn, drawn)
    if compiled:
        assert_compiled()


def update_then_index(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return table[index]


def index_then_update(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    found = table[index]
    x.add_(1)
    return found


def both_in_one_kernel(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return (table[index] + x[:2]).exp()


def index_of_what_is_updated(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x[index] * 2


def computed_index(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return table[(index * 2).clamp(min=0) + 1].sum()


def several_updates(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    table.mul_(2)
    y = F.embedding(index, table[:, None])
    x.sub_(3)
    return y


def draws(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(torch.rand(3))
    y = F.dropout(x, 0.5)
    return table[index] + y[:2]


def written_by_index(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return table.index_put((index,), torch.ones(2), accumulate=True)


FUNCTIONS = [
    update_then_index, index_then_update, both_in_one_kernel, index_of_what_is_updated, computed_index,
    several_updates, draws, written_by_index,
]  # fmt: skip


@both
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_index_out_of_range(function: Callable[..., Any], route: Route) -> None:
    fails_alike(route, function, lambda: [torch.zeros(3), torch.arange(5.0), FAR])


@both
def test_overlapping_arguments(route: Route) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        b.mul_(2)
        return table[index]

    def make() -> list[torch.Tensor]:
        x = torch.arange(8.0)
        return [x[:5], x[2:7], torch.randn(5), FAR, x]

    fails_alike(route, lambda a, b, table, index, whole: function(a, b, table, index), make)


@both
def test_the_same_argument_twice(route: Route) -> None:
    def function(a: torch.Tensor, b: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b[index]

    fails_alike(route, function, lambda: [*[torch.arange(4.0)] * 2, FAR])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return F.cross_entropy(self.second(self.norm(self.first(x)).relu()), target)


@both
@pytest.mark.parametrize("training", [True, False])
def test_running_statistics(training: bool, route: Route) -> None:
    model = Classifier()
    model.requires_grad_(training)
    fails_alike(route, model, lambda: [torch.randn(5, 4), torch.tensor([0, 1, 2, 7, 1])])


@both
def test_what_autograd_must_see(route: Route) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = x + w
        y.add_(1)
        x.mul_(2)
        return y[index]

    leaf = torch.randn(3, requires_grad=True)
    fails_alike(route, function, lambda: [leaf * 1, torch.ones(3, requires_grad=True), FAR])


@both
def test_under_autocast(route: Route) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x @ w)[index]

    fast = route(function)

    def around(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return run(*args)

        return call

    fails_alike(lambda _: around(fast), around(function), lambda: [torch.zeros(3, 3), torch.ones(3, 3), FAR])


@both
def test_a_changed_shape(route: Route) -> None:
    def function(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = table[index]
        x.t_()
        return y + x.sum()

    for run in (function, route(function)):
        x = torch.zeros(2, 3)
        with pytest.raises(IndexError):
            run(x, torch.ones(4), FAR)
        assert x.shape == (2, 3)


def _refuses() -> Any:
    @torch.library.custom_op("litz_tests::refuses", mutates_args=())
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise KeyError("not today")
        return x.clone()

    refuses.register_fake(torch.empty_like)
    return refuses


@both
def test_operators_that_raise(route: Route) -> None:
    refuses = _refuses()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return refuses(y * 2) + x

    fails_alike(route, function, lambda: [torch.zeros(3), torch.ones(3)])


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "spread": lambda x: torch.normal(x, x),
    "share": lambda x: torch.multinomial(x, 2),
    "share, after others": lambda x: torch.multinomial(x.exp() - 2, 2) + x.sin().long()[:2],
}


@both
@pytest.mark.parametrize("kind", REFUSED)
def test_operators_that_refuse_to_draw(kind: str, route: Route) -> None:
    """Nothing was drawn yet, and what eager writes before is written."""

    def function(x: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return REFUSED[kind](wrong * 2) + x.sum()

    fails_alike(route, function, lambda: [torch.randn(3), torch.tensor([0.5, -1.0, 4.0])])


OVERLAPPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows": lambda y: y[1:].copy_(y[:-1]),
    "assigned": lambda y: y.__setitem__(slice(0, 2), y[1:3]),
    "added": lambda y: y[1:].add_(y[:-1], alpha=2),
    "transposed": lambda y: y.mul_(y.t()),
    "out": lambda y: torch.add(y[1:], 1, out=y[:-1]),
    "by places": lambda y: y.__setitem__(torch.tensor([0, 1]), y[1:3]),
    "expanded": lambda y: y[0].expand(4, 4).mul_(2),
}


@both
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_writes_to_a_part_of_what_is_read(kind: str, route: Route) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = x * 2
        OVERLAPPING[kind](y)
        return y

    fails_alike(route, function, lambda: [torch.randn(4, 4)], compiled=False)


@both
def test_writes_beside_what_is_read_and_to_all_of_it(route: Route) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:2] = y[2:]
        y[1:].mul_(y[0])
        y.add_(y.t().t())
        return y.copy_(y)

    agrees(route, function, lambda: [torch.randn(4, 4)])


@both
def test_what_is_filled_may_lie_in_one_place(route: Route) -> None:
    """Then eager does not raise."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0, :1].expand(4).fill_(3)
        y[1].expand(2, 4).zero_()
        return y

    agrees(route, function, lambda: [torch.randn(4, 4)], compiled=False)


@both
def test_an_operator_that_raises_over_what_was_updated(route: Route) -> None:
    """It comes of an update: that is made, once."""
    refuses = _refuses()

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return refuses(x * 2)

    fails_alike(route, function, lambda: [torch.zeros(3)])


@both
def test_linear_algebra(route: Route) -> None:
    def function(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.linalg.cholesky(m).sum() + x

    fails_alike(route, function, lambda: [torch.zeros(3), -torch.eye(3)], words=False)


def test_calls_after_one_that_raised() -> None:
    x = torch.zeros(3)
    for route in ROUTES.values():
        fast = route(update_then_index)
        for index, ok in ((FAR, False), (torch.tensor([1, 2]), True), (FAR, False)):
            x.zero_()
            if ok:
                assert torch.equal(fast(x, torch.arange(5.0), index), torch.tensor([1.0, 2.0]))
            else:
                with pytest.raises(IndexError):
                    fast(x, torch.arange(5.0), index)
            assert torch.equal(x, torch.ones(3))


def test_parameters_updated_in_place() -> None:
    model = nn.Linear(3, 3)

    def step(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * x.sum())
            return table[index]

    fast = ROUTES["torch.compile"](step)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(IndexError):
        fast(torch.ones(2), torch.ones(3), FAR)
    after = [p.detach() for p in model.parameters()]
    torch.testing.assert_close(after, [b - 0.2 for b in before])


LATE = {
    "index": lambda table, index: table[index],
    "select": lambda table, index: table.index_select(0, index),
    "gather": lambda table, index: table.gather(0, index[:, None]),
    "scatter": lambda table, index: table.scatter(0, index[:, None], 1.0),
    "division": lambda table, index: index // (index - index),
}


@both
@pytest.mark.parametrize("kind", LATE)
def test_what_only_a_written_input_tells_is_found_before_anything_is_written(route: Route, kind: str) -> None:
    def function(table: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        index.mul_(9)
        found = LATE[kind](table, index)
        x[1:].neg_()
        return found

    fails_alike(route, function, lambda: [torch.randn(4, 2), torch.tensor([1, 0]), torch.randn(3)])


@both
@pytest.mark.parametrize("kind", LATE)
def test_what_only_a_part_of_an_input_tells(route: Route, kind: str) -> None:
    """Beside the part lie the elements of another input."""

    def function(table: torch.Tensor, index: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        index[:2].mul_(9)
        other.add_(1)
        return LATE[kind](table, index)

    def make() -> list[torch.Tensor]:
        pairs = torch.tensor([[1, 5], [0, 6], [2, 7]])
        return [torch.randn(4, 2), pairs[:, 0], pairs[:, 1]]

    fails_alike(route, function, make)


@both
@pytest.mark.parametrize("kind", LATE)
def test_what_only_a_random_number_tells_raises_the_same_kind_of_error(route: Route, kind: str) -> None:
    """Known after it was drawn alone, too late for the user's own function to run instead."""

    def function(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return LATE[kind](table, index + torch.rand(2).ceil().long() * 9)

    fails_alike(route, function, lambda: [torch.randn(4, 2), torch.tensor([1, 0])], words=False)


@both
def test_what_is_set_aside_is_written_in_the_end(route: Route) -> None:
    def function(table: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        index[:2].add_(1)
        found = table[index]
        index.mul_(0)
        x.neg_()
        return found + table[index]

    fast = route(function)
    for _ in range(2):
        given = [torch.randn(4, 2), torch.tensor([1, 0, 2]), torch.randn(3)]
        mine = [t.clone() for t in given]
        assert torch.equal(fast(*mine), function(*given))
        assert all(torch.equal(a, b) for a, b in zip(mine, given, strict=True))
    assert_compiled()


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan")])
@pytest.mark.parametrize("which", [0, 1])
def test_probabilities_out_of_range(which: int, wrong: float, reduction: str) -> None:
    def make() -> list[Any]:
        given = [torch.full((40,), 0.5), torch.full((40,), 0.5)]
        given[which][33] = wrong
        return given

    fails_alike(ROUTES["torch.compile"], lambda x, y: F.binary_cross_entropy(x, y, reduction=reduction), make)


@pytest.mark.parametrize("wrong", [3, -1])
def test_classes_out_of_range(wrong: int) -> None:
    route = ROUTES["torch.compile"]
    fails_alike(route, lambda i: F.one_hot(i, 3) * 1.0, lambda: [torch.tensor([0, wrong, 1])], words=False)
