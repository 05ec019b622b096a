"""The engine: patterns, matching, applying, fuel, near misses, errors, layout, order."""

from __future__ import annotations

import torch
from torch import fx

from litz.graph.match import Matcher, Miss
from litz.graph.order import sort_stably
from litz.graph.pattern import ANY, Arg, Call, ListOf, Outputs, Wild, call, source
from litz.graph.rewrite import Rule, apply_rules, rule
from tests.graph.rewriting import capture, context, rewrite

aten = torch.ops.aten
X = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7
Y = X + 1


def last_call(graph: fx.GraphModule) -> fx.Node:
    return [n for n in graph.graph.nodes if n.op == "call_function"][-1]


def matches(function, pattern, *inputs) -> bool:
    return not isinstance(Matcher().match(pattern, last_call(capture(function, inputs))), Miss)


def test_patterns_are_values() -> None:
    pattern = Outputs(
        (
            call(aten.mul.Tensor, Arg("x"), Wild(), commutes=True),
            call(aten.cat.default, ListOf(Arg("y")), -1, users=ANY),
        )
    )
    names = {"call": call, "Outputs": Outputs, "Arg": Arg, "Wild": Wild, "ListOf": ListOf, "aten": aten}
    assert eval(source(pattern), names) == pattern
    assert len({pattern, eval(source(pattern), names)}) == 1


def test_defaults_and_keywords_are_one_spelling() -> None:
    strict = call(aten.add.Tensor, Arg("a"), Arg("b"))
    assert matches(lambda x, y: (torch.add(x, y),), strict, X, Y)
    assert not matches(lambda x, y: (torch.add(x, y, alpha=2),), strict, X, Y)
    assert matches(lambda x, y: (torch.add(x, y, alpha=2),), call(aten.add.Tensor, Arg("a"), Arg("b"), alpha=2), X, Y)
    assert matches(lambda x, y: (torch.add(x, y, alpha=2),), call(aten.add.Tensor, Arg("a"), ...), X, Y)


def test_one_name_is_one_value() -> None:
    squared = call(aten.mul.Tensor, Arg("x"), Arg("x"))
    assert matches(lambda x, y: (x * x,), squared, X, Y)
    assert not matches(lambda x, y: (x * y,), squared, X, Y)


def test_one_named_call_is_one_node() -> None:
    exp = call(aten.exp.default, Arg("x"), name="e")
    pattern = call(aten.div.Tensor, exp, call(aten.sum.default, exp))

    def shared(x):
        e = torch.exp(x)
        return (e / e.sum(),)

    assert matches(shared, pattern, X)
    assert not matches(lambda x: (torch.exp(x) / torch.exp(x).sum(),), pattern, X)


def test_commuted_operands_backtrack() -> None:
    # Only after the second operand is known does it turn out which of the first two is x.
    inner = call(aten.add.Tensor, Arg("x"), Arg("y"), commutes=True)
    pattern = call(aten.mul.Tensor, inner, call(aten.exp.default, Arg("x")), commutes=True)
    for function in (
        lambda a, b: ((a + b) * b.exp(),),
        lambda a, b: (a.exp() * (a + b),),
        lambda a, b: ((b + a) * b.exp(),),
    ):
        assert matches(function, pattern, X, Y)
    assert not matches(lambda a, b: ((a + a) * b.exp(),), pattern, X, Y)


def test_use_elsewhere() -> None:
    def seen(x):
        e = x.exp()
        return e + 1, e.neg()

    inside = call(aten.neg.default, call(aten.exp.default, Arg("x")))
    found = Matcher().match(inside, last_call(capture(seen, [X])))
    assert isinstance(found, Miss) and "used outside" in found.why
    assert matches(seen, call(aten.neg.default, call(aten.exp.default, Arg("x"), users=ANY)), X)
    assert matches(seen, call(aten.neg.default, call(aten.exp.default, Arg("x"), users=2)), X)
    counted = Matcher().match(
        call(aten.neg.default, call(aten.exp.default, Arg("x"), users=1)), last_call(capture(seen, [X]))
    )
    assert isinstance(counted, Miss) and "2 users where 1" in counted.why


def test_lists_bind_all_their_elements() -> None:
    pattern = call(aten.cat.default, ListOf(call(aten.exp.default, Arg("x"))), Arg("dim"))
    found = Matcher().match(pattern, last_call(capture(lambda a, b: (torch.cat([a.exp(), b.exp()], 1),), [X, Y])))
    assert not isinstance(found, Miss) and len(found.bindings["x"]) == 2 and found.bindings["dim"] == 1
    assert not matches(lambda a, b: (torch.cat([a.exp(), b], 1),), pattern, X, Y)


