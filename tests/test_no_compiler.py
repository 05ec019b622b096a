"""Litz where no compiler is installed: a process that can find no program at all compiles and runs models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = """
import shutil
assert not any(shutil.which(name) for name in ("cc", "gcc", "g++", "c++", "clang", "clang++", "ld", "as")), "found one"
from tests.small_models import judge
judge("bert", matmul="generate")
judge("resnet", matmul="generate")
import litz
assert litz.last_report().kernels > 0 and not litz.last_report().notes, litz.last_report()
print("compiled without a compiler")
"""


def test_a_path_without_programs(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "LD", "PATH")}
    environment |= {"PATH": str(tmp_path), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("compiled without a compiler")
