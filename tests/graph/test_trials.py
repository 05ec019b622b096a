"""Times of products: asked of the device once, and kept."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.graph import trials
from litz.graph.trials import Matrix, Product

DEVICE = torch.device("cuda", 0)
PRODUCT = Product(Matrix(1, 100, 67, False, 67), Matrix(1, 67, 64, False, 64), False, torch.bfloat16, DEVICE)


class Kept(dict[tuple[str, str], Any]):
    """A cache."""

    def load(self, kind: str, key: str) -> Any:
        return self.get((kind, key))

    def store(self, kind: str, key: str, value: Any, entries: Any = None) -> None:
        self[kind, key] = value

    def differences(self, kind: str, entries: Any) -> list[Any]:
        return []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """What a device was asked, which takes a millisecond for each row."""
    found: list[Product] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(trials, "_KNOWN", {})
    monkeypatch.setattr(trials, "_tried", lambda product: (found.append(product), float(product.a.rows))[1])
    return found


def test_a_product_is_tried_once(asked: list[Product]) -> None:
    cache = Kept()
    assert [trials.milliseconds(PRODUCT, cache) for _ in range(3)] == [100.0] * 3
    assert trials.milliseconds(PRODUCT.padded(0, 5, 0), cache) == 100.0
    assert asked == [PRODUCT, PRODUCT.padded(0, 5, 0)]
    assert {kind for kind, _ in cache} == {"trial"} and len(cache) == 2


def test_another_process_does_not_try_again(asked: list[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Kept()
    trials.milliseconds(PRODUCT, cache)
    monkeypatch.setattr(trials, "_KNOWN", {})
    assert trials.milliseconds(PRODUCT, cache) == 100.0 and len(asked) == 1
    monkeypatch.setattr(trials, "_KNOWN", {})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another GPU")
    trials.milliseconds(PRODUCT, cache)
    assert len(asked) == 2


def test_where_nothing_can_be_tried(asked: list[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(product: Product) -> float:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert trials.milliseconds(PRODUCT, None) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(trials, "_tried", no_room)
    assert trials.milliseconds(PRODUCT, None) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert trials.milliseconds(PRODUCT, None) is None
    assert not asked


def test_factors_lie_as_described() -> None:
    for matrix in (Matrix(1, 5, 7, False, 8), Matrix(2, 5, 7, True, 5), Matrix(1, 5, 7, True, 16)):
        made = matrix.made(torch.float32, torch.device("cpu"))
        assert tuple(made.shape) == (matrix.batch, matrix.rows, matrix.columns)
        assert made.stride(2 if matrix.by_columns else 1) == matrix.step
        assert made.stride(1 if matrix.by_columns else 2) == 1
    padded = PRODUCT.padded(0, 5, 0)
    assert (padded.a.columns, padded.a.step, padded.b.rows, padded.b.step) == (72, 72, 72, 64)


def test_what_there_is_no_room_for_is_tried_in_part() -> None:
    rows = replace(PRODUCT, a=Matrix(1, 4096, 67, False, 67)).half()
    assert (rows.a.rows, rows.a.columns, rows.b.rows) == (2048, 67, 67)
    deep = replace(PRODUCT, a=Matrix(1, 67, 4096, True, 67), b=Matrix(1, 4096, 64, False, 64)).half()
    assert (deep.a.rows, deep.a.columns, deep.b.rows) == (67, 2048, 2048)
    with pytest.raises(torch.OutOfMemoryError):
        PRODUCT.half()
