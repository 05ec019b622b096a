"""`litz.jvp`: outputs and tangents from one compiled graph, as `torch.func.jvp` gives them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, vmap

import litz
from litz.capture import leave
from litz.graph.replacement import jvp as traced_with_tangents
from litz.graph.replacement import register_replacement
from litz.report import HISTORY


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def given(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(len(shapes))
    return tuple(torch.randn(shape, generator=draw) for shape in shapes)


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x


def reports_of(run: Callable[[], Any]) -> list[litz.Report]:
    HISTORY.clear()  # which keeps so many and no more
    run()
    return list(litz.reports())


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want)


# -- outputs and tangents ------------------------------------------------------------------------
def test_outputs_and_tangents_come_from_one_graph() -> None:
    def net(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": (x @ w).tanh(), "total": (x @ w).square().sum()}

    x, w, dx, dw = given((4, 5), (5, 3), (4, 5), (5, 3))
    made = litz.jvp(net)
    (report,) = reports_of(lambda: same(made((x, w), (dx, dw)), torch.func.jvp(net, (x, w), (dx, dw))))
    assert report.left_to_eager is None and report.kernels
    assert f"{__file__}:" in report.title
    assert reports_of(lambda: same(made((w.T, x.T), (dw.T, dx.T)), torch.func.jvp(net, (w.T, x.T), (dw.T, dx.T))))
    same(made((x + 1, w), (dw.T[:1].expand(4, 5).contiguous(), dw)),
         torch.func.jvp(net, (x + 1, w), (dw.T[:1].expand(4, 5).contiguous(), dw)))  # fmt: skip


def test_nested_primals_and_what_goes_with_them() -> None:
    def f(pair: dict[str, torch.Tensor], scale: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return pair["a"] * scale + pair["b"], {"mean": pair["a"].mean()}

    a, b, s = given((3,), (3,), ())
    primals, tangents = ({"a": a, "b": b}, s), ({"a": b, "b": a}, s + 1)
    same(litz.jvp(f, has_aux=True)(primals, tangents), torch.func.jvp(f, primals, tangents, has_aux=True))


def test_a_module_and_the_gradient_of_its_derivative() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x, dx = given((5, 3), (5, 3))
    weights = [p for name, p in net.named_parameters() if name != "2.bias"]

    def gradients(derivative: Callable[..., Any]) -> Any:
        result, rate = derivative((x,), (dx,))
        return torch.autograd.grad((result + rate).square().sum(), weights)

    same(gradients(litz.jvp(net)), gradients(lambda p, t: torch.func.jvp(net, p, t)))


def test_it_is_differentiable_backwards_in_primals_and_tangents() -> None:
    x, dx = (t.requires_grad_() for t in given((6,), (6,)))

    def gradients(derivative: Callable[..., Any]) -> Any:
        return torch.autograd.grad(derivative((x,), (dx,))[1].square().sum(), (x, dx))

    same(gradients(litz.jvp(wave)), gradients(lambda p, t: torch.func.jvp(wave, p, t)))


def test_levels_nest() -> None:
    (x,) = given((5,))

    def thrice(jvp: Callable[..., Any]) -> Callable[..., Any]:
        def once(x: torch.Tensor) -> torch.Tensor:
            return jvp(wave)((x,), (x.cos(),))[1]

        def twice(x: torch.Tensor) -> torch.Tensor:
            return jvp(once)((x,), (torch.ones_like(x),))[1]

        return jvp(twice)

    want = thrice(lambda f: lambda p, t: torch.func.jvp(f, p, t))((x,), (x,))
    (report,) = reports_of(lambda: same(thrice(litz.jvp)((x,), (x,)), want))
    assert report.left_to_eager is None


def test_one_made_outside_is_part_of_what_is_compiled() -> None:
    (x,) = given((5,))
    inner = litz.jvp(wave)
    outer = litz.compile(lambda x: grad(lambda x: inner((x,), (x * x,))[1].sum())(x), fullgraph=True)
    (report,) = reports_of(lambda: same(outer(x), grad(lambda x: torch.func.jvp(wave, (x,), (x * x,))[1].sum())(x)))
    assert report.left_to_eager is None


def test_inside_of_transforms_that_are_not_compiled() -> None:
    (x,) = given((4, 5))
    inner = litz.jvp(wave)
    plain = lambda x: torch.func.jvp(wave, (x,), (x,))  # noqa: E731
    for around in (vmap, lambda f: grad(lambda x: f(x)[1].sum()), lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
        same(around(lambda x: inner((x,), (x,)))(x), around(plain)(x))


def test_many_functions_do_not_crowd_each_other_out() -> None:
    (x,) = given((5,))
    made = [litz.jvp(lambda x, k=k: x * k) for k in range(20)]
    assert len(reports_of(lambda: [d((x,), (x,)) for d in made])) == 20
    assert reports_of(lambda: [same(d((x,), (x,)), (x * k, x * k)) for k, d in enumerate(made)]) == []


def test_sizes_that_vary() -> None:
    made = litz.jvp(wave, dynamic=True)
    for size in (4, 7, 9):
        (x,) = given((size, 3))
        same(made((x,), (x,)), torch.func.jvp(wave, (x,), (x,)))


def test_options_are_checked_where_they_are_written() -> None:
    with pytest.raises(litz.OptionError, match="matmul"):
        litz.jvp(wave, matmull="library")


def test_a_break_in_the_function_is_eager_s_affair() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * x

    (x,) = given((5,))
    same(litz.jvp(broken)((x,), (x,)), torch.func.jvp(broken, (x,), (x,)))
    with pytest.raises(Exception, match="graph_break"):
        litz.jvp(broken, fullgraph=True)((x,), (x,))


def test_what_dynamo_cannot_capture_runs_as_written_and_is_said_once() -> None:
    def looks(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return torch.quantile(x, q)  # whose check of `q` looks at it

    x, q = given((7,))[0], torch.tensor(0.3)
    made = litz.jvp(looks)

    def run() -> None:
        for _ in range(2):
            same(made((x, q), (x, q)), torch.func.jvp(looks, (x, q), (x, q)))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (report,) = [report for report in reports_of(run) if report.left_to_eager]
    assert "Dynamo does not capture the derivative" in report.left_to_eager and __file__ in report.title
    (warning,) = [w for w in said if "left to eager" in str(w.message)]
    assert warning.filename == __file__


def test_what_the_function_raises_is_raised() -> None:
    x, y = given((3,), (4,))
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\) must match"):
        litz.jvp(torch.mul)((x, y), (x, y))


# -- how tangents lie ----------------------------------------------------------------------------
def test_a_tangent_that_lies_as_its_primal_is_used_as_it_is() -> None:
    made = litz.jvp(lambda x: x)
    x, t = given((4, 5), (4, 5))
    assert made((x,), (t,))[1].data_ptr() == t.data_ptr()
    assert made((x.T,), (t.T,))[1].data_ptr() == t.data_ptr()


LIE_OTHERWISE = {
    "transposed": lambda: (torch.arange(20.0).view(4, 5), torch.arange(20.0).view(5, 4).T),
    "a part of a larger one": lambda: (torch.arange(20.0).view(4, 5), torch.arange(40.0).view(8, 5)[:4]),
    "behind an offset": lambda: (torch.arange(20.0).view(4, 5), torch.arange(25.0).view(5, 5)[1:]),
    "expanded": lambda: (torch.arange(20.0).view(4, 5), torch.arange(5.0).expand(4, 5)),
    "of a primal that is a part": lambda: (torch.arange(40.0).view(8, 5)[2:6], torch.arange(20.0).view(4, 5)),
    "conjugated": lambda: (torch.zeros(3, dtype=torch.cfloat), torch.full((3,), 1 + 2j).conj()),
}  # fmt: skip


@pytest.mark.parametrize("name", LIE_OTHERWISE)
def test_a_tangent_that_lies_otherwise_is_copied(name: str) -> None:
    primal, tangent = LIE_OTHERWISE[name]()
    for function in (lambda x: x, lambda x: x * x + x):
        got = litz.jvp(function)((primal,), (tangent,))[1]
        want = torch.func.jvp(function, (primal,), (tangent,))[1]
        assert got.data_ptr() != tangent.data_ptr() and got.stride() == want.stride()
        same(got, want)
    before = tangent.clone()
    litz.jvp(lambda x: x)((primal,), (tangent,))[1].zero_()
    same(tangent, before)


def test_a_tangent_that_is_copied_has_its_gradient() -> None:
    (x, t) = given((4, 5), (5, 4))
    t.requires_grad_()
    made = litz.jvp(wave)((x,), (t.T,))[1]
    same(torch.autograd.grad(made.sum(), t), torch.autograd.grad(torch.func.jvp(wave, (x,), (t.T,))[1].sum(), t))


# -- what is refused -----------------------------------------------------------------------------
X = torch.ones(3)
REFUSED = {
    "no tuple": (X, X, r"litz\.jvp\(wave\): primals must be a tuple, not a Tensor"),
    "other structure": ((X,), (X, X), "tangents are built as"),
    "nothing": ((), (), "no tensor among the primals"),
    "a number": ((2.0,), (X,), "primal 0 is a float, and must be a tensor"),
    "no tangent": ((X,), (3.0,), "tangent 0 is a float"),
    "whole numbers": ((X.long(),), (X.long(),), "primal 0 holds torch.int64"),
    "another shape": ((X,), (X[:2],), r"tangent 0 is of shape \(2,\)"),
    "shared elements": ((torch.ones(3).expand(2, 3),), (torch.ones(2, 3),), "elements of primal 0 share memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_derivative_is_refused(name: str) -> None:
    primals, tangents, message = REFUSED[name]
    with pytest.raises(litz.CallError, match=message):
        litz.jvp(wave)(primals, tangents)


def test_a_tangent_at_the_level_already_is_an_error() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X)
        with pytest.raises(litz.CallError, match="primal 1 has a tangent at this level already"):
            litz.jvp(torch.mul)((X, dual), (X, X))
        with pytest.raises(litz.CallError, match="a level is open already"):
            litz.jvp(wave)((X,), (X,))
    same(litz.jvp(wave)((X,), (X,)), torch.func.jvp(wave, (X,), (X,)))


# -- around a compiled function ------------------------------------------------------------------
def test_dual_numbers_around_a_compiled_function_are_right_and_say_what_to_use() -> None:
    leave._warned.clear()
    compiled = litz.compile(wave)
    compiled(X)
    with warnings.catch_warnings(record=True) as said, forward_ad.dual_level():
        warnings.simplefilter("always")
        rates = [forward_ad.unpack_dual(compiled(forward_ad.make_dual(X, 2 * X))).tangent for _ in range(2)]
    for rate in rates:
        same(rate, torch.func.jvp(wave, (X,), (2 * X,))[1])
    (warning,) = [w for w in said if "litz" in str(w.message)]
    assert "litz.jvp" in str(warning.message) and warning.filename == __file__


# -- rules ---------------------------------------------------------------------------------------
def softplus_written(x: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + torch.exp(x))


def gelu_written(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))


PAIRS = {
    "softplus_written": (softplus_written, torch.nn.functional.softplus),
    "gelu_written": (gelu_written, torch.nn.functional.gelu),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PAIRS)
def test_patterns_traced_with_tangents_fire(name: str, dynamic: bool | None) -> None:
    search, replace = PAIRS[name]
    rule = register_replacement(search, replace, [torch.empty(2, 2)], traced_with_tangents)

    def net(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return search(x @ w).sum(-1)

    made = litz.jvp(net, rules=(rule,), dynamic=dynamic)
    x, w = given((4, 5), (5, 3))
    (report,) = reports_of(lambda: same(made((x, w), (x, w)), torch.func.jvp(net, (x, w), (x, w))))
    assert [f.times for f in report.firings if f.rule == name] == [1]


def test_built_in_rules_apply_to_what_has_tangents() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-2, -1)).softmax(-1) @ k

    q, k = given((2, 4, 8), (2, 6, 8))
    made = litz.jvp(lambda q: attention(q, k) + (q * 1.0) * 0.0)
    (report,) = reports_of(lambda: made((q,), (q,)))
    assert any(f.rule == "times_one" for f in report.firings)
