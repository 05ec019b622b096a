"""What eager refuses, Litz refuses: types without a kernel, and numbers that a type does not hold; and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.ops import refused
from litz.ops.refused import is_refused

T = torch.tensor
I8, U8 = T([1, -2, 100], dtype=torch.int8), T([1, 2, 250], dtype=torch.uint8)
I16, I32, I64, B1 = T([1, -5], dtype=torch.int16), T([1, -5], dtype=torch.int32), T([1, -5]), T([True, False])
F32 = T([1.0, -5.0])
PLANE = torch.arange(64).view(1, 1, 8, 8)
aten = torch.ops.aten

RAISES: dict[str, tuple[Callable, torch.Tensor]] = {
    "where": (lambda x: torch.where(x > 0, x, 300), I8),
    "where_first": (lambda x: torch.where(x > 0, 300, x), U8),
    "where_wide": (lambda x: torch.where(x > 0, x, 2**40), I32),
    "full": (lambda x: torch.full((300, 300), 300, dtype=torch.int8)[:3, 0] + x, I8),
    "full_like": (lambda x: torch.full_like(x, 300), I8),
    "full_float": (lambda x: torch.full_like(x, 1e10), I32),
    "full_bytes": (lambda x: torch.full_like(x, -300), U8),
    "new_full": (lambda x: x.new_full((2,), 1000), I8),
    "fill": (lambda x: x.clone().fill_(300), I8),
    "fill_wide": (lambda x: x.clone().fill_(1 << 20), I16),
    "clamp_max": (lambda x: x.clamp(max=300), I8),
    "clamp_min": (lambda x: x.clamp(min=-300), I8),
    "hardtanh": (lambda x: F.hardtanh(x, -300, 300), I8),
    "alpha": (lambda x: torch.add(x, x, alpha=300), I8),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 300), I8),
    "pad": (lambda x: F.pad(x, (1, 1), value=300), I8),
    "pad_bytes": (lambda x: F.pad(x, (1, 1), value=-1), U8),
    "index_fill": (lambda x: x.index_fill(0, T([0]), 300), I8),
    "scatter": (lambda x: x.scatter(0, T([0]), 300), I8),
    "threshold": (lambda x: F.threshold(x, 0, 300), I8),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=300), I8),
    "index_put": (lambda x: x.index_put((T([0]),), T(300)), I8),
    "lerp": (lambda x: torch.lerp(x, x, 0.5), I64),
    "max_pool": (lambda x: F.adaptive_max_pool2d(x, 2), PLANE),
    "max_pool_line": (lambda x: F.adaptive_max_pool1d(x.argmax(1), 5), torch.randn(1, 1, 8)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3), PLANE.int()),
    "softmax": (lambda x: torch.softmax(x, -1), PLANE),
    "gelu": (lambda x: F.gelu(x), I64),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), PLANE),
    "mse": (lambda x: F.mse_loss(x, x, reduction="none"), I64),
    "bits": (lambda x: x.bitwise_xor(2), F32),
    "bits_of_both": (lambda x: x | x, F32.double()),
    "bits_beside_a_fraction": (lambda x: x & 2.0, I64),
    "bits_in_place": (lambda x: x.clone().bitwise_and_(x), F32),
    "other_bits": (lambda x: x.bitwise_not(), F32),
    "shift": (lambda x: torch.bitwise_left_shift(x, 2), F32),
    "grid": (lambda x: F.grid_sample(x.double(), torch.zeros(1, 2, 2, 2), align_corners=False), PLANE),
}
COMPUTES: dict[str, tuple[Callable, torch.Tensor]] = {
    "where": (lambda x: torch.where(x > 0, x, -1), I8),
    "where_bytes": (lambda x: torch.where(x > 0, x, 255), U8),
    "full_bytes": (lambda x: torch.full_like(x, -1), U8),
    "full_fraction": (lambda x: torch.full_like(x, 2.7), I32),
    "add": (lambda x: x + 300, I8),
    "subtract": (lambda x: 300 - x, U8),
    "multiply": (lambda x: x * 300, I8),
    "divide": (lambda x: (x / 300, x // 300, x % 300), I8),
    "compare": (lambda x: (x == 300, x < 300, x >= -300, x != -1), I8),
    "compare_bytes": (lambda x: (x != -1, x > -1, x < 300.5), U8),
    "compare_wide": (lambda x: x < 2**40, I32),
    "bits": (lambda x: (x & 300, x | 0x7F, x ^ -1), I8),
    "shift": (lambda x: (x << 300, x >> 9), I8),
    "power": (lambda x: x**2, I8),
    "truth": (lambda x: (x + 300, x == 2, torch.full((2,), 300, dtype=torch.bool) & x), B1),
    "sums": (lambda x: (x.sum(), x.cumsum(0), x.amax(), x.argmax(), x.float().mean(), x.any()), I64),
    "pools": (lambda x: (F.max_pool2d(x.float(), 2), F.max_pool2d(x, 2)), PLANE),
}


def outcome(function: Callable, x: torch.Tensor) -> object:
    try:
        return function(x.clone())
    except Exception as error:
        return error


@pytest.mark.parametrize("name", RAISES)
def test_what_eager_refuses(name: str) -> None:
    function, x = RAISES[name]
    torch._dynamo.reset()
    eager, mine = outcome(function, x), outcome(torch.compile(function, backend="litz"), x)
    assert isinstance(eager, Exception), f"eager computes {eager}"
    assert type(mine) is type(eager), f"{mine} where eager raises {eager!r}"
    assert litz.last_report().left_to_eager is None


@pytest.mark.parametrize("name", COMPUTES)
def test_what_eager_computes(name: str) -> None:
    function, x = COMPUTES[name]
    torch._dynamo.reset()
    eager, mine = outcome(function, x), outcome(torch.compile(function, backend="litz"), x)
    torch.testing.assert_close(mine, eager)
    assert not litz.last_report().notes


def test_floats_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "_refuses", lambda question: pytest.fail(f"asked {question}"))
    x = torch.ones(3)
    assert not is_refused(aten.add.Tensor, (x, 300), {}, x)
    assert not is_refused(aten.cat.default, ([x.double(), x.double()],), {}, x.double())
    assert not is_refused(aten.full.default, ([3], 1e40), {}, x)


def test_a_process_asks_once_for_an_operator_and_its_types() -> None:
    before = refused._refuses.cache_info().misses
    for size in (3, 5, 100_000):
        assert not is_refused(aten.add.Tensor, (torch.ones(size).short(), 7), {}, torch.ones(size).short())
    assert refused._refuses.cache_info().misses <= before + 1
    assert is_refused(aten.gelu.default, (torch.ones(100_000).long(),), {}, torch.ones(100_000).long())
    assert is_refused(aten.full_like.default, (I8, 300), {}, I8)
    assert not is_refused(aten.full_like.default, (I8, 3), {}, I8)


WRONG_SIZES = {
    "values too long": lambda x: x.index_put((torch.tensor([0, 1]),), torch.zeros(5, 3)),
    "values too short": lambda x: x.index_put((torch.tensor([0, 1, 2, 3]),), torch.zeros(3, 3)),
    "values of another width": lambda x: x.index_put((torch.arange(4),), torch.zeros(4, 7), accumulate=True),
    "indices that do not go together": lambda x: x.index_put(
        (torch.tensor([0, 1, 2]), torch.tensor([0, 1])), torch.ones(())
    ),
    "mask too short": lambda x: x.index_put((torch.ones(3, dtype=torch.bool),), torch.ones(())),
    "mask too long": lambda x: x.index_put((torch.ones(5, dtype=torch.bool),), torch.ones(())),
    "mask of another width": lambda x: x.index_put((torch.ones(4, 7, dtype=torch.bool),), torch.ones(())),
    "too many indices": lambda x: x.index_put((torch.tensor([0]),) * 3, torch.ones(())),
    "an assertion": lambda x: torch._assert_async((x > 9).all(), "too small") or x * 2,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRONG_SIZES)
def test_sizes_that_do_not_go_together_raise(name: str) -> None:
    torch._dynamo.reset()
    function, x = WRONG_SIZES[name], torch.randn(4, 3)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        function(x)
    with pytest.raises(eager.type):
        torch.compile(function, backend="litz")(x)
