"""Reading an attention out of a graph, whatever way it is spelled.

In: the product of probabilities and values. Out: an `Attention`: queries, keys, values, scale and masks, or
the node and reason why it is none.

Structural: between the product, the softmax and the product of queries and keys, every operator is either
one that leaves the matrices alone (a regrouping of the batch, a copy, a cast), a scale, or a mask. So the
reader walks, and never compares with a list of spellings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.editor import same_layout
from litz.graph.sizes import Extent, elements, is_dense, sizes

aten = torch.ops.aten

PRODUCTS = (aten.bmm.default, aten.mm.default)
SOFTMAX = (aten._softmax.default, aten._safe_softmax.default)
_REGROUP = (
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.default, aten.squeeze.dims,
)  # fmt: skip
_COPY = (aten.clone.default, aten.alias.default, aten.detach.default)
_MUL = (aten.mul.Tensor, aten.mul.Scalar)
_DIV = (aten.div.Tensor, aten.div.Scalar)
_SWAPS = (aten.transpose.int, aten.permute.default, aten.t.default)

_MODERATE = 1e4  # numbers that scores are scaled by, or moved by, without much of their precision being lost

Uniform = Callable[[Any], Any]


class NoAttention(Exception):
    def __init__(self, node: fx.Node, why: str, matched: int):
        super().__init__(why)
        self.node, self.why, self.matched = node, why, matched


@dataclass(frozen=True)
class Mask:
    """Added to the scores times `factor`; or, with a `fill`, the places where scores are kept (or, `inverted`, not)."""

    node: fx.Node
    factor: float
    lead: tuple[int, ...]  # the batch dimensions of the scores it was applied to
    fill: float | None = None
    inverted: bool = False


@dataclass
class Attention:
    q: fx.Node  # (…, queries, size) as multiplied
    k: fx.Node  # (…, size, keys) as multiplied
    v: fx.Node  # (…, keys, size) as multiplied
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list)
    leads: list[tuple[int, ...]] = field(default_factory=list)  # batch dimensions seen on the way
    passed: list[fx.Node] = field(default_factory=list)  # nodes that the fused operator makes needless
    softmax: fx.Node | None = None
    shared: bool = False  # whether the nodes passed may be used by others: by a backward, in training

    @property
    def is_safe(self) -> bool:
        """Whether a row without any key is zero, and not NaN."""
        return self.softmax is not None and self.softmax.target is aten._safe_softmax.default


def shape(node: fx.Node) -> tuple[Any, ...]:
    """Its sizes, to be compared; symbolic ones by their form."""
    return sizes(node.meta["val"].shape)


def is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def read(root: fx.Node, uniform: Uniform, shared: bool = False) -> Attention:
    """The attention whose result is `root`; raises `NoAttention`. `shared`: others may use what is on the way."""
    probabilities, values = root.args[0], root.args[1]
    assert isinstance(probabilities, fx.Node) and isinstance(values, fx.Node)
    found = Attention(root, root, values, shared=shared)
    try:
        softmax = _to_softmax(probabilities, found)
    except NoAttention as no:
        # Most products have nothing to do with attention; those near a softmax are worth telling about.
        near = no.node.target in SOFTMAX or _softmax_above(no.node, 4)
        raise NoAttention(no.node, no.why, 1 if near else 0) from None
    found.softmax = softmax
    scores = softmax.args[0]
    assert isinstance(scores, fx.Node)
    if softmax.args[1] not in (-1, len(shape(softmax)) - 1):
        raise NoAttention(softmax, f"the softmax is over dimension {softmax.args[1]}, not the last", len(found.passed))
    _to_product(scores, 1.0, found, uniform)
    return found


def _to_softmax(node: fx.Node, found: Attention) -> fx.Node:
    matrix = shape(node)[-2:]
    while True:
        _only_use(node, found)
        found.passed.append(node)
        if shape(node)[-2:] != matrix:
            raise NoAttention(node, "it regroups the matrix of probabilities itself", 0)
        found.leads.append(shape(node)[:-2])
        if node.target in SOFTMAX:
            return node
        if not is_view(node) and node.target not in _COPY and not _is_cast(node, found.v.meta["val"].dtype):
            raise NoAttention(node, f"{_what(node)} is between the softmax and the product with the values", 0)
        node = _before_views(node, matrix, found)


def _before_views(node: fx.Node, matrix: tuple[int, ...], found: Attention) -> fx.Node:
    """The source of a copy or cast; or of a chain of views that, taken together, only regroups the batch."""
    start, source = node, _source(node)
    if not is_view(node) or (node.target in _REGROUP and shape(source)[-2:] == matrix):
        return source
    for _ in range(8):
        if shape(source)[-2:] == matrix and _is_reshaped(source.meta["val"], start.meta["val"]):
            return source
        if not is_view(source) or not is_tensor(source.args[0]):
            break
        _only_use(source, found)
        found.passed.append(source)
        source = _source(source)
    raise NoAttention(start, f"{_what(start)} rearranges the matrix", len(found.passed))


def _is_reshaped(whole: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether a view is the whole in another shape, its elements in the same order: strides tell."""
    if elements(whole.shape) != elements(view.shape):
        return False
    if any(isinstance(size, Extent) for size in (*sizes(whole.shape), *sizes(view.shape))):
        # Views of the same memory: if both are dense, their elements are in its order. More would fix the sizes.
        return is_dense(whole) and is_dense(view)
    try:
        return same_layout(whole.view(view.shape), view)
    except RuntimeError:
        return False


