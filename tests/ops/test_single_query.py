"""Attention of a single query, as a token at a time has: generated, over whatever cache and mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz.report import HISTORY

SCALE = 0.3


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, scale: float = SCALE) -> torch.Tensor:
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=shared)


def given(dtype: torch.dtype, heads: int = 4, keys: int = 37, size: int = 24) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(keys)
    shapes = ((2, 4, 1, size), (2, heads, keys, size), (2, heads, keys, size))
    return tuple(torch.randn(shape, generator=draw).to(dtype) for shape in shapes)


def check(*args: Any, dynamic: bool | None = None) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="litz", dynamic=dynamic)
    with torch.no_grad():
        eager, found = attend(*args), compiled(*args)
        exact = attend(*(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args))
    assert found.stride() == eager.stride() and found.dtype == eager.dtype
    floor = 8 * torch.finfo(eager.dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + floor


def calls() -> tuple[Any, ...]:
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    return report.calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_of_a_single_query(dtype: torch.dtype, mask: str | None) -> None:
    q, k, v = given(dtype)
    kept = torch.arange(37) <= 20
    masks = {None: None, "bool": kept.expand(2, 1, 1, 37), "float": torch.randn(2, 4, 1, 37).to(dtype)}
    check(q, k, v, masks[mask])
    assert calls() == ()


def test_heads_that_share_keys() -> None:
    check(*given(torch.float32, heads=2))
    assert calls() == ()


def test_a_cache_that_grows_is_one_program() -> None:
    torch._dynamo.reset()
    compiled, before = torch.compile(attend, backend="litz", dynamic=True), HISTORY.mark()
    with torch.no_grad():
        for keys in (5, 40, 600):
            args = given(torch.float32, keys=keys)
            torch.testing.assert_close(compiled(*args), attend(*args))
    assert calls() == () and len(HISTORY.since(before)) == 1


def test_where_every_key_is_masked_the_result_is_zero() -> None:
    q, k, v = given(torch.float32)
    check(q, k, v, torch.zeros(2, 1, 1, 37, dtype=torch.bool))


def test_a_query_that_is_nan_is_so_in_the_result() -> None:
    q, k, v = given(torch.float32)
    q[0, 1] = float("nan")
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(attend, backend="litz")(q, k, v)
    assert found[0, 1].isnan().all() and not found[1].isnan().any()


def test_the_library_s_where_that_is_asked_for() -> None:
    args = given(torch.float32)
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(attend, backend="litz", options={"matmul": "library"})(*args)
    torch.testing.assert_close(found, attend(*args))
    assert any("attention" in name for name, _ in calls())
