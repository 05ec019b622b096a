"""Splitting the joint graph: the two sides are the whole, and what passes between them is the least that will do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from litz.capture.joint import trace_joint
from litz.graph.alias import base, is_view
from litz.graph.partition import maxflow
from litz.graph.partition.absent import without_tangents
from litz.graph.partition.again import fuses
from litz.graph.partition.extract import Split
from litz.graph.partition.maxflow import INFINITE, FlowNetwork, Residual
from litz.graph.partition.mincut import minimum_cut, problem_of
from litz.graph.partition.sides import Sides, sides_of
from litz.graph.partition.split import split
from litz.graph.signature import Input, Joint, Signature
from litz.ops.decompose import decompositions

aten = torch.ops.aten


def g(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def plain(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def mlp(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w).tanh() @ u


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.sin(), (6,), w, b) * x.exp().sum(-1, keepdim=True)


def views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x * 2).view(2, 12).t()
    return y.exp() * w, y[1:].sigmoid()


def shared(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x @ w).relu()
    return y, y.sin().sum(), (y * y).mean(0)


def mutated(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = x * b.clone()
    b.add_(1)
    return y.exp() * b


def image(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.conv2d(x, w).relu(), 2).square()


def widened(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.bfloat16() * 2
    return y, y.float().sin()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "mlp": (mlp, lambda: [g(5, 4), g(4, 7), g(7, 3)]),
    "attention": (attention, lambda: [g(2, 5, 4), g(2, 5, 4), g(2, 5, 4)]),
    "norm": (norm, lambda: [g(5, 6), g(6), g(6)]),
    "views": (views, lambda: [g(4, 6), g(2)]),
    "shared": (shared, lambda: [g(5, 4), g(4, 3)]),
    "mutated": (mutated, lambda: [g(5, 4), plain(4)]),
    "image": (image, lambda: [plain(2, 3, 8, 8), g(4, 3, 3, 3)]),
    "widened": (widened, lambda: [g(5, 4)]),
}
each = pytest.mark.parametrize("name", PROGRAMS)


def joint_of(name: str) -> tuple[Joint, list[torch.Tensor]]:
    torch.manual_seed(0)
    function, make = PROGRAMS[name]
    inputs = make()
    return trace_joint(function, inputs, None, decompositions(), True), [x.detach() for x in inputs]


def tangents_of(joint: Joint) -> list[torch.Tensor]:
    fakes = [n.meta["val"] for n in joint.graph.graph.nodes if n.op == "placeholder"][joint.primals :]
    return [torch.randn(f.shape, dtype=f.dtype) for f in fakes]


def flow(parts: Split, joint: Joint, inputs: list[Any], tangents: list[Any]) -> tuple[list[Any], list[Any]]:
    """The forward's own results and the gradients, passing from one side to the other what the split says."""
    results = list(parts.forward(*inputs))
    own, rest = results[: joint.forward_outputs], results[joint.forward_outputs :]
    taken = [*(inputs[i] for i in parts.saved_primals), *(own[i] for i in parts.saved_results), *rest]
    assert len(taken) == parts.taken
    return own, list(parts.backward(*taken, *tangents))


@each
def test_forward_and_backward_recombine_to_the_joint_graph(name: str) -> None:
    joint, inputs = joint_of(name)
    tangents = tangents_of(joint)
    # Each run gets its own inputs: a program may write to them.
    want = joint.graph(*(x.clone() for x in inputs), *tangents)
    own, gradients = flow(split(joint), joint, [x.clone() for x in inputs], tangents)
    torch.testing.assert_close([*own, *gradients], list(want), rtol=1e-12, atol=1e-12)


@each
def test_what_is_saved_is_the_least(name: str) -> None:
    """Against every other choice."""
    joint, _ = joint_of(name)
    graph = joint.graph.graph
    (output,) = (n for n in graph.nodes if n.op == "output")
    gradients = [n for n in output.args[0][joint.forward_outputs :] if isinstance(n, fx.Node)]
    sides = sides_of(joint)
    problem = problem_of(joint, sides)
    kept = minimum_cut(problem, lambda n: 0 if fuses(n) else INFINITE).kept
    needed, early, price = problem.needed, problem.nodes, problem.prices
    asked = {n for n in early if any(u in sides.late and u in needed for u in n.users) or n in gradients}
    read = {n for n in early if any(u in needed and sides.only_in_backward(u) for u in n.users)}
    by_then = sides.read_by_then(early)
    choices = [n for n in early if price[n] < INFINITE and n not in by_then]
    assert len(choices) <= 16, "too large to try every choice"
    best = min(
        sum(price[n] for n in chosen)
        for size in range(len(choices) + 1)
        for chosen in itertools.combinations(choices, size)
        if _suffices(set(chosen), asked, read, sides)
    )
    assert _suffices(set(kept), asked, read, sides)
    assert sum(price[n] for n in kept) == best


