"""What users touch: their own rules, hooks on stages, `explain_match`, and the patterns kept in a file."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import fx

import litz
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match
from litz.graph.serialize import FILE, current

aten = torch.ops.aten
X = torch.randn(4, 8)


def run(function, *args, **options):
    torch._dynamo.reset()
    with torch.no_grad():
        return litz.compile(function, **options)(*args)


def test_a_rule_of_ones_own() -> None:
    @litz.rule(call(aten.log.default, call(aten.exp.default, Arg("x")), users=ANY))
    def log_of_exp(match):
        return match["x"]

    found = run(lambda x: torch.log(torch.exp(x * 3)) + 1, X, rules=(log_of_exp,))
    torch.testing.assert_close(found, X * 3 + 1, rtol=1e-4, atol=1e-5)
    report = litz.last_report()
    assert report is not None
    (firing,) = [f for f in report.firings if f.rule == "log_of_exp"]
    assert firing.times == 1 and firing.file.endswith("test_users.py")


def test_a_replacement_of_ones_own() -> None:
    made = litz.register_replacement(
        lambda x, y: torch.log(torch.exp(x) + torch.exp(y)),
        lambda x, y: torch.logaddexp(x, y),
        [torch.empty(2), torch.empty(2)],
        name="logaddexp",
    )
    found = run(lambda x: torch.log(torch.exp(x * 2) + torch.exp(x + 1)), X, rules=[made])
    torch.testing.assert_close(found, torch.logaddexp(X * 2, X + 1), rtol=1e-4, atol=1e-5)
    assert any(f.rule == "logaddexp" for f in litz.last_report().firings)


def test_a_rule_that_raises_does_not_stop_the_compile() -> None:
    @litz.rule(call(aten.exp.default, Arg("x"), users=ANY))
    def broken(match):
        raise ZeroDivisionError("no")

    torch.testing.assert_close(run(lambda x: torch.exp(x) + 1, X, rules=(broken,)), X.exp() + 1, rtol=1e-4, atol=1e-5)
    assert any("broken" in note and "test_users.py" in note for note in litz.last_report().notes)


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(litz.OptionError, match="rules"):
        litz.compile(lambda x: x, rules=[lambda match: None])
    with pytest.raises(litz.OptionError, match="after"):
        litz.compile(lambda x: x, after=["lower"])


def test_hooks_see_every_stage() -> None:
    seen: list[str] = []

    def note(name):
        return lambda value: seen.append(f"{name}: {type(value).__name__}")

    run(
        lambda x: torch.exp(x) + 1,
        X,
        before={"rewrite_joint": note("before")},
        after={"trace": note("traced"), "lower": note("lowered")},
    )
    assert seen == ["traced: Joint", "before: Joint", "lowered: Lowered"]


def test_a_hook_may_replace_what_it_sees() -> None:
    def negate(joint):
        for node in joint.graph.graph.nodes:
            if node.target is aten.exp.default:
                node.target = aten.sin.default
        return joint

    torch.testing.assert_close(
        run(lambda x: torch.exp(x) + 1, X, after={"trace": negate}), X.sin() + 1, rtol=1e-4, atol=1e-5
    )


def broken_attention(q, k, v):
    scores = q @ k.transpose(-1, -2)
    scores = torch.tanh(scores)
    return torch.softmax(scores, -1) @ v


def test_explain_match_names_the_node_that_stopped_it() -> None:
    q = torch.randn(2, 2, 6, 8)
    found = litz.explain_match(broken_attention, q, q + 1, q + 2, rule="attention")
    assert found.fired == ()
    miss = found.near_misses[0]
    assert miss.node.startswith("tanh") and "aten.tanh.default" in miss.why
    assert "torch.tanh(scores)" in str(found) and "test_users.py" in str(found)


def test_explain_match_tells_what_fired() -> None:
    q = torch.randn(2, 2, 6, 8)
    found = litz.explain_match(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, q, q + 1, q + 2, rule="attention")
    assert [f.rule for f in found.fired] == ["attention"] and "applied 1 times" in str(found)
    with pytest.raises(litz.RuleError, match="atention"):
        litz.explain_match(lambda x: x, q, rule="atention")


def test_patterns_on_file_are_current() -> None:
    assert FILE.read_text() == current(), "run python -m litz.graph.serialize"


def test_long_attention_takes_less_memory() -> None:
    """2,000 tokens, causal, written by hand. How much faster it is: `python -m benchmarks.rewrite`."""

    def attend(q, k, v):
        visible = torch.arange(2000).unsqueeze(0) <= torch.arange(2000).unsqueeze(1)
        return torch.softmax((q @ k.mT / 8).masked_fill(~visible, float("-inf")), -1) @ v

    q, k, v = (torch.randn(1, 4, 2000, 64) for _ in range(3))
    arena = {}
    with torch.no_grad():
        for fuel in (0, None):
            torch._dynamo.reset()
            compiled = litz.compile(attend) if fuel is None else litz.compile(attend, fuel=fuel)
            torch.testing.assert_close(compiled(q, k, v), attend(q, k, v), rtol=1e-4, atol=1e-5)
            arena[fuel] = litz.last_report().arena_bytes
    assert arena[None] < arena[0] / 10


# -- rules for other stages, and patterns on file ---------------------------------------------------
def _stages_of(report: litz.Report, name: str) -> int:
    return sum(firing.times for firing in report.firings if firing.rule == name)


def test_a_rule_before_autograd() -> None:
    @litz.rule(call(torch.sub, Arg("x"), Arg("x")), stage="rewrite_pre_grad")
    def nothing_left(match: Match) -> fx.Node:
        return match.call(torch.zeros_like, match["x"])

    compiled = litz.compile(lambda x: x.sin().sub(x.sin()) + torch.sub(x, x) + x, rules=(nothing_left,))
    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(compiled(x), x.detach())
    assert _stages_of(litz.last_report(), "nothing_left") == 1  # of `sub(x, x)`: the sines are two calls


def test_a_rule_after_the_split() -> None:
    seen: list[str] = []

    @litz.rule(call(aten.cos.default, Arg("x")), stage="rewrite_post_grad")
    def shifted(match: Match) -> fx.Node:
        seen.append(match.root.name)
        return match.call(aten.sin.default, match.call(aten.add.Tensor, match["x"], torch.pi / 2))

    compiled = litz.compile(lambda x: x.sin(), rules=(shifted,))
    x = torch.randn(3, requires_grad=True)
    result = compiled(x)
    assert seen == []  # the cosine is the backward's
    result.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert len(seen) == 1 and _stages_of(litz.last_report(), "shifted") == 1
    with torch.no_grad():
        torch.testing.assert_close(litz.compile(lambda x: x.cos() * 2, rules=(shifted,))(x), x.cos() * 2)
    assert len(seen) == 2


def test_a_stage_that_has_no_rules() -> None:
    with pytest.raises(litz.RuleError, match=r"'lower'(.|\n)*rewrite_pre_grad, rewrite_joint, rewrite_post_grad"):
        litz.rule(call(aten.cos.default, Arg("x")), stage="lower")(lambda match: None)
    with pytest.raises(litz.RuleError, match="there are none before autograd"):
        litz.register_replacement(torch.sin, torch.sin, [torch.ones(2)], stage="rewrite_pre_grad")


def test_patterns_of_ones_own_on_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.exp(x) + torch.exp(y))

    examples = [torch.empty(2), torch.empty(2)]
    traced = litz.register_replacement(slow, torch.logaddexp, examples, name="stable")
    litz.save_patterns(tmp_path / "my_patterns.py", [traced])
    patterns = runpy.run_path(str(tmp_path / "my_patterns.py"))["PATTERNS"]
    assert patterns == {"stable": traced.pattern}
    monkeypatch.setattr("litz.graph.replacement._Replacement.checked_pattern", None)  # nothing is traced
    loaded = litz.register_replacement(slow, torch.logaddexp, examples, name="stable", pattern=patterns["stable"])
    monkeypatch.undo()
    x = torch.randn(4)
    with torch.no_grad():
        litz.compile(lambda x: slow(x, x + 1), rules=(loaded,))(x)
    assert _stages_of(litz.last_report(), "stable") == 1
    before = litz.rule(call(torch.sub, Arg("x"), Arg("x")), stage="rewrite_pre_grad")(lambda match: None)
    litz.save_patterns(tmp_path / "before.py", [before])
    assert list(runpy.run_path(str(tmp_path / "before.py"))["PATTERNS"].values()) == [before.pattern]
    with pytest.raises(litz.RuleError, match="'stable' is the name of several rules"):
        litz.save_patterns(tmp_path / "two.py", [traced, loaded])


def test_a_pattern_that_has_no_spelling(tmp_path: Path) -> None:
    own = litz.rule(call(lambda x: x, Arg("x")), stage="rewrite_pre_grad")(lambda match: None)
    with pytest.raises(litz.RuleError, match="cannot be saved"):
        litz.save_patterns(tmp_path / "none.py", [own])
