"""Every operator of ATen is known to see layouts or not to, by rule or by name."""

from __future__ import annotations

import operator
from functools import lru_cache

import torch

from litz.ops import coverage, lower
from litz.ops.layout import DRAWN, depends_on_memory, why_it_sees_layouts

aten = torch.ops.aten
# Words in a schema that speak of memory.
_TELLING = {"stride", "strides", "storage_offset", "storage", "generator"}
# Operators with such words that do not see layouts all the same, and why: whoever adds a lowering for another has to
# say so here, or in `ops/layout.py`.
_EXCUSED = {
    "a window's stride, over indices": {
        "avg_pool1d", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "convolution",
        "convolution_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices", "max_pool3d_with_indices_backward",
    },
    "made of nothing": {"empty_strided", "new_empty_strided"},
}  # fmt: skip


@lru_cache(maxsize=1)
def every() -> list[torch._ops.OpOverload]:
    return list(coverage._aten())


def test_words_that_speak_of_memory() -> None:
    excused = set().union(*_EXCUSED.values(), [coverage.name_of(o) for o in DRAWN if o is aten.bernoulli.p])
    telling = {coverage.name_of(o) for o in every() if _TELLING & {a.name for a in o._schema.arguments}}
    silent = {coverage.name_of(o) for o in every() if why_it_sees_layouts(o) is None}
    assert sorted(telling & silent - excused) == [], "said not to see layouts, and their schemas speak of memory"
    assert sorted(excused - telling & silent) == [], "excused without need"


def test_random_operators_see_layouts() -> None:
    """Numbers are drawn in the order of memory. Fused attention is marked random for a dropout that it is never asked
    for here, but it is called as it is, and so sees layouts too."""
    random = [o for o in every() if torch.Tag.nondeterministic_seeded in o.tags and o not in DRAWN]
    assert len(random) > 100
    assert [str(o) for o in random if why_it_sees_layouts(o) is None] == []


def test_what_is_written_in_place() -> None:
    """Sees layouts as the operator that writes nothing does; without one it is called, and sees them."""
    for written in every():
        if written._schema.is_mutable and written is not aten.copy_.default and why_it_sees_layouts(written) is None:
            functional = lower.functional_form(written)
            assert functional is not None and why_it_sees_layouts(functional) is None, written


def test_what_is_called_sees_layouts() -> None:
    called = [o for o in every() if coverage.treatment(o) in ("called", "library") and not o._schema.is_mutable]
    # Products are generated where that pays; as library calls they read by strides, as their kernels do.
    by_strides = {aten.baddbmm.default, aten._unsafe_view.default}
    assert {o for o in called if why_it_sees_layouts(o) is None} <= by_strides


def test_strangers_see_layouts() -> None:
    assert why_it_sees_layouts(torch.relu) is not None
    assert why_it_sees_layouts(torch.ops.prims.convert_element_type.default) is not None
    assert why_it_sees_layouts(operator.getitem) is None
    assert "strides" in str(why_it_sees_layouts(aten.as_strided.default))
    assert "memory" in str(depends_on_memory(aten.resize.default))