def test_a_miss_says_how_far_it_came() -> None:
    pattern = call(aten.neg.default, call(aten.exp.default, call(aten.sin.default, Arg("x"))))
    miss = Matcher().match(pattern, last_call(capture(lambda x: (x.cos().exp().neg(),), [X])))
    assert isinstance(miss, Miss)
    assert miss.matched == 2 and miss.node is not None and miss.node.target is aten.cos.default
    assert "aten.cos.default" in miss.why and "aten.sin.default" in miss.why


@rule(call(aten.neg.default, call(aten.neg.default, Arg("x"), users=ANY), users=ANY))
def neg_twice(match):
    return match["x"]


@rule(call(aten.exp.default, Arg("x"), users=ANY))
def exp_as_pow(match):
    return match.replace_by_example(lambda x: torch.pow(torch.e, x), [match["x"]])


def test_rules_run_to_a_fixpoint_and_are_recorded() -> None:
    done = rewrite(lambda x: (x.sin().neg().neg().neg().neg() + 1,), [X], (neg_twice,))
    assert done.count(aten.neg.default) == 0
    (firing,) = done.ctx.firings
    assert (
        firing.rule == "neg_twice" and firing.times == 2 and firing.file.endswith("test_engine.py") and firing.line > 0
    )


def test_rule_sets_compose() -> None:
    done = rewrite(lambda x: (x.sin().neg().neg().exp() + 1,), [X], (neg_twice,) + (exp_as_pow,))
    assert done.fired == {"neg_twice": 1, "exp_as_pow": 1}


def test_fuel_bounds_the_firings() -> None:
    for fuel in range(4):
        ctx = context(fuel=fuel)
        graph = capture(lambda x: (x.sin().exp() + x.cos().exp() + x.exp(),), [X])
        assert apply_rules(graph, (exp_as_pow,), ctx).fired == fuel
        assert len(ctx.spent) == fuel


def test_source_lines_pass_to_the_replacement() -> None:
    graph = capture(lambda x: (x.exp() + 1,), [X])
    for node in graph.graph.nodes:
        node.meta["stack_trace"] = 'File "user.py", line 3, in f\n    x.exp()'
    apply_rules(graph, (exp_as_pow,), context())
    assert all("stack_trace" in n.meta for n in graph.graph.nodes if n.op == "call_function")


def test_a_result_is_not_replaced_by_the_users_own_tensor() -> None:
    done = rewrite(lambda x: (x.neg().neg(),), [X], (neg_twice,))
    assert done.fired == {}
    (result,) = done.graph(X)
    assert result.data_ptr() != X.data_ptr()


def test_two_results_do_not_become_one_tensor() -> None:
    def twice(x):
        y = x.sin()
        return y, y.neg().neg()

    assert rewrite(twice, [X], (neg_twice,)).fired == {}


