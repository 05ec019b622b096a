"""Elements as formulas of where they stand: each formula against the tensor itself, for several sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from litz.graph.elements import ALWAYS, Choice, Element, Elements, Truth, Whole, positions
from litz.graph.trace_example import trace_example
from litz.loop.expr import Axis, Expr
from tests.codegen.gpu_programs import compile_for_gpu
from tests.graph.rewriting import guards, symbolic

KIND = {torch.bool: bool, torch.int64: int, torch.float32: float}


class Sizes:
    """Two sizes, as symbols."""

    def __init__(self) -> None:
        (fake,) = symbolic(torch.empty(3, 7))
        self.mode, (self.b, self.s) = fake.fake_mode, fake.shape
        self.fake = fake

    def read(self, function: Callable[[Any, Any], torch.Tensor]) -> tuple[Element | None, torch.Tensor]:
        traced = trace_example(function, [self.b, self.s], self.mode)
        (output,) = (n for n in traced.graph.nodes if n.op == "output")
        return Elements(traced).of(output.args[0]), output.args[0].meta["val"]


def at(formula: Expr, place: dict[Axis, int], sizes: dict[str, int]) -> int:
    return formula.evaluate(lambda atom: place[atom] if isinstance(atom, Axis) else sizes[atom.name])  # type: ignore[index, attr-defined, return-value]


def element_at(element: Element, place: dict[Axis, int], sizes: dict[str, int]) -> Any:
    if isinstance(element, Whole):
        return at(element.number, place, sizes)
    when = element.when if isinstance(element, Choice) else element
    held = all(at(term, place, sizes) >= 0 for term in when.terms)
    return held if isinstance(element, Truth) else element.this if held else element.other


def rows(s: Any) -> torch.Tensor:
    return torch.arange(s)[:, None]


def columns(s: Any) -> torch.Tensor:
    return torch.arange(s)[None, :]


def packed(b: Any, s: Any) -> torch.Tensor:
    """As `transformers` finds out that a sequence is one."""
    ids = torch.arange(s).unsqueeze(0).expand(b, -1)
    return (torch.diff(ids, prepend=ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)


def from_packed(b: Any, s: Any) -> torch.Tensor:
    batch, q, k = torch.arange(b)[:, None, None], rows(s)[None], columns(s)[None]
    numbers = packed(b, s)
    return (k <= q) & (numbers[batch, q] == numbers[batch, k])


READ: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "positions": lambda b, s: torch.arange(s) * 2 - 3,
    "from a start": lambda b, s: torch.arange(2, s + 2),
    "causal": lambda b, s: columns(s) <= rows(s),
    "the other way round": lambda b, s: rows(s) < columns(s),
    "not": lambda b, s: ~(columns(s) > rows(s)),
    "all": lambda b, s: (columns(s) >= 0) & (rows(s) < s),
    "none": lambda b, s: columns(s) < 0,
    "near": lambda b, s: (rows(s) - columns(s) < 3) & (columns(s) <= rows(s)),
    "or": lambda b, s: (columns(s) <= rows(s)) | (columns(s) < 0) | (rows(s) > s),
    "expanded": lambda b, s: (columns(s) <= rows(s))[None, None].expand(b, 2, s, s),
    "turned": lambda b, s: (columns(s) <= rows(s)).t(),
    "views": lambda b, s: (columns(s) <= rows(s)).view(1, s, 1, s).squeeze(0).permute(1, 0, 2)[0],
    "parts": lambda b, s: torch.arange(s)[1:] - torch.arange(s)[: s - 1],
    "added": lambda b, s: torch.where(columns(s) <= rows(s), 0.0, float("-inf")),
    "filled": lambda b, s: torch.zeros(s, s).masked_fill(columns(s) > rows(s), -(2.0**100)),
    "packed": packed,
    "from packed": from_packed,
}


@pytest.mark.parametrize("name", READ)
def test_formulas_are_what_the_tensors_hold(name: str) -> None:
    sizes = Sizes()
    element, fake = sizes.read(READ[name])
    assert element is not None
    place = positions(fake)
    assert place is not None
    names = [str(size.node.expr) for size in (sizes.b, sizes.s)]
    for b, s in ((1, 4), (2, 3), (3, 9)):
        tensor = READ[name](b, s)
        known = dict(zip(names, (b, s), strict=True))
        for point in itertools.product(*map(range, tensor.shape)):
            standing = {next(iter(p.axes())): n for p, n in zip(place, point, strict=True) if p.axes()}
            assert KIND[tensor.dtype](element_at(element, standing, known)) == tensor[point].item()


def test_what_always_holds_is_dropped() -> None:
    sizes = Sizes()
    assert sizes.read(READ["all"])[0] == ALWAYS
    causal = sizes.read(READ["causal"])[0]
    assert isinstance(causal, Truth) and len(causal.terms) == 1
    assert isinstance(sizes.read(READ["from packed"])[0], Truth)
    (term,) = sizes.read(READ["from packed"])[0].terms  # type: ignore[union-attr]
    assert str(term) == "p1 - 1*p2"
    assert guards(sizes.fake) == 0  # nothing was asked of a size


UNREAD: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "either": lambda b, s: (columns(s) <= rows(s)) | (columns(s) == 0),
    "equal": lambda b, s: columns(s) == rows(s),
    "not of two": lambda b, s: ~((columns(s) <= rows(s)) & (columns(s) > 1)),
    "outside": lambda b, s: torch.arange(s)[torch.arange(s) + 1 - 1 + b],
    "running sum": lambda b, s: torch.arange(s).cumsum(0),
    "parts that differ": lambda b, s: torch.cat([torch.arange(1), torch.arange(s)]),
    "halves": lambda b, s: torch.arange(s) / 2,
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_no_formula(name: str) -> None:
    assert Sizes().read(UNREAD[name])[0] is None


# -- attention ----------------------------------------------------------------------------------------
MASKS: dict[str, tuple[Callable[[Any, Any], torch.Tensor], str]] = {
    "causal": (READ["expanded"], "flash"), "packed": (lambda b, s: from_packed(b, s)[:, None], "flash"),
    "all": (READ["all"], "flash"), "added": (READ["added"], "flash"), "filled": (READ["filled"], "flash"),
    "near": (READ["near"], "efficient"), "turned": (READ["turned"], "efficient"),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("training", [False, True])
def test_masks_over_any_size(name: str, training: bool) -> None:
    mask, kind = MASKS[name]

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made = mask(q.shape[0], q.shape[2])
        if made.dtype != torch.bool:
            made = made.to(q.dtype)
        if made.dim() == 4 and made.shape[1] == 2:
            made = made[:, :1]
        return F.scaled_dot_product_attention(q, k, v, made)

    given = {name: torch.randn(3, 4, 40, 64, dtype=torch.bfloat16, requires_grad=training) for name in "qkv"}
    made = compile_for_gpu(function, given, training=training, dynamic=True, snapshots=True)
    (called,) = (name for name in made.forward.built.calls if "attention" in name)
    assert called == f"aten::_scaled_dot_product_{kind}_attention"
    assert len(made.forward.plan.sizes) >= 2
    if kind == "flash":
        call = made.report.snapshot("lower").partition(f"{called}(")[2].partition("->")[0]
        assert ("True" in call) is (name != "all")
