"""What all tests have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests compile anew: what an earlier run has kept must not answer for the code of this one.
os.environ.setdefault("LITZ_CACHE", "0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, and nothing of Dynamo's from before."""
    import torch

    monkeypatch.setenv("LITZ_CACHE", "1")
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield tmp_path / "cache"
    torch._dynamo.reset()