def test_a_new_layout_spreads_and_is_undone_for_the_user() -> None:
    @rule(call(aten.sin.default, Arg("x"), users=ANY))
    def other_layout(match):
        turned = match.call(
            aten.clone.default, match.call(aten.t.default, match["x"]), memory_format=torch.contiguous_format
        )
        return match.call(aten.t.default, match.call(aten.cos.default, turned))

    def function(x):
        y = x.sin()
        return y, y.view(12) * 2, y.t().exp()

    graph = capture(function, [X])
    apply_rules(graph, (other_layout,), context())
    y = X.cos()
    for found, expected in zip(graph(X), (y, y.view(12) * 2, y.t().exp()), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_a_rule_that_raises_is_reported_and_the_graph_goes_on() -> None:
    @rule(call(aten.exp.default, Arg("x"), users=ANY))
    def broken(match):
        match.call(aten.neg.default, match["x"])
        raise KeyError("oops")

    done = rewrite(lambda x: (x.exp() + x.neg().neg().sin(),), [X], (broken, neg_twice))
    assert done.fired == {"neg_twice": 1}
    assert len(done.outcome.errors) == 1
    assert (
        "broken" in done.outcome.errors[0]
        and "test_engine.py:" in done.outcome.errors[0]
        and "oops" in done.outcome.errors[0]
    )
    assert done.count(aten.neg.default) == 0


def test_a_rule_that_changes_the_shape_is_refused() -> None:
    @rule(call(aten.exp.default, Arg("x"), users=ANY))
    def wrong(match):
        return match.call(aten.sum.default, match["x"])

    done = rewrite(lambda x: (x.exp() + 1,), [X], (wrong,))
    assert done.fired == {} and "float32[] on cpu where float32[3, 4] on cpu is needed" in done.outcome.errors[0]


def test_several_outputs() -> None:
    pattern = Outputs((call(aten.sin.default, Arg("x"), users=ANY), call(aten.cos.default, Arg("x"), users=ANY)))

    @rule(pattern)
    def shifted(match):
        moved = match.call(aten.add.Tensor, match["x"], 0.0)
        return match.call(
            aten.sin.default, match.call(aten.neg.default, match.call(aten.neg.default, moved))
        ), match.call(aten.cos.default, moved)

    # y has no cosine: only one of the two sines may match.
    done = rewrite(lambda x, y: (x.sin() * y, y.sin() + 1, x.cos()), [X, Y], (shifted,))
    assert done.fired == {"shifted": 1}
    assert done.count(aten.neg.default) == 2 and done.count(aten.sin.default) == 2


def test_a_replacement_may_not_depend_on_itself() -> None:
    negated = call(aten.neg.default, Arg("a"), users=ANY, name="negated")

    @rule(Outputs((negated, call(aten.cos.default, call(aten.add.Tensor, negated, 1), users=ANY))))
    def circle(match):
        both = match.call(aten.mul.Tensor, match["negated"], 1)
        return both, match.call(aten.cos.default, match.call(aten.add.Tensor, both, 1))

    def function(x):
        negative = x.neg()
        return (negative + 1).cos(), negative * 2

    done = rewrite(function, [X], (circle,))
    assert done.fired == {} and "depend on itself" in done.outcome.errors[0]


def test_order_is_mended_stably() -> None:
    graph = capture(lambda x: (x.sin() + x.cos() * x.exp(),), [X])
    nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
    before = [n.name for n in graph.graph.nodes]
    # The sine after the sum that needs it: only the sine has to move.
    nodes[-1].append(nodes[0])
    sort_stably(graph.graph)
    graph.graph.lint()
    after = [n.name for n in graph.graph.nodes]
    assert sorted(after) == sorted(before) and after.index(nodes[1].name) < after.index(nodes[0].name) < after.index(
        nodes[-1].name
    )


def test_cost_hardly_grows_with_the_number_of_rules() -> None:
    """Counted in nodes visited, since time on a shared machine means little."""

    def visits(rules: int, layers: int) -> int:
        def function(x):
            for _ in range(layers):
                x = (x.sin() * 2 + x.cos()).exp()
            return (x,)

        others = tuple(
            Rule(call(aten.atan2.default, Arg("x"), float(i)), lambda match: None, f"s{i}") for i in range(rules)
        )
        apart = tuple(
            Rule(call(aten.add.Tensor, call(getattr(aten, name).default, Arg("x")), ...), lambda match: None, name)
            for name in ("tan", "sinh", "cosh", "asin", "acos", "atan", "erf", "log", "sqrt", "rsqrt", "abs")[:rules]
        )
        return apply_rules(capture(function, [X]), others + apart, context()).visits

    assert visits(11, 50) <= 1.1 * visits(1, 50)
    assert visits(11, 100) <= 2.2 * visits(11, 50)


def test_subgraphs_are_rewritten() -> None:
    inner = capture(lambda x: (x.sin().neg().neg() + 1,), [X])
    outer = capture(lambda x: (x.sin().neg().neg() + 1,), [X])
    outer.add_module("body", inner)
    ctx = context()
    apply_rules(outer, (neg_twice,), ctx)
    assert ctx.firings[0].times == 2
    assert not any(n.target is aten.neg.default for n in inner.graph.nodes)


def test_calls_are_the_only_roots() -> None:
    assert isinstance(call(aten.exp.default, Arg("x")), Call)
    try:
        rule(Arg("x"))
    except ValueError as error:
        assert "must start from a call" in str(error)
    else:
        raise AssertionError


def test_symbolic_sizes_are_never_fixed() -> None:
    """A rule of the user's stays away from symbolic sizes unless it says that it never looks at any."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from litz.graph.rules import JOINT

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    x = mode.from_tensor(torch.randn(5, 7))

    def function(x, y):
        z = (x * 1).t().t().clone() - 0
        return torch.softmax(z @ y.t(), -1) @ y, x.sin().view(-1).view(1, -1) * 2

    with mode:
        graph = make_fx(function, tracing_mode="symbolic")(x, mode.from_tensor(torch.randn(6, 7)))
    before = len(shapes.guards)
    ctx = context()

    @rule(call(aten.sin.default, Arg("x"), users=ANY))
    def long_rows(match):
        assert match["x"].meta["val"].shape[0] > 100
        return match["x"]

    apply_rules(graph, (long_rows, *JOINT), ctx)
    assert len(shapes.guards) == before
    fired = {f.rule for f in ctx.firings}
    assert fired >= {"times_one", "transpose_twice", "needless_copy", "add_zero", "attention", "view_twice"}
    assert "long_rows" not in fired


def test_examples_that_see_other_values_are_other_examples() -> None:
    @rule(call(aten.mul.Tensor, Arg("x"), Arg("factor"), users=ANY))
    def power(match):
        factor = match["factor"]
        if not isinstance(factor, int):
            return None
        return match.replace_by_example(lambda x: sum([x] * factor), [match["x"]])

    assert rewrite(lambda x: (x * 2 + x.sin() * 3,), [X], (power,)).fired == {"power": 2}
