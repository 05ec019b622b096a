"""What users give goes wrong in their own words, and takes nothing else along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import litz
from litz.errors import OptionError
from litz.runtime.container import pack, unpack
from litz.runtime.encode import Unreadable


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()


def test_a_hook_that_raises_is_named() -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError("nothing to divide by")

    compiled = litz.compile(doubled, after={"fuse": fail})
    with pytest.raises(BackendCompilerFailed, match="the hook of stage 'fuse' raised ZeroDivisionError"):
        compiled(torch.ones(3))


def test_a_folder_that_cannot_be_made_costs_the_texts_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    compiled = litz.compile(doubled, dump=str(tmp_path / "file"))
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    assert any("stages are not written to" in note for note in report.notes)


def test_decompositions_are_of_overloads() -> None:
    for operator in ("aten.gelu", torch.ops.aten.gelu):
        with pytest.raises(OptionError, match=r"torch\.ops\.aten\.gelu\.default"):
            litz.compile(doubled, decompositions={operator: doubled})


def test_libraries_told_apart_do_not_turn_the_cache_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LITZ_CACHE", "1")
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "cache"))
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        litz.compile(doubled)(torch.ones(3))
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    report = litz.last_report()
    assert report is not None and not report.cache


def test_a_head_by_somebody_else() -> None:
    from hashlib import blake2b

    from litz.runtime.container import _DIGEST, _START, FORMAT, MAGIC

    assert unpack(pack((1, 2))) == (1, 2)
    for head in (b"{", b"\xff\xfe", b"[" * 100_000, b"3"):
        text = _START.pack(MAGIC, FORMAT, len(head)) + head
        with pytest.raises(Unreadable):
            unpack(text + blake2b(text, digest_size=_DIGEST).digest())
