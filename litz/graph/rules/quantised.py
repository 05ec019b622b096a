"""Products and convolutions of quantised numbers: what is dequantised only to be multiplied is multiplied as it is.

In: a graph as quantisation in PyTorch's export leaves it (`quantized_decomposed`), with frozen weights: both factors of
a product dequantised from 8 bits. Out: the same, where the product is one of whole numbers, summed exactly
(`ops/int8.py`), and scales, zero points and the bias are arithmetic on its sums:

    sum of sx·(x - zx) · sw·w  =  (sum of x·w  -  zx · sum of w) · (sx · sw)

What depends on weights alone is computed once. Weights have no zero points, or ones that were zero when the program was
compiled, which is looked at again whenever its constants are made (`Recipe.zeros`). Each product looks through what
dequantises its operand, so that it does not matter who else reads that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Union

import torch
from torch import fx

from litz.graph.alias import is_view
from litz.graph.freeze.frozen import RELIED_ON, ZERO
from litz.graph.pattern import ANY, call
from litz.graph.rewrite import Match, Rules, rule
from litz.graph.rules.quantised_formulas import cast
from litz.graph.sizes import sizes
from litz.ops.int8 import INT8_CONVOLUTION, INT8_MM

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.convolution.default)
_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_PER_TENSOR = (
    "quantized_decomposed::dequantize_per_tensor", "quantized_decomposed::dequantize_per_tensor.tensor",
)  # fmt: skip
_PER_CHANNEL = ("quantized_decomposed::dequantize_per_channel",)
_LONGEST = (1 << 31) // (255 * 128)  # products of 8 bits whose sum 32 bits hold


@dataclass(frozen=True)
class _Factor:
    """`node`: the whole numbers, seen as the product sees them. `axis`: of the weight, along which scales vary."""

    node: fx.Node
    scale: Union[float, fx.Node]
    zero: Union[int, fx.Node, None]
    axis: int | None


@dataclass(frozen=True)
class _Stop:
    """What a walk from a product's operand towards what dequantises it has come to instead."""

    node: fx.Node
    why: str


@rule(call(_PRODUCTS, ..., users=ANY), any_size=True)
def quantised_product(match: Match) -> Any:
    x, weight, bias = _operands(match.root)
    sources = [_dequantised_at(node) for node in (x, weight)]
    if all(isinstance(source, _Stop) for source in sources) or match.root.meta["val"].device.type != "cpu":
        return None  # nothing here is quantised
    why = _why_not(match)
    if why is not None:
        return match.miss(why)
    factors = []
    for side, (node, source) in enumerate(zip((x, weight), sources, strict=True)):
        found = source if isinstance(source, _Stop) else _factor(match, node, source)
        if isinstance(found, _Stop):
            which, other = ("input", "weight") if side == 0 else ("weight", "input")
            return match.miss(
                f"its {which} is no dequantised tensor of 8 bits as its {other} is: {found.why}", found.node
            )
        factors.append(found)
    left, right = factors
    stop = _objection(match, left, right)
    if stop is not None:
        return match.miss(stop.why, stop.node if stop.node.op == "call_function" else None)  # an input has no line
    return _product(match, left, right, bias)


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None]:
    if node.target is aten.addmm.default:
        return node.args[1], node.args[2], node.args[0]  # type: ignore[return-value]
    bias = node.args[2] if node.target is aten.convolution.default else None
    return node.args[0], node.args[1], bias  # type: ignore[return-value]


def _why_not(match: Match) -> str | None:
    """What the product itself is, if it is none of those that are generated of whole numbers."""
    root = match.root
    if not match.ctx.target.generates_products or match.ctx.options.matmul == "library":
        return "products are not generated for this machine, or are not to be"
    if root.target is aten.addmm.default and (len(root.args) > 3 or root.kwargs):
        return "the bias or the product is scaled"
    if root.target is aten.convolution.default:
        transposed, groups = root.args[6], root.args[8]
        if transposed or groups != 1:
            return "the convolution is transposed" if transposed else "the convolution is in groups"
    shape = sizes(_operands(root)[1].meta["val"].shape)
    if not all(isinstance(size, int) for size in shape):
        return "the weight's sizes vary"
    depth = shape[0] if root.target is not aten.convolution.default else prod(shape[1:])
    return f"its sums have {depth} products, and 32 bits hold those of {_LONGEST}" if depth > _LONGEST else None


# -- what was dequantised ---------------------------------------------------------------------------
def _dequantised_at(node: fx.Node) -> Union[fx.Node, _Stop]:
    """The call that dequantises the tensor, or what it is a view or a narrower copy of."""
    while _is_step(node):
        node = node.args[0]  # type: ignore[assignment]
    name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else str(node.target)
    return node if name in _PER_TENSOR + _PER_CHANNEL else _Stop(node, f"it comes from {name}")


def _is_step(node: fx.Node) -> bool:
    """Whether it has the elements of its argument, each of them by itself."""
    if node.op != "call_function":
        return False
    return is_view(node) or node.target is aten.clone.default or _is_cast(node)


def _is_cast(node: fx.Node) -> bool:
    return node.target in _CASTS and node.meta["val"].dtype.is_floating_point and set(node.kwargs) <= {"dtype"}


