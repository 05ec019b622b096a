"""`litz doctor`."""

from __future__ import annotations

import pytest

from litz.cli import main
from litz.debug import doctor
from litz.debug.doctor import Finding, examine


def test_it_says_what_there_is_and_compiles_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for what in ("Litz: ", "torch: ", "llvmlite: ", "processor: ", "threads: ", "OpenMP: ", "GPU", "cache: "):
        assert what in said
    assert "inference on cpu: right" in said and "training on cpu: right" in said


def test_what_is_not_well_is_marked_and_ends_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: str) -> None:
        raise RuntimeError("no code for this")

    monkeypatch.setattr(doctor, "_trains", broken)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "\n! training on cpu: RuntimeError: no code for this" in said and "inference on cpu: right" in said


def test_the_cache_and_the_environment(monkeypatch: pytest.MonkeyPatch, folder: object) -> None:
    monkeypatch.setenv("LITZ_ISA", "sse2")
    found = {finding.what: finding.told for finding in examine()}
    assert str(folder) in found["cache"] and found["LITZ_ISA"] == "sse2" and "sse2" in found["processor"]


def test_a_finding_prints() -> None:
    assert str(Finding("a", "b")) == "a: b" and str(Finding("a", "b", False)) == "! a: b"
