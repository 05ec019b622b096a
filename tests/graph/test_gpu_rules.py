"""Rules for GPUs: they hold for tensors of GPUs alone, and what they do is right anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from litz.capture.joint import trace_joint
from litz.context import Context
from litz.graph.partition.split import split
from litz.graph.replacement import forward_only
from litz.graph.rewrite import Rules, apply_rules
from litz.graph.rules import padding
from litz.graph.rules.gpu import GPU
from litz.graph.rules.loss import LOSS
from litz.graph.rules.padding import PADDING, Padding, padding_for
from litz.ops.lower import lower
from litz.options import Options
from litz.runtime.artifact import Artifact
from litz.schedule.fuse import fuse
from litz.schedule.simplify import mark_outputs, merge_axes
from tests.codegen.emulate import gpu_target, run
from tests.codegen.gpu_programs import compile_for_gpu
from tests.codegen.test_gpu_programs import Block, ids
from tests.graph.rewriting import Rewritten, context, rewrite

aten = torch.ops.aten


def anywhere(rules: Rules, *names: str) -> Rules:
    return tuple(replace(r, extra_check=None) for r in rules if not names or r.name in names)


def rewritten(function: Callable[..., Any], inputs: list[Any], rules: Rules, **options: Any) -> Rewritten:
    return rewrite(lambda *args: (function(*args),), inputs, anywhere(rules), **options)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "_pays", lambda *given: True)


CASES: dict[str, tuple[Rules, Callable[..., Any], list[torch.Tensor]]] = {
    "pad_mm": (PADDING, lambda a, b: a @ b, [torch.randn(257, 255), torch.randn(255, 259)]),
    "pad_addmm": (PADDING, lambda a, b: torch.addmm(b[0], a, b), [torch.randn(257, 255), torch.randn(255, 259)]),
    "linear_permute": (
        GPU,
        lambda x, w: F.linear(x, w, w[:, 0]).transpose(1, 2).contiguous(),
        [torch.randn(2, 5, 8), torch.randn(6, 8)],
    ),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", CASES)
def test_they_do_nothing_on_the_cpu_and_are_right(name: str) -> None:
    rules, function, inputs = CASES[name]
    assert rewrite(lambda *args: (function(*args),), inputs, rules).fired == {}
    assert rewritten(function, inputs, rules, tolerance=1e-3).fired == {name: 1}
    done = rewritten(function, inputs, rules, tolerance=1e-2, training=True)
    # That one runs after the split, where the backward no longer holds on to the linear layer's result.
    assert done.fired.get(name) or name == "linear_permute"


# -- activations --------------------------------------------------------------------------------------
def layers(activation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w, b: activation(F.linear(x, w, b)) @ w


X, W, B = torch.randn(2, 5, 16).bfloat16(), torch.randn(16, 16).bfloat16(), torch.randn(16).bfloat16()


@pytest.mark.parametrize("activation", [F.relu, lambda x: F.gelu(x, approximate="tanh")], ids=["relu", "gelu"])
def test_activations_are_part_of_the_product(activation: Callable[..., Any]) -> None:
    done = rewritten(layers(activation), [X, W, B], GPU, tolerance=5e-2)
    assert done.fired == {"activation_in_product": 1} and done.count(aten._addmm_activation.default) == 1
    # The user, too, reads it from memory.
    assert rewritten(lambda x, w, b: activation(F.linear(x, w, b)), [X, W, B], GPU, tolerance=5e-2).fired


def test_activations_that_are_left() -> None:
    assert rewritten(layers(F.gelu), [X, W, B], GPU).fired == {}
    tanh = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731
    # A kernel of ours reads it; the product is read by others; in float32 the library is less exact.
    assert rewritten(layers(lambda x: tanh(x) * 2), [X, W, B], GPU).fired == {}
    assert rewritten(lambda x, w, b: (lambda h: tanh(h) @ w + h)(F.linear(x, w, b)), [X, W, B], GPU).fired == {}
    assert rewritten(layers(tanh), [X.float(), W.float(), B.float()], GPU).fired == {}
    assert rewritten(layers(F.relu), [X.float(), W.float(), B.float()], GPU).fired == {"activation_in_product": 1}


@pytest.mark.parametrize("activation", ["relu", "tanh", "none"])
def test_activations_in_training(activation: str) -> None:
    """The backward of `relu` reads its result; that of `gelu` what it was computed from, which is kept then."""
    made = compile_for_gpu(Block(activation=activation).bfloat16(), {"ids": ids(), "labels": ids()}, training=True)
    assert made.fired.get("activation_in_product", 0) == int(activation == "relu")
    inference = compile_for_gpu(Block(activation=activation).bfloat16(), {"ids": ids()})
    assert inference.fired.get("activation_in_product", 0) == int(activation != "none")


# -- padding ------------------------------------------------------------------------------------------
def test_what_lies_side_by_side_is_padded() -> None:
    def of(a: torch.Tensor, b: torch.Tensor) -> Padding:
        return padding_for(a.bfloat16(), b.bfloat16())

    rows, columns = torch.empty(257, 64), torch.empty(64, 257)
    assert of(rows, torch.empty(64, 64)) == (0, 0, 0)  # nobody reads 257 elements that are neighbours
    assert of(rows, columns) == (0, 0, 7)
    assert of(columns.t(), torch.empty(64, 64)) == (7, 0, 0)
    assert of(torch.empty(64, 257), torch.empty(257, 64)) == (0, 7, 0)
    assert of(torch.empty(64, 257), torch.empty(64, 257).t()) == (0, 7, 0)
    assert of(torch.empty(257, 64).t(), torch.empty(257, 64)) == (0, 0, 0)
    assert of(torch.empty(64, 64), torch.empty(64, 7)) == (0, 0, 0)  # more would be added than there is
    assert padding_for(rows.double(), columns.double()) == (0, 0, 0)


def test_a_product_of_good_sizes_is_not_padded() -> None:
    good = [torch.randn(256, 256), torch.randn(256, 264)]
    both = lambda a, b: (a @ b) + torch.addmm(b[0], a, b)  # noqa: E731
    assert rewritten(both, good, PADDING + GPU, tolerance=1e-3).fired == {}
    # Transposed, but not copied: the layout costs nothing.
    turned = lambda x, w: F.linear(x, w, w[:, 0]).transpose(1, 2) * 2  # noqa: E731
    assert rewritten(turned, [torch.randn(2, 5, 8), torch.randn(6, 8)], GPU).fired == {}


@pytest.mark.usefixtures("always")
def test_nothing_is_copied_that_nobody_needs() -> None:
    a, b = torch.randn(64, 64), torch.randn(64, 67)
    assert rewritten(lambda a, b: (a @ b).exp().sum(1), [a, b], PADDING).count(aten.clone.default) == 0
    # The user, and what is called as it is, see the layout.
    assert rewritten(lambda a, b: a @ b, [a, b], PADDING).count(aten.clone.default) == 1
    assert rewritten(lambda a, b: torch.sort(a @ b).values, [a, b], PADDING).count(aten.clone.default) == 1
    # Of a step, the gradient of `b`, which is the user's.
    step = rewritten(lambda a, b: (a @ b).relu().sum(1), [a, b], PADDING, training=True, tolerance=1e-3)
    assert step.count(aten.clone.default) == 1


@pytest.mark.usefixtures("always")
def test_what_is_padded_for_two_products_is_made_once() -> None:
    """The gradient of a product, which both factors' gradients read: a kernel writes it where it is padded."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w.t()).tanh().sum()

    done = rewritten(function, [torch.randn(64, 64), torch.randn(67, 64)], PADDING, training=True, tolerance=1e-3)
    assert done.fired == {"pad_mm": 3}, done.outcome.errors
    assert done.count(aten.cat.default) == 1
    (cat,) = (node for node in done.graph.graph.nodes if node.target is aten.cat.default)
    products = [n for n in done.graph.graph.nodes if n.target is aten.mm.default and _reads(n, cat)]
    assert len(products) == 2
    assert [u.target for u in cat.args[0][0].users] == [aten.cat.default]  # all others read the padded one


