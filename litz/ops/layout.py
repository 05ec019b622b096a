"""Which operators see how a tensor lies in memory.

In: an operator. Out: why it must be given tensors laid out as eager would have them, or None if it reads elements by
their indices alone. Litz lays some tensors out otherwise (convolutions run channels last, a fused attention writes
heads innermost); whatever stands here gets eager's layout first, so that nothing of that can be told from outside.

Careful by default: only what Litz generates is known to read by index. What it calls as it is may count in memory
order, round in it, or lay its own result out by it.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch

from litz.loop.operator import returns_view
from litz.ops import int8, library, lower
from litz.ops.registry import lowering_of

aten = torch.ops.aten

# Not called always, and yet they ask for strides.
_SEES = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: "called for most types, with rows that must lie together",
    aten._embedding_bag.default: "called for most forms, with a table that must lie in rows",
    aten._embedding_bag_forward_only.default: "called for most forms, with a table that must lie in rows",
    aten.view.dtype: "the same memory read as another type",
    aten.view_copy.dtype: "the same memory read as another type",
    aten.view_as_real.default: "the same memory read as another type",
    aten.view_as_complex.default: "the same memory read as another type",
}
# Called or writing, and yet only indices count.
_FOLLOWS = {
    aten.copy_.default: "element by element, from any layout to any other",
}
# Generated but for some results, here by number, which are drawn at random: those must lie as in eager, arguments and
# other results need not.
DRAWN = {aten.native_dropout.default: (1,), aten.bernoulli.p: (0,)}


@lru_cache(maxsize=None)
def why_it_sees_layouts(target: Any) -> str | None:
    if target is operator.getitem or target in int8.OPERATORS:
        return None
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return "not an operator of ATen: what it looks at is unknown"
    return depends_on_memory(target) or (None if target in _FOLLOWS or _reads_by_index(target) else _CALLED)


_CALLED = "called as it is: it may count, round or lay its result out in the order of memory"


@lru_cache(maxsize=None)
def depends_on_memory(target: torch._ops.OpOverload) -> str | None:
    """Why the operator's values, and not only their layout, may depend on where its arguments' elements lie."""
    if target in _SEES:
        return _SEES[target]
    if target in DRAWN:
        return None
    names = {argument.name for argument in target._schema.arguments}
    if "storage_offset" in names or {"size", "stride"} <= names:
        # A window's stride, of a convolution or a pool, comes with a `kernel_size`.
        return None if _is_made_of_nothing(target) else "takes strides or offsets in memory"
    if torch.Tag.nondeterministic_seeded in target.tags and "_scaled_dot_product_" not in target.name():
        return "draws random numbers in the order of memory"
    if target._schema.is_mutable and target not in _FOLLOWS:
        functional = lower.functional_form(target)
        return "writes in place" if functional is None else depends_on_memory(functional)
    return "keeps as many elements of memory as fit" if "resize" in target.name() else None


def _is_made_of_nothing(target: torch._ops.OpOverload) -> bool:
    """`empty_strided` and its like: an argument gives no more than type and device."""
    return "empty_strided" in target.name()


def _reads_by_index(target: torch._ops.OpOverload) -> bool:
    if returns_view(target) or target in lower.ALIASES:
        return True  # whether the layout allows the view is found when it is computed anew
    lowering = lowering_of(lower.functional_form(target) or target)
    return lowering is not None and lowering is not library.call
