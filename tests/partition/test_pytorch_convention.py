"""The split given to whoever takes a partitioner: PyTorch's own ahead-of-time autograd calls and runs it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import litz
from litz.errors import OptionError


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v


def norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.layer_norm((x @ w).tanh() + b, (6,)) + x
    return x


def several(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x @ w).relu()
    return y, y.sin().sum(), y * b


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "attention": (attention, ((2, 5, 4), (2, 5, 4), (2, 5, 4))),
    "norms": (norms, ((5, 6), (6, 6), (6,))),
    "several": (several, ((5, 6), (6, 6), (6,))),
}


def compiled(function: Callable[..., Any], seen: dict[str, fx.GraphModule], **asked: Any) -> Callable[..., Any]:
    def noted(part: str, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen[part] = graph
        return graph

    partition = partial(litz.min_cut_rematerialization_partition, **asked)
    return aot_function(
        function, fw_compiler=partial(noted, "forward"), bw_compiler=partial(noted, "backward"), partition_fn=partition
    )


@pytest.mark.parametrize("asked", [{}, {"memory_budget": 0.4}, {"memory_budget": 0.0}, {"aggressive": True}], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_eagers(name: str, dynamic: bool, asked: dict[str, Any]) -> None:
    function, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    seen: dict[str, fx.GraphModule] = {}
    partition = partial(litz.min_cut_rematerialization_partition, **asked)

    def keep(part: str, graph: fx.GraphModule, _: Any) -> fx.GraphModule:
        seen[part] = graph
        return graph

    fast = aot_function(
        function, partial(keep, "forward"), partial(keep, "backward"), partition_fn=partition, dynamic=dynamic
    )
    for run in (fast, function):
        results = run(*inputs)
        total = sum(r.square().sum() for r in pytree.tree_leaves(results))
        grads = torch.autograd.grad(total, inputs)
        if run is fast:
            found = grads
    torch.testing.assert_close(found, grads)
    assert set(seen) == {"forward", "backward"}


def test_a_budget_keeps_less() -> None:
    function, shapes = PROGRAMS["norms"]
    kept = []
    for budget in (1.0, 0.5, 0.0):
        seen: dict[str, fx.GraphModule] = {}
        inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
        compiled(function, seen, memory_budget=budget)(*inputs).sum().backward()
        (output,) = (n for n in seen["forward"].graph.nodes if n.op == "output")
        values = [n.meta["val"] for n in output.args[0][1:] if n.op != "placeholder"]
        kept.append(sum(v.numel() * v.element_size() for v in values))
    assert kept[0] > kept[1] > kept[2] == 0


def test_operators_that_are_cheap() -> None:
    seen: dict[str, fx.GraphModule] = {}
    fast = compiled(lambda x, w: (x @ w).sin(), seen, recomputable_ops=[torch.ops.aten.mm])
    fast(*(torch.randn(4, 4, requires_grad=True) for _ in range(2))).sum().backward()
    products = [n for n in seen["backward"].graph.nodes if n.target is torch.ops.aten.mm.default]
    assert len(products) == 3


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"memory_budget": 1.5}, "0 to 1"),
        ({"memory_budget": "6GiB"}, "0 to 1"),
        ({"solver": "best"}, "dp"),
        ({"reduction": True}, "reductions"),
    ],
)
def test_bad_values(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        litz.min_cut_rematerialization_partition(
            fx.GraphModule(torch.nn.Module(), fx.Graph()), num_fwd_outputs=1, **asked
        )


def test_rules_by_name() -> None:
    """Each of them alone, and all: the choice changes, what is computed does not."""
    function, shapes = PROGRAMS["norms"]
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    want = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    names = ("reductions", "used_far_apart", "long_fusible_chains", "materialised_backward", "not_in_allow_list")
    for on in itertools.product((False, True), repeat=len(names)):
        found = compiled(function, {}, **dict(zip(names, on, strict=True)))(*inputs).square().sum()
        torch.testing.assert_close(torch.autograd.grad(found, inputs), want)
