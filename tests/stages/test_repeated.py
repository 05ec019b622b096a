"""What a trace works out once for calls that are alike: the same graph comes of it, in fewer questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from litz.capture import functional
from litz.capture.joint import trace_joint
from litz.capture.repeated import Repeated
from litz.graph.signature import Joint
from litz.ops.decompose import decompositions


def traced(function: Callable[..., Any], *given: torch.Tensor, training: bool = False) -> Joint:
    with torch.set_grad_enabled(training):
        return trace_joint(function, given, None, decompositions(), training)


def described(joint: Joint) -> list[Any]:
    """Every node, with all that is known of its value."""
    found: list[Any] = []
    for node in joint.graph.graph.nodes:
        values = node.meta.get("val")
        tensors = [v for v in (values if isinstance(values, (tuple, list)) else [values]) if hasattr(v, "stride")]
        forms = [
            (t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.is_conj(), t.is_neg(), t.requires_grad)
            for t in tensors
        ]
        found.append((node.format_node(), forms))
    return found


def numbers(x: torch.Tensor) -> list[torch.Tensor]:
    """Arguments that compare equal, and have results of other types."""
    n = x.long()
    return [n + 1, n + 1.0, n + True, n * 2, n * 2.0, x + 1, x + 1.0, n + 1, n + 1.0]


def views(x: torch.Tensor) -> list[torch.Tensor]:
    halves = [part.t() for part in x.split(2)] + [part.t() for part in x.split(2)]
    return [*halves, x[1:] + x[1:], x[:-1] + x[:-1], x.unsqueeze(0)[:, 1:] * 2, x.unsqueeze(0)[:, 1:] * 2]


def laid_out(x: torch.Tensor) -> list[torch.Tensor]:
    """Whose strides are eager's, not the fakes'."""
    turned = x.t()
    return [turned.pow(2), turned.pow(2), turned + x.new_ones(6, 1), turned + x.new_ones(6, 1), turned * turned]


def written(x: torch.Tensor) -> list[torch.Tensor]:
    y = x + 1
    y[1:].mul_(2)
    z = x + 1
    z[1:].mul_(2)
    return [y, z, y.add_(z), z.t().contiguous()]


def conjugated(x: torch.Tensor) -> list[torch.Tensor]:
    z = torch.complex(x, x)
    return [z.conj() * z, z.conj().imag + 1, z * z, torch.view_as_real(z.conj().resolve_conj()), z.conj() * z]


def several(x: torch.Tensor) -> list[torch.Tensor]:
    (a, i), (b, j) = x.max(0), x.max(0)
    return [a, b, i, j, *torch.std_mean(x, 1), *torch.std_mean(x, 1), torch.cat([x, x]), torch.cat([x, x])]


@pytest.mark.parametrize("function", [numbers, views, laid_out, written, conjugated, several])
@pytest.mark.parametrize("training", [False, True])
def test_the_graph_is_the_same(function: Callable[..., Any], training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6, requires_grad=training)
    quick = described(traced(function, x, training=training))
    monkeypatch.setattr(functional, "_makes_new_values", lambda func: False)
    monkeypatch.setattr(Repeated, "__call__", lambda self, func, args, kwargs: self._asked(func, args, kwargs))
    assert described(traced(function, x, training=training)) == quick


class Layers(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(count))
        self.projections = nn.ModuleList(nn.Linear(16, 48) for _ in range(count))
        self.outs = nn.ModuleList(nn.Linear(16, 16) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, projection, out in zip(self.norms, self.projections, self.outs, strict=True):
            q, k, v = projection(norm(x)).unflatten(-1, (3, 4, 4)).transpose(1, 3).unbind(2)
            x = x + out(F.gelu((q @ k.transpose(1, 2)).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x


def test_a_second_layer_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = Repeated._asked
    monkeypatch.setattr(
        Repeated, "_asked", staticmethod(lambda func, args, kwargs: asked.append(func) or ask(func, args, kwargs))
    )

    def questions(layers: int) -> int:
        asked.clear()
        model = Layers(layers)
        names, parameters = zip(*model.named_parameters(), strict=True)
        traced(
            lambda x, *given: torch.func.functional_call(model, dict(zip(names, given, strict=True)), (x,)),
            torch.randn(2, 4, 16), *parameters, training=True,
        )  # fmt: skip
        return len(asked)

    assert questions(2) == questions(6) > 0


def test_a_view_that_is_remembered_lies_in_the_memory_it_is_of() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x[1:] * 2, y[1:] * 2, x[1:] * 2]

    nodes = list(traced(function, torch.randn(4, 6), torch.randn(4, 6)).graph.graph.nodes)
    parts = [node for node in nodes if node.target is torch.ops.aten.slice.Tensor]
    assert len(parts) == 3
    for part in parts:
        whole = part.args[0].meta["val"]
        assert part.meta["val"].untyped_storage()._cdata == whole.untyped_storage()._cdata
        assert part.meta["val"].storage_offset() == 6


def test_inputs_in_one_piece_of_memory_are_fakes_in_one() -> None:
    whole, alone = torch.randn(4, 6), torch.randn(4, 6)
    joint = traced(lambda *given: [x * 2 for x in given], whole, whole.view(24), whole[1:], alone)
    found = [n.meta["val"].untyped_storage()._cdata for n in joint.graph.graph.nodes if n.op == "placeholder"]
    assert found[0] == found[1] == found[2] != found[3]
