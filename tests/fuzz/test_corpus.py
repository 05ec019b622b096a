"""Programs that Litz once got wrong: one file each, in `corpus/`, as the fuzzer printed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.check import check

FILES = sorted((Path(__file__).parent / "corpus").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_agrees_with_eager(file: Path) -> None:
    verdict = check(file.read_text())
    assert verdict.status == "right", verdict.message