def _factor(match: Match, node: fx.Node, source: fx.Node) -> Union[_Factor, _Stop]:
    """The whole numbers behind the operand; the views between are taken of them."""
    numbers, scale, zero = source.args[0], source.args[1], source.args[2]
    steps = []
    while node is not source:
        steps.append(node)
        node = node.args[0]  # type: ignore[assignment]
    axis = source.args[3] if str(source.target.name()) in _PER_CHANNEL else None  # type: ignore[union-attr]
    assert isinstance(numbers, fx.Node)
    for step in reversed(steps):
        if _is_cast(step):
            continue
        if axis is not None and step.target is not aten.clone.default:
            if not _turns(step):
                return _Stop(step, "a view of it does not keep its channels apart")
            axis = 1 - axis  # type: ignore[operator]
        numbers = match.call(step.target, numbers, *step.args[1:], **step.kwargs)
    return _Factor(numbers, scale, zero, axis)  # type: ignore[arg-type]


def _turns(view: fx.Node) -> bool:
    if view.target is aten.t.default:
        return view.meta["val"].dim() == 2
    if view.target is aten.transpose.int:
        return view.meta["val"].dim() == 2 and {d % 2 for d in view.args[1:]} == {0, 1}  # type: ignore[operator]
    return view.target is aten.permute.default and list(view.args[1]) == [1, 0]  # type: ignore[call-overload]


def _objection(match: Match, left: _Factor, right: _Factor) -> _Stop | None:
    if left.node.meta["val"].dtype not in (torch.uint8, torch.int8) or left.axis is not None:
        return _Stop(left.node, "the input has not one scale, or not 8 bits")
    if right.node.meta["val"].dtype is not torch.int8:
        return _Stop(right.node, "the weight's numbers are not signed ones of 8 bits")
    for value in (right.node, right.scale):
        if isinstance(value, fx.Node) and not match.is_frozen(value):
            return _Stop(value, "the weight is not frozen: compile with freeze=True")
    if isinstance(right.zero, fx.Node):
        if ZERO not in right.zero.meta and match.uniform(right.zero) != 0:
            return _Stop(right.zero, "the weight has zero points that are not known to be zero")
    elif right.zero:
        return _Stop(right.node, f"the weight has a zero point, {right.zero}")
    if right.axis is not None and right.axis != (0 if match.root.target is aten.convolution.default else 1):
        return _Stop(right.node, f"the weight's scales vary along dimension {right.axis}, over which the product sums")
    return None


# -- the product of whole numbers -------------------------------------------------------------------
def _product(match: Match, left: _Factor, right: _Factor, bias: fx.Node | None) -> fx.Node:
    root = match.root
    if isinstance(right.zero, fx.Node) and ZERO in right.zero.meta:
        right.zero.meta[RELIED_ON] = True
    x, zero = _unsigned(match, left)
    is_image = root.target is aten.convolution.default
    if is_image:
        stride, padding, dilation = root.args[3:6]
        beyond = None if isinstance(zero, int) else cast(match, zero, torch.uint8)
        number = zero if isinstance(zero, int) else 0
        sums = match.call(INT8_CONVOLUTION, x, right.node, beyond, number, stride, padding, dilation)
    else:
        sums = match.call(INT8_MM, x, right.node)
    if not isinstance(zero, int) or zero:
        sums = match.call(aten.sub.Tensor, sums, _for_channels(match, _shift(match, right, zero)))
    result = cast(match, sums, torch.float32)
    for scale in _scales(match, left, right):
        result = match.call(aten.mul.Tensor, result, _for_channels(match, scale))
    if bias is not None:
        wide = _for_channels(match, cast(match, bias, torch.float32))
        result = match.call(aten.add.Tensor, result, wide)
    return cast(match, result, root.meta["val"].dtype)


def _unsigned(match: Match, left: _Factor) -> tuple[fx.Node, Union[int, fx.Node]]:
    """The input as the instruction takes it, without signs, and its zero point."""
    zero = left.zero
    if isinstance(zero, fx.Node):
        zero = cast(match, zero, torch.int32)
    assert zero is not None
    if left.node.meta["val"].dtype is torch.uint8:
        return left.node, zero
    wide = cast(match, left.node, torch.int32)
    moved = match.call(aten.add.Tensor, wide, 128)
    x = cast(match, moved, torch.uint8)
    return x, zero + 128 if isinstance(zero, int) else match.call(aten.add.Tensor, zero, 128)


def _shift(match: Match, right: _Factor, zero: Union[int, fx.Node]) -> fx.Node:
    """What the input's zero point adds to the sums of each channel."""
    rank = right.node.meta["val"].dim()
    summed = [0] if match.root.target is not aten.convolution.default else list(range(1, rank))
    return match.call(aten.mul.Tensor, match.call(aten.sum.dim_IntList, right.node, summed, dtype=torch.int32), zero)


def _scales(match: Match, left: _Factor, right: _Factor) -> list[Union[float, fx.Node]]:
    """What the sums are multiplied by: one product where both are known before the call."""
    if isinstance(left.scale, fx.Node):
        own = cast(match, left.scale, torch.float32)
        return [right.scale, own]
    if not isinstance(right.scale, fx.Node):
        return [left.scale * right.scale]
    wide = cast(match, right.scale, torch.float64)
    both = match.call(aten.mul.Tensor, wide, left.scale)
    return [cast(match, both, torch.float32)]


def _for_channels(match: Match, value: Any) -> Any:
    """One number for each channel, or for all, seen so that it broadcasts over the product."""
    if not isinstance(value, fx.Node) or match.root.target is not aten.convolution.default:
        return value
    spatial = match.root.meta["val"].dim() - 2
    return match.call(aten.view.default, value, [value.meta["val"].numel(), *[1] * spatial])


QUANTISED: Rules = (quantised_product,)
