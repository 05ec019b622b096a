"""What documents and docstrings name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted((ROOT / "litz").rglob("*.py"))
FILES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts[0]}
_PATH = re.compile(r"`([\w/]+\.py)`")
_TARGET = re.compile(r"`make ([\w-]+)`")


def _exists(name: str) -> bool:
    is_torchs = name.startswith("torch/")
    return is_torchs or any(file == name or file.endswith(f"/{name}") for file in FILES)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_files_and_targets_that_exist(document: Path) -> None:
    text = document.read_text()
    assert [name for name in _PATH.findall(text) if not _exists(name)] == []
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [name for name in _TARGET.findall(text) if name not in targets] == []


def test_docstrings_name_files_that_exist() -> None:
    missing = []
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                names = _PATH.findall(ast.get_docstring(node) or "")
                missing += [f"{source.relative_to(ROOT)}: {name}" for name in names if not _exists(name)]
    assert missing == []


def test_a_file_that_does_not_exist_is_noticed() -> None:
    assert _exists("schedule/fuse.py") and _exists("fuse.py") and not _exists("schedule/confuse.py")