def _suffices(saved: set[fx.Node], asked: set[fx.Node], read: set[fx.Node], sides: Sides) -> bool:
    """What the backward asks for is saved, or made from such; formulas alone read what the caller sees, as it is."""
    if any(sides.owner(n) in sides.seen - saved for n in asked | read):
        return False
    todo = [(n, True) for n in asked]
    done = set(todo)
    while todo:
        node, as_it_is = todo.pop()
        whole = base(node)
        if node in saved and (as_it_is or node not in sides.seen):
            continue
        if whole is not node and whole in sides.seen:
            needs = {(whole, as_it_is)}
        elif node.op == "placeholder" or not (fuses(node) or sides.only_in_backward(node)):
            return False
        else:
            formula = sides.reads_what_is_seen(node)
            needs = {(other, formula) for other in node.all_input_nodes}
        todo += needs - done
        done |= needs
    return True


def kept_by(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Joint, Split]:
    joint = trace_joint(function, list(inputs), None, decompositions(), True)
    return joint, split(joint)


def test_an_argument_is_kept_where_eager_keeps_it_and_nowhere_else() -> None:
    """What eager took from it in the forward is kept, though making it again would cost nothing."""
    _, formula = kept_by(torch.sin, g(4))
    assert formula.saved_primals == (0,)
    _, result = kept_by(torch.sigmoid, g(4))
    assert (result.saved_primals, result.saved_results) == ((), (0,))
    _, inner = kept_by(lambda x: x.t().sigmoid() * 2, g(4, 4))
    assert (inner.saved_primals, inner.saved_results, inner.saved) == ((), (), 1)
    _, both = kept_by(lambda x: x * x.t().sigmoid(), g(4, 4))
    assert (both.saved_primals, both.saved_results, both.saved) == ((0,), (), 1)


def test_what_eager_makes_of_an_argument_in_the_backward_is_not_made_before() -> None:
    """Though the mask is smaller than what it is made of."""
    _, parts = kept_by(lambda x, w: torch.minimum(x, (x @ w) * 2), g(4, 4), g(4, 4))
    assert parts.saved_primals == (0, 1)
    (output,) = (n for n in parts.forward.graph.nodes if n.op == "output")
    assert all(n.meta["val"].dtype is not torch.bool for n in output.args[0])


def test_a_result_is_kept_where_eager_keeps_it_and_nowhere_else() -> None:
    _, parts = kept_by(lambda x, w: ((y := x @ w), y.t().sigmoid() * 2), g(4, 4), g(4, 4))
    assert (parts.saved_primals, parts.saved_results, parts.saved) == ((0, 1), (), 1)
    # Making it again is not reading what the caller has.
    _, again = kept_by(lambda x, w: (x @ w).sigmoid(), g(4, 4), g(4, 4))
    assert (again.saved_primals, again.saved_results, again.saved) == ((0, 1), (0,), 0)


def test_what_a_checkpoint_makes_again_is_made_from_its_arguments() -> None:
    from torch.utils.checkpoint import checkpoint

    def function(x: torch.Tensor) -> Any:
        return checkpoint(lambda x: x.sigmoid() * 2, x, use_reentrant=False)

    saved: list[torch.Tensor] = []
    x = torch.randn(64, requires_grad=True)
    fast = torch.compile(function, backend="litz")
    fast(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fast(x)
    assert [t.data_ptr() for t in saved] == [x.data_ptr()]


def test_what_was_cast_from_fewer_bits_is_kept_in_those() -> None:
    """The narrow one is the caller's, who may write to it; the wide one would take twice the bytes."""
    joint, inputs = joint_of("widened")
    parts = split(joint)
    (output,) = (n for n in parts.forward.graph.nodes if n.op == "output")
    (saved,) = output.args[0][joint.forward_outputs :]
    assert not parts.saved_results and saved.meta["val"].dtype == torch.bfloat16
    results = parts.forward(*inputs)
    assert results[-1].data_ptr() != results[0].data_ptr()


def test_random_draws_are_never_computed_again() -> None:
    def drops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x.sin(), 0.5) * torch.rand_like(x)).exp() @ w

    joint = trace_joint(drops, [g(6, 5), g(5, 3)], None, decompositions(), True)
    parts = split(joint)

    def draws(module: fx.GraphModule) -> int:
        tags = (getattr(n.target, "tags", ()) for n in module.graph.nodes)
        return sum(torch.Tag.nondeterministic_seeded in t for t in tags)

    assert draws(parts.forward) == 2 and draws(parts.backward) == 0


