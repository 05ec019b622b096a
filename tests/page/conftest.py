"""Pages of three models, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import litz
from litz.explanation.script import explain_file
from tests.explanation.models import Attention, Broken

RECOMPILES = """
import torch
from tests.explanation.models import Attention
model = torch.compile(Attention(capped=True), backend="litz", dynamic=False)
for length in (16, 24):
    model(torch.randn(2, length, 32)).sum().backward()
"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """attention: not fused, and compiled again; breaks: five graph breaks; budget: with a memory budget."""
    folder = tmp_path_factory.mktemp("pages")
    torch._dynamo.reset()
    (folder / "attention.py").write_text(RECOMPILES)
    explain_file(folder / "attention.py", folder / "attention.html")
    with torch.no_grad():
        litz.explain(Broken(), torch.randn(8, 64), path=folder / "breaks.html")
    model, x = Attention(capped=False), torch.randn(2, 16, 32)
    litz.explain(model, x, path=folder / "budget.html", options={"memory_budget": 0.5})
    return {path.stem: path for path in folder.glob("*.html")}