def _softmax_above(node: fx.Node, steps: int) -> bool:
    inputs = [i for i in node.all_input_nodes if i.op == "call_function"]
    return any(i.target in SOFTMAX for i in inputs) or (
        steps > 0 and any(_softmax_above(i, steps - 1) for i in inputs[:2])
    )


def _to_product(node: fx.Node, factor: float, found: Attention, uniform: Uniform) -> None:
    """Walks from the softmax down; `factor` multiplies all that is below."""
    matrix = shape(node)[-2:]
    while True:
        _only_use(node, found)
        target = node.target
        if shape(node)[-2:] != matrix:
            raise NoAttention(node, "it regroups the matrix of scores itself", len(found.passed))
        found.passed.append(node)
        lead = shape(node)[:-2]
        found.leads.append(lead)
        if target in PRODUCTS:
            found.q, found.k, found.scale = *_pair(node, 0), factor
            return
        if target is aten.baddbmm.default:
            beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
            if beta != 0:
                found.masks.append(Mask(node.args[0], factor * beta, lead))  # type: ignore[arg-type, operator]
            found.q, found.k, found.scale = *_pair(node, 1), factor * alpha  # type: ignore[operator]
            return
        if is_view(node) or target in _COPY or _is_cast(node):
            node = _before_views(node, matrix, found)
            continue
        scaled = scale_of(node, uniform)
        if scaled is not None:
            node, factor = scaled[0], factor * scaled[1]
        elif target is aten.add.Tensor:
            node = _added(node, factor, lead, found, uniform)
        elif target is aten.where.self or target is aten.masked_fill.Scalar or target is aten.masked_fill.Tensor:
            node = _filled(node, factor, lead, found, uniform)
        else:
            raise NoAttention(
                node, f"{_what(node)} is between the softmax and a product of queries and keys", len(found.passed)
            )


def _added(node: fx.Node, factor: float, lead: tuple[int, ...], found: Attention, uniform: Uniform) -> fx.Node:
    """One operand is a mask; the scores are the one that comes from a product."""
    alpha = node.kwargs.get("alpha", 1)
    a, b = node.args[0], node.args[1]
    if isinstance(b, (int, float)) and abs(b) <= _MODERATE:
        return a  # type: ignore[return-value]  # the same number everywhere does not change a softmax
    candidates = [
        (x, m, f) for x, m, f in ((a, b, factor * alpha), (b, a, factor)) if is_tensor(x) and shape(x) == shape(node)
    ]  # type: ignore[operator]
    for scores, mask, weight in candidates:
        if _comes_from_product(scores, uniform):  # type: ignore[arg-type]
            if scores is b and alpha != 1:
                break
            found.masks.append(Mask(mask, weight, lead))  # type: ignore[arg-type]
            return scores  # type: ignore[return-value]
    raise NoAttention(node, "neither operand of the addition is a product of queries and keys", len(found.passed))


def _filled(node: fx.Node, factor: float, lead: tuple[int, ...], found: Attention, uniform: Uniform) -> fx.Node:
    if node.target is aten.where.self:
        keep, scores, other, inverted = node.args[0], node.args[1], node.args[2], False
        if uniform(other) is None or (is_tensor(scores) and uniform(scores) is not None):
            scores, other, inverted = other, scores, True
    else:
        scores, keep, other = node.args[:3]
        inverted = True
    fill = uniform(other)
    if fill is None or fill != fill or not is_tensor(scores) or shape(scores) != shape(node):  # type: ignore[arg-type]
        raise NoAttention(node, "what replaces masked scores is not one known number", len(found.passed))
    found.masks.append(Mask(keep, factor, lead, fill * factor, inverted))  # type: ignore[arg-type]
    return scores  # type: ignore[return-value]