@each
def test_views_are_not_saved(name: str) -> None:
    joint, _ = joint_of(name)
    parts = split(joint)
    (output,) = (n for n in parts.forward.graph.nodes if n.op == "output")
    for node in output.args[0][joint.forward_outputs :]:
        assert not is_view(node), f"{node} is a window on something that is saved or alive already"


def test_saved_inputs_and_outputs_are_not_copied() -> None:
    from litz.capture.direct import compile_directly

    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    fast = compile_directly(lambda x, w: ((y := x @ w), (y * y).sum()))
    fast(x, w)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y, _ = fast(x, w)
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), w.data_ptr(), y.data_ptr()}


def test_an_input_that_is_written_to_is_saved_as_it_was() -> None:
    joint, _ = joint_of("mutated")
    parts = split(joint)
    assert 1 not in parts.saved_primals


# -- absent tangents ----------------------------------------------------------------------------------
@each
def test_without_tangents_is_the_backward_with_zeros(name: str) -> None:
    joint, inputs = joint_of(name)
    parts = split(joint)
    tangents = tangents_of(joint)
    for present in itertools.product((True, False), repeat=len(tangents)):
        absent = [i for i, p in enumerate(present) if not p]
        given = [t if p else torch.zeros_like(t) for t, p in zip(tangents, present, strict=True)]
        fresh = [x.clone() for x in inputs]
        _, want = flow(parts, joint, [x.clone() for x in inputs], given)
        graph = without_tangents(parts.backward, parts.taken, absent)
        part = Split(parts.forward, graph, parts.saved_primals, parts.saved_results, parts.saved, parts.taken)
        _, found = flow(part, joint, fresh, [t if p else None for t, p in zip(tangents, present, strict=True)])
        for mine, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(torch.zeros_like(theirs) if mine is None else mine, theirs)


def test_what_absent_tangents_alone_reach_is_not_computed() -> None:
    joint = trace_joint(lambda x, w, u: (x @ w, x @ u), [g(4, 5), g(5, 6), g(5, 7)], None, {}, True)
    parts = split(joint)

    def products(absent: tuple[int, ...]) -> int:
        graph = without_tangents(parts.backward, parts.taken, absent).graph
        return sum(n.target is aten.mm.default for n in graph.nodes)

    assert (products(()), products((1,)), products((0, 1))) == (4, 2, 0)


# -- size ----------------------------------------------------------------------------------------------
class Counted(list):
    reads = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(index)


def deep_joint(layers: int) -> Joint:
    """A residual network as a joint graph, written down and not traced: five forward nodes a layer."""
    graph = fx.Graph()
    fake = torch.empty(8, 8, device="meta")
    big = torch.empty(8, 32, device="meta")

    def call(target: Any, *args: Any, val: torch.Tensor = fake) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = val
        return node

    def argument(name: str) -> fx.Node:
        node = graph.placeholder(name)
        node.meta["val"] = fake
        return node

    x, w, tangent = argument("x"), argument("w"), argument("tangent")
    inner: list[tuple[fx.Node, ...]] = []
    value = x
    for _ in range(layers):
        up = call(aten.mm.default, value, w, val=big)
        act = call(aten.gelu.default, up, val=big)
        scaled = call(aten.mul.Tensor, act, 2.0, val=big)
        down = call(aten.mm.default, scaled, w)
        inner.append((up, scaled, value))
        value = call(aten.add.Tensor, value, down)
    flowing = tangent
    for up, scaled, before in reversed(inner):
        back = call(aten.mm.default, flowing, w, val=big)
        bent = call(aten.gelu_backward.default, back, up, val=big)
        weight = call(aten.mm.default, scaled, flowing)
        flowing = call(aten.add.Tensor, flowing, call(aten.mm.default, bent, w))
        flowing = call(aten.add.Tensor, flowing, call(aten.mul.Tensor, weight, before))
    graph.output([value, flowing])
    signature = Signature((Input(True), Input()), (), 1, (0,))
    return Joint(fx.GraphModule(torch.nn.Module(), graph), signature, 2, 1, (0,))


def test_work_grows_with_the_graph_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Residual.__init__

    def counting(self: Any, network: FlowNetwork) -> None:
        made(self, network)
        self.room, self.head = Counted(self.room), Counted(self.head)

    monkeypatch.setattr(Residual, "__init__", counting)
    monkeypatch.setattr(maxflow, "installed_solver", lambda: None)
    reads = []
    for layers in (125, 250, 500, 1000):
        joint = deep_joint(layers)
        assert len(joint.graph.graph.nodes) >= 10 * layers
        Counted.reads = 0
        split(joint)
        reads.append(Counted.reads)
    assert reads[-1] <= 10 * reads[0], f"eight times the nodes, {reads[-1] / reads[0]:.1f} times the work: {reads}"