def _reads(node: fx.Node, other: fx.Node) -> bool:
    return any(n is other or (n.target is aten.transpose.int and n.args[0] is other) for n in node.all_input_nodes)


@pytest.mark.usefixtures("always")
def test_batches_and_windows() -> None:
    a, b = torch.randn(3, 64, 65), torch.randn(3, 65, 70)
    assert rewritten(torch.bmm, [a, b], PADDING, tolerance=1e-3).fired == {"pad_mm": 1}
    window = lambda a, b: torch.bmm(a[:, :, 1:], b[:, 1:].exp()) * 2  # noqa: E731
    assert rewritten(window, [a, b], PADDING, tolerance=1e-3, training=True).fired["pad_mm"] >= 1


@pytest.mark.usefixtures("always")
def test_a_result_that_the_backward_reads_as_the_user_left_it_is_not_padded() -> None:
    both = lambda x, w: (lambda h: (h, F.gelu(h).sum()))(x @ w)  # noqa: E731
    done = rewrite(both, [torch.randn(64, 64), torch.randn(64, 67)], anywhere(PADDING), training=True, tolerance=1e-3)
    (product, *_) = (n for n in done.graph.graph.nodes if n.target is aten.mm.default)
    assert tuple(product.meta["val"].shape) == (64, 67)


