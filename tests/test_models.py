"""The six models, small, against float64: with products chosen, generated and called, and for narrower machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import litz
from tests.small_models import MODELS, judge

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("matmul", ["auto", "generate", "library"])
def test_numbers(name: str, matmul: str) -> None:
    torch._dynamo.reset()
    judge(name, matmul=matmul, verify=True)
    assert not [note for note in litz.last_report().notes if "eager" in note]


@pytest.mark.parametrize("isa", ["avx2", "sse2"])
def test_narrower_machines(isa: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.small_models", "bert", "resnet"],
        env={**os.environ, "LITZ_ISA": isa}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:2] == ["bert agrees", "resnet agrees"]
