"""What the program looks like after each stage, for four small functions: golden text, reviewed as a diff.

The target is written out here, so that the text is the same on every machine; nothing is built or run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from litz import pipeline
from litz.codegen.llvm.build import BuiltCode
from litz.context import Context
from litz.options import Options
from litz.target import Target
from tests import golden

TARGET = Target(
    "x86_64",
    "avx512",
    "x86-64-v4",
    "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2,+fma",
    64,
    32,
    2,
    function_bytes=(64, 32),
)
STAGES = ("lower", "fuse", "merge_axes", "render")
_LONGEST = 150  # lines of a kernel that a person would read


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 2 + y).relu() / (1 + y.exp())


def softmax_residual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) + y


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def embedding_norm(ids: torch.Tensor, table: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.embedding(ids, table), (24,), w, b)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "pointwise": (pointwise, (torch.zeros(6, 50), torch.zeros(50))),
    "softmax_residual": (softmax_residual, (torch.zeros(3, 4, 40), torch.zeros(3, 4, 40))),
    "linear_gelu": (linear_gelu, (torch.zeros(30, 33), torch.zeros(40, 33), torch.zeros(40))),
    "embedding_norm": (
        embedding_norm,
        (torch.zeros(5, dtype=torch.int64), torch.zeros(9, 24), torch.zeros(24), torch.zeros(24)),
    ),
}


class _Nothing:
    """Nothing is built here, or run."""

    def __init__(self, *_: Any, listed: bool): ...

    def begin(self, module: str) -> None: ...

    def finish(self, modules: Any) -> BuiltCode:
        return BuiltCode((), ())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_text_after_each_stage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "Building", _Nothing)
    function, inputs = FUNCTIONS[name]
    ctx = Context(Options(snapshots=True, verify=True, matmul="generate"), TARGET)
    with torch.no_grad():
        pipeline.compile_to_data(function, inputs, None, ctx)
    report = ctx.report()
    for stage in STAGES:
        text = report.snapshot(stage)
        golden.check(f"{name}.{stage}", _kernels(text) if stage == "render" else text)


def _kernels(module: str) -> str:
    """The kernels' functions; of one that is too long to read, how often each instruction stands in it."""
    for number, name in enumerate(dict.fromkeys(re.findall(r"@(k_[0-9a-f]+)\(", module))):
        module = module.replace(name, f"k{number}")  # named by a digest of the text, which would change with any of it
    functions = re.findall(r"^define void @k\d+\(.*?^}", module, re.MULTILINE | re.DOTALL)
    assert functions, "no kernel was rendered"
    return "\n\n".join(f if f.count("\n") <= _LONGEST else _summary(f) for f in functions if ".team(" not in f) + "\n"


def _summary(function: str) -> str:
    header, *lines = function.split("\n")
    counts: Counter[str] = Counter()
    for line in lines:
        words = re.sub(r"^\s*(%\S+ = )?", "", line).split()
        if len(words) < 2:
            continue
        called = re.search(r"@([\w.]+)", line) if words[0] == "call" else None
        counts[f"call {called[1]}" if called else words[0]] += 1
    return "\n".join([header, *(f"  {count:4} {what}" for what, count in sorted(counts.items())), "}"])