def test_times_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {67: 10.0, 68: 1.0}
    monkeypatch.setattr(padding, "milliseconds", lambda product, cache: times[product.b.columns])
    monkeypatch.setattr(padding, "milliseconds_a_byte", lambda device, cache: 0.0)
    inputs = [torch.randn(64, 64), torch.randn(64, 67)]
    summed = lambda a, b: (a @ b).exp().sum(1)  # noqa: E731
    assert rewritten(summed, inputs, PADDING).fired == {"pad_mm": 1}
    times[67] = 1.02
    done = rewritten(summed, inputs, PADDING)
    assert done.fired == {} and "longer than it saves" in done.misses[0].why
    # Copies count, for whom they are made.
    times[67] = 10.0
    monkeypatch.setattr(padding, "milliseconds_a_byte", lambda device, cache: 10.0 / (2 * 64 * 67 * 4))
    assert rewritten(summed, inputs, PADDING).fired == {}
    exponents = lambda a, b: (a @ b.exp()).exp().sum(1)  # noqa: E731
    assert rewritten(exponents, inputs, PADDING).fired == {"pad_mm": 1}


# -- losses -------------------------------------------------------------------------------------------
LABELS = torch.tensor([0, 6, 3, -100, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cast", [False, True], ids=["as it is", "cast"])
def test_losses(reduction: str, dtype: torch.dtype, cast: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x * 2
        return F.cross_entropy(x.float() if cast else x, y, reduction=reduction)

    x = torch.randn(5, 7).to(dtype)
    assert rewrite(lambda x, y: (function(x, y),), [x, LABELS], LOSS).fired == {}
    for training in (False, True):
        # In bfloat16 eager adds losses up in it, and Litz in float32.
        near = 1e-2 if dtype == torch.bfloat16 and not cast else 1e-5
        done = rewritten(function, [x, LABELS], LOSS, training=training, tolerance=near)
        wanted = {"log_softmax_again": 1, "cross_entropy": 2 if training else 1}
        assert done.fired == wanted | ({"cross_entropy_backward": 1} if training else {})


def test_losses_that_are_left() -> None:
    x = torch.randn(5, 7)
    none = lambda x, y: F.cross_entropy(x, y, reduction="none")  # noqa: E731
    assert "cross_entropy" not in rewritten(none, [x, LABELS], LOSS, training=True).fired
    weighted = lambda x, y: F.cross_entropy(x, y, weight=x[0].detach().exp())  # noqa: E731
    assert "cross_entropy" not in rewritten(weighted, [x, LABELS], LOSS, training=True).fired
    # The user has them, or others read them.
    seen = lambda x, y: (lambda p: (p, F.nll_loss(p, y)))(x.log_softmax(-1))  # noqa: E731
    assert rewrite(seen, [x, LABELS], anywhere(LOSS)).fired == {}
    read = lambda x, y: (lambda p: F.nll_loss(p, y) + p.sort(-1).values[0, 0])(x.log_softmax(-1))  # noqa: E731
    assert rewritten(read, [x, LABELS], LOSS).fired == {}


def test_rows_without_a_finite_number() -> None:
    x = torch.randn(5, 7)
    x[0], x[1, 2], x[2, 0] = -torch.inf, torch.inf, torch.nan
    function = lambda x, y: F.cross_entropy(x * 2, y, reduction="sum")  # noqa: E731
    assert rewritten(function, [x, LABELS], LOSS, training=True).fired["log_softmax_again"] == 1


def kept(function: Callable[..., Any], x: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
    """What the forward keeps for the backward, besides arguments."""
    joint = trace_joint(lambda *args: function(*args), [x.requires_grad_(), *rest], None, {}, True)
    for rules in (PADDING, LOSS):
        apply_rules(joint.graph, anywhere(rules), context())
    parts = split(joint)
    (output,) = (n for n in parts.forward.graph.nodes if n.op == "output")
    nodes = output.args[0][joint.forward_outputs : joint.forward_outputs + parts.saved]
    return [node.meta["val"] for node in nodes]


def test_logarithms_are_not_kept() -> None:
    x, y = torch.randn(64, 64).bfloat16(), torch.randint(0, 64, (64,))
    found = kept(lambda x, y: F.cross_entropy((x @ x).float(), y), x, y)
    assert sum(t.numel() * t.element_size() for t in found) <= 64 * 64 * 2 + 64 * 8 + 64
    # What the user has he may write to, so that it is kept in a copy, in its own type.
    found = kept(lambda x, y: F.cross_entropy(x.float(), y), x.detach(), y)
    assert {t.dtype for t in found if t.numel() == 64 * 64} == {torch.bfloat16}


# -- whole programs -----------------------------------------------------------------------------------
def large_buffers(artifact: Artifact) -> list[tuple[str, int]]:
    """Those that are written, and have as many elements as there are logits."""
    plan = artifact.plan
    spans = [span.members for span in plan.shared] + [block.members for block in plan.apart]
    names = {name for members in spans for name in members} | {n for item in plan.items for n in item.makes}
    buffers = (plan.buffers[name] for name in sorted(names))
    return [(b.dtype, b.size.int) for b in buffers if b.size.int >= 2048 * 5003]


def test_a_head_of_odd_size() -> None:
    """Forward: the product, one kernel for the numbers of each row, one for the loss. Backward: one kernel for what
    comes back, whose result both products read as it lies."""

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(256, 5003, bias=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.linear(x.tanh()).float(), y)

    x, y = torch.randn(2048, 256).bfloat16(), torch.zeros(2048, dtype=torch.long)
    made = compile_for_gpu(Head().bfloat16(), {"x": x.requires_grad_(), "y": y}, training=True)
    assert made.fired["pad_mm"] == 3
    forward, backward = made.parts()
    saved = [b for b in backward.plan.buffers.values() if b.kind == "input" and b.dtype == "bf16"]
    assert max(b.size.int for b in saved) == 2048 * 5008
    assert large_buffers(backward) == [("bf16", 2048 * 5008)]
    assert large_buffers(forward) == [("bf16", 2048 * 5008)]


@pytest.mark.usefixtures("always")
def test_a_result_of_odd_size_is_computed_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "_IN_PIECES", 1 << 20)
    linear = torch.nn.Linear(64, 1003).bfloat16()
    made = compile_for_gpu(linear, {"input": torch.randn(2000, 64).bfloat16()})
    assert made.forward.built.calls == {"aten::addmm": 4}
    assert made.forward.built.arena_bytes < 2 * 512 * 1008 * 2


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("biased", [False, True])
def test_the_parts_are_right(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "_IN_PIECES", 1 << 17)
    x, w, bias = torch.randn(1100, 64), torch.randn(67, 64), torch.randn(67)
    graph = forward_only(lambda x, w, b: (F.linear(x, w, b if biased else None),), [x, w, bias])
    ctx = Context(Options(), gpu_target())
    apply_rules(graph, anywhere(PADDING), ctx)
    program = merge_axes(fuse(mark_outputs(lower(graph, ctx).program), ctx))
    (found,) = run(program, [x, w, bias]).results
    assert len(program.calls) == 3
    torch.testing.assert_close(found, F.linear(x, w, bias if biased else None), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("always")
def test_rows_known_only_at_run_time() -> None:
    linear = torch.nn.Linear(64, 1003).bfloat16()
    made = compile_for_gpu(lambda x: linear(x).exp().sum(-1), {"x": torch.randn(20, 64).bfloat16()}, dynamic=True)
    assert made.fired["pad_addmm"] == 1
    assert len(made.forward.plan.sizes) == 1
