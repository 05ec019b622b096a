"""Target: what is detected, what is refused, and the narrower instruction sets for tests."""

from __future__ import annotations

import platform
import sys

import pytest
import torch

from litz import compat, target
from litz.errors import OptionError, UnsupportedPlatform
from litz.target import architecture, detect

on_x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86_64 only")


def test_detect_describes_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITZ_ISA", raising=False)
    here = detect()
    assert here.threads == torch.get_num_threads()
    assert here.vector_bytes in (16, 32, 64)
    assert here.lanes(4) == here.vector_bytes // 4
    assert here.cpu and here.features
    assert here.l2_bytes >= 64 * 1024
    assert here == detect()
    assert detect(threads=3).threads == 3
    assert here.isa in str(here)
    assert all(name.startswith("target.") for name in here.cache_key_entries())


@on_x86
def test_a_narrower_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITZ_ISA", raising=False)
    if not detect().has("avx2"):
        pytest.skip("no AVX2 here")
    monkeypatch.setenv("LITZ_ISA", "avx2")
    narrow = detect(1)
    assert (narrow.isa, narrow.vector_bytes, narrow.vector_registers) == ("avx2", 32, 16)
    assert narrow.has("avx2") and narrow.has("fma")
    assert not any(item.startswith("+avx512") for item in narrow.features.split(","))
    monkeypatch.setenv("LITZ_ISA", "sse2")
    assert detect(1).vector_bytes == 16
    assert not any(item.startswith(("+avx", "+fma")) for item in detect(1).features.split(","))


@on_x86
def test_an_instruction_set_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITZ_ISA", "mmx")
    with pytest.raises(OptionError, match="avx512, avx2, sse2"):
        detect(1)


@pytest.mark.parametrize(
    ("features", "isa"),
    [
        ("+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2,+fma", "avx512"),
        ("+avx512f,+avx2,+fma", "avx2"),
        ("+avx2,-fma", "sse2"),
        ("", "sse2"),
    ],
)
def test_levels(features: str, isa: str) -> None:
    assert target._choose_isa("x86_64", features, "") == isa


def test_asking_for_what_the_processor_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedPlatform, match="avx512"):
        target._choose_isa("x86_64", "+avx2,+fma", "avx512")


@pytest.mark.parametrize(
    ("machine", "bits"), [("riscv64", True), ("i686", False), ("x86_64", False), ("ppc64le", True)]
)
def test_unsupported_platforms_get_one_clear_sentence(machine: str, bits: bool) -> None:
    with pytest.raises(UnsupportedPlatform) as caught:
        architecture(machine, bits)
    assert machine in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_supported_platforms() -> None:
    assert [architecture(name, True) for name in ("x86_64", "AMD64", "aarch64", "arm64")] == [
        "x86_64",
        "x86_64",
        "aarch64",
        "aarch64",
    ]


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(UnsupportedPlatform, match="llvmlite"):
        target._host_cpu()


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.11.1", (2, 11, 1)), ("2.12.0a0+gitabc", (2, 12, 0)), ("3.0", (3, 0, 0))],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert compat.parse_version(text) == version


def test_the_installed_torch_is_in_range() -> None:
    assert compat.OLDEST_TORCH <= compat.torch_version()[:2] <= compat.NEWEST_TORCH
    with pytest.raises(ValueError):
        compat.parse_version("unknown")