def _comes_from_product(node: fx.Node, uniform: Uniform) -> bool:
    """A look ahead, along the same steps the reader takes."""
    for _ in range(32):
        if node.target in PRODUCTS or node.target is aten.baddbmm.default:
            return True
        if is_view(node) or node.target in _COPY or _is_cast(node):
            node = _source(node)
            continue
        scaled = scale_of(node, uniform)
        if scaled is not None:
            node = scaled[0]
        elif node.target is aten.add.Tensor:
            operands = [a for a in node.args[:2] if is_tensor(a) and shape(a) == shape(node)]  # type: ignore[arg-type]
            return any(_comes_from_product(a, uniform) for a in operands)  # type: ignore[arg-type]
        elif node.target is aten.where.self:
            return any(is_tensor(a) and _comes_from_product(a, uniform) for a in node.args[1:3])  # type: ignore[arg-type]
        elif node.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
            node = _source(node)
        else:
            return False
    return False


def scale_of(node: fx.Node, uniform: Uniform) -> tuple[fx.Node, float] | None:
    """`(x, c)` if the node is `x * c` or `x / c` for one number c."""
    if node.target not in _MUL and node.target not in _DIV:
        return None
    a, b = node.args[0], node.args[1]
    if len(node.args) > 2 or node.kwargs:
        return None
    number = b if isinstance(b, (int, float)) else uniform(b)
    if number is not None and not _is_moderate(number):
        return None
    if number is not None and is_tensor(a) and shape(a) == shape(node):  # type: ignore[arg-type]
        if node.target in _DIV:
            return a, 1.0 / number  # type: ignore[return-value]
        return a, float(number)  # type: ignore[return-value]
    if node.target in _MUL and is_tensor(b) and shape(b) == shape(node):  # type: ignore[arg-type]
        number = uniform(a)
        return None if number is None or not _is_moderate(number) else (b, float(number))  # type: ignore[return-value]
    return None


def _is_moderate(factor: Any) -> bool:
    """Whether neither it nor what it is multiplied with at another place overflows or is lost: NaN is not."""
    return 1 / _MODERATE <= abs(factor) <= _MODERATE


def operand(
    node: fx.Node, lead: tuple[int, ...], flipped: bool, uniform: Uniform | None
) -> tuple[fx.Node, bool, float]:
    """Where a factor of a product comes from: an earlier node of shape `lead` + matrix, if there is one.

    Gives the node, whether its matrix is still transposed against what was asked, and the scale passed on
    the way: 1 without a `uniform`, for then no scale is passed. `flipped`: the product's factor is the transposed of
    what is wanted (keys).
    """
    matrix = shape(node)[-2:]
    best: tuple[fx.Node, bool, float] | None = None
    scale = 1.0
    while True:
        size = shape(node)
        if size[-2:] != (matrix if not flipped else matrix[::-1]) and size[-2:] != matrix:
            break
        if size[:-2] == lead and (best is None or not flipped or best[1]):
            best = (node, flipped, scale)
        target = node.target
        scaled = None if uniform is None else scale_of(node, uniform)
        if scaled is not None:
            node, scale = scaled[0], scale * scaled[1]
        elif target in _SWAPS:
            if not _swaps_last_two(node):
                break
            node, flipped, matrix = _source(node), not flipped, matrix[::-1]
        elif (target in _REGROUP or target in _COPY) and is_tensor(node.args[0]):
            source = _source(node)
            if shape(source)[-2:] != matrix or elements(shape(source)) != elements(shape(node)):
                break
            node = source
        else:
            break
    return best if best is not None else (node, flipped, float("nan"))


def _swaps_last_two(node: fx.Node) -> bool:
    rank = len(shape(node))
    if node.target is aten.t.default:
        return rank == 2
    if node.target is aten.transpose.int:
        return {int(d) % rank for d in node.args[1:3]} == {rank - 2, rank - 1}  # type: ignore[arg-type]
    order = [int(d) % rank for d in node.args[1]]  # type: ignore[arg-type, union-attr]
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _is_cast(node: fx.Node, to: torch.dtype | None = None) -> bool:
    """Whether it only changes the type, to one that has every number of the first: or to `to`, that of the product."""
    if node.target is not aten._to_copy.default or not is_tensor(node.args[0]):
        return False
    source, cast = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if not source.is_floating_point() or not cast.is_floating_point() or source.device != cast.device:
        return False
    return cast.dtype == to or torch.promote_types(source.dtype, cast.dtype) == cast.dtype


def _only_use(node: fx.Node, found: Attention) -> None:
    if len(node.users) > 1 and not found.shared:
        last = found.passed[-1] if found.passed else None
        other = next((u for u in node.users if u is not last), None)
        raise NoAttention(node, f"its result is also used by {other}", len(found.passed))


def _pair(node: fx.Node, first: int) -> tuple[fx.Node, fx.Node]:
    return node.args[first], node.args[first + 1]  # type: ignore[return-value]


def _source(node: fx.Node) -> fx.Node:
    return node.args[0]  # type: ignore[return-value]


def _what(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else f"a {node.op}"
