"""Rules from examples: both traces, the second match, scalars, exclusive arguments, bad rules refused."""

from __future__ import annotations

import pytest
import torch

import litz
from litz.graph.replacement import joint, jvp, register_replacement
from litz.graph.rules.activation import ACTIVATION, PAIRS
from tests.graph.rewriting import capture, context, rewrite

aten = torch.ops.aten
X = torch.linspace(-2, 2, 24).reshape(4, 6)


def softplus_written(x):
    return torch.log(1 + torch.exp(x))


def softplus(x):
    return torch.nn.functional.softplus(x)


def test_any_shape_matches() -> None:
    made = register_replacement(softplus_written, softplus, [torch.empty(2, 2)])
    for shape in ((5,), (3, 4, 5), (1, 1)):
        done = rewrite(lambda x: (softplus_written(x * 2) + 1,), [torch.randn(shape)], (made,))
        assert done.fired == {"softplus_written": 1} and done.count(aten.softplus.default) == 1


def test_scalars_are_checked_by_the_second_match() -> None:
    made = register_replacement(softplus_written, softplus, [torch.empty(2, 2)])
    done = rewrite(lambda x: (torch.log(2 + torch.exp(x)) + 1,), [X], (made,))
    assert done.fired == {}
    assert "with the real values" in done.misses[0].why


def test_shapes_burnt_in_are_traced_again() -> None:
    def search(x):
        return x.reshape(x.shape[0], -1).sum(1)

    def replace(x):
        return x.sum(tuple(range(1, x.dim())))

    made = register_replacement(search, replace, [torch.empty(2, 3, 5)])
    assert rewrite(lambda x: (search(x * 2) + 1,), [torch.randn(7, 2, 9)], (made,)).fired == {"search": 1}
    # The same operators, another grouping.
    assert rewrite(lambda x: ((x * 2).reshape(2, -1).sum(1) + 1,), [torch.randn(4, 3, 5)], (made,)).fired == {}


def test_scalar_arguments() -> None:
    def search(x, slope):
        return torch.where(x > 0, x, x * slope)

    def replace(x, slope):
        return torch.nn.functional.leaky_relu(x, slope)

    made = register_replacement(search, replace, [torch.empty(3)], scalar_workaround={"slope": 0.137})
    done = rewrite(lambda x: (search(x + 1, 0.25) * 2,), [X], (made,))
    assert done.fired == {"search": 1}
    (node,) = [n for n in done.graph.graph.nodes if n.target is aten.leaky_relu.default]
    assert node.args[1] == 0.25


def test_exclusive_arguments() -> None:
    made = register_replacement(softplus_written, softplus, [torch.empty(2)], exclusive_arg_names=["x"])

    def shared(x):
        y = x * 2
        return softplus_written(y) + 1, y + 3

    assert rewrite(shared, [X], (made,)).fired == {}
    assert rewrite(lambda x: (softplus_written(x * 2) + 1,), [X], (made,)).fired == {"softplus_written": 1}


def test_extra_check() -> None:
    made = register_replacement(
        softplus_written, softplus, [torch.empty(2)], extra_check=lambda match: match["x"].meta["val"].dim() == 1
    )
    assert rewrite(lambda x: (softplus_written(x * 2) + 1,), [X], (made,)).fired == {}
    assert rewrite(lambda x: (softplus_written(x * 2) + 1,), [X[0]], (made,)).fired == {"softplus_written": 1}


def test_an_intermediate_used_elsewhere_stops_the_match() -> None:
    made = register_replacement(softplus_written, softplus, [torch.empty(2)])

    def seen(x):
        e = torch.exp(x)
        return torch.log(1 + e), e

    done = rewrite(seen, [X], (made,))
    assert done.fired == {} and "used outside" in done.misses[0].why


def test_several_results() -> None:
    def search(x):
        return x.sum(-1), x.mean(-1)

    def replace(x):
        total = x.sum(-1)
        return total, total / x.shape[-1]

    made = register_replacement(search, replace, [torch.empty(3, 4)])
    done = rewrite(lambda x: tuple(y + 1 for y in search(x * 2)), [X], (made,))
    assert done.fired == {"search": 1} and done.count(aten.mean.dim) == 0


def test_forward_mode() -> None:
    made = register_replacement(softplus_written, softplus, [torch.empty(2, 2)], jvp)
    graph = jvp(lambda x: softplus_written(x), [torch.empty(4, 6)])
    inputs = [X, torch.randn(4, 6)]
    before = graph(*inputs)
    from litz.graph.rewrite import apply_rules

    ctx = context()
    assert apply_rules(graph, (made,), ctx).fired == 1
    for old, new in zip(before, graph(*inputs), strict=True):
        torch.testing.assert_close(new, old)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("search", [s for s, _ in PAIRS], ids=lambda s: s.__name__)
def test_activations(search, training: bool) -> None:
    done = rewrite(lambda x: (search(x * 2) * 3,), [torch.randn(5, 7)], ACTIVATION, training=training)
    assert done.fired == {f"{search.__name__}_training" if training else search.__name__: 1}


NEARLY = {
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978 * (x + 0.05 * torch.pow(x, 3.0)))),
    "gelu_erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.5)),
    "silu": lambda x: x * torch.sigmoid(x * 2),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", NEARLY)
def test_another_constant_is_no_activation(name: str, training: bool) -> None:
    assert rewrite(lambda x: (NEARLY[name](x),), [X], ACTIVATION, training=training).fired == {}


def test_joint_rules_need_the_backward_too() -> None:
    made = register_replacement(softplus_written, softplus, [torch.empty(2, 2)], joint)
    assert rewrite(lambda x: (softplus_written(x * 2),), [X], (made,)).fired == {}
    assert rewrite(lambda x: (softplus_written(x * 2),), [X], (made,), training=True).fired == {"softplus_written": 1}


# -- bad rules ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("replace", "difference"),
    [
        (lambda x: x.sum(), r"float32\[\] on cpu where float32\[2, 3\]"),
        (lambda x: x.double(), r"float64\[2, 3\] on cpu where float32\[2, 3\]"),
        (lambda x: (x, x), "2 results where the search function has 1"),
        (lambda x: x.no_such_method(), "no_such_method"),
    ],
    ids=["shape", "dtype", "count", "raises"],
)
def test_bad_replacements_are_refused(replace, difference: str) -> None:
    with pytest.raises(litz.RuleError, match=difference) as caught:
        litz.register_replacement(softplus_written, replace, [torch.empty(2, 3)])
    assert "test_replacement.py:" in str(caught.value)


def test_an_argument_that_does_not_occur_is_refused() -> None:
    with pytest.raises(litz.RuleError, match="y do not occur"):
        litz.register_replacement(lambda x, y: x.exp(), lambda x, y: x.exp(), [torch.empty(2), torch.empty(2)])


def test_lists_and_duplicates() -> None:
    first: list = []
    second: list = []
    litz.register_replacement(softplus_written, softplus, [torch.empty(2)], pass_lists=[first, second])
    assert len(first) == len(second) == 1
    with pytest.raises(litz.RuleError, match="already"):
        litz.register_replacement(softplus_written, softplus, [torch.empty(2)], pass_lists=[first])
    litz.register_replacement(softplus_written, softplus, [torch.empty(2)], pass_lists=[first], skip_duplicates=True)
    assert len(first) == 1


def test_captured_graphs_have_values() -> None:
    assert all("val" in n.meta for n in capture(softplus_written, [X]).graph.nodes if n.op == "call_function")
