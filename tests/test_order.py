"""A program's code depends on the program alone: not on what was compiled before it, nor on the process.

The same functions are compiled here, after whatever else this process has compiled, and in a fresh process in which
each is the first; the LLVM text must be the same, byte for byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import litz

ROOT = Path(__file__).resolve().parent.parent


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def product(x):
    return F.gelu(x @ weight(x.shape[1], 64))


def sums(x):
    return x.sum(0), x.var(1), (x * x.cos()).sum()


def shared(x):
    y = x + x.mean(1, keepdim=True)
    return y.sin(), (x * 2).amax(1), torch.softmax(y, -1), x[::2] - 1


def images(x):
    return F.max_pool2d(F.relu(F.conv2d(x[None, None], weight(4, 1, 3, 3))), 2)


FUNCTIONS = {f.__name__: f for f in (product, sums, shared, images)}
# The first size of each program is another: what one leaves behind, another would take for its own.
LENGTHS = {"product": 512, "sums": 3, "shared": 40, "images": 2000}


def code_of(name: str, length: int) -> list[str]:
    """What `render` makes of the function whose first dimension may be any, of this length in the first call."""
    torch._dynamo.reset()
    x = torch.ones(length, 256)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        torch.compile(FUNCTIONS[name], backend="litz", options={"snapshots": True, "threads": 2})(x)
    return [found.text for found in litz.last_report().snapshots]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_code_does_not_depend_on_what_was_compiled_before(name: str) -> None:
    for other, length in LENGTHS.items():
        if other != name:
            code_of(other, length)
    mine = code_of(name, LENGTHS[name])
    assert any("define" in text for text in mine)
    alone = f"import json\nfrom tests.test_order import *\nprint(json.dumps(code_of({name!r}, {LENGTHS[name]})))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", alone], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == mine


def test_a_likely_size_is_the_programs_own() -> None:
    """Two programs over one name and different likely values are made for their own."""
    few, many = code_of("sums", 3), code_of("sums", 100_000)
    assert few != many and few == code_of("sums", 3) and many == code_of("sums", 100_000)
