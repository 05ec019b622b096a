"""The work of every stage grows with the program, not with its square: calls are counted, not seconds."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz
from benchmarks.scaling import FAMILIES, GROWTH
from litz import pipeline
from litz.codegen.llvm import host
from litz.codegen.plan import IN_TIME
from litz.context import Context
from litz.loop.expr import expr
from litz.loop.ir import Buffer, Program
from litz.loop.parse import parse_program
from litz.options import Options
from litz.runtime.executable import Executable
from litz.runtime.frame import Frame
from litz.schedule import draft
from litz.schedule.fuse import fuse
from litz.schedule.place import Span, Workspace, bytes_of, place
from litz.target import detect

# Programs just large enough that what a stage does once does not count.
CASES = {
    "chain": (80, "inference", "training"),
    "perceptron": (10, "training"),
    "transformer": (2, "training"),
    "dense": (16, "inference"),
    "branches": (32, "training"),
    "optimizer": (5, "inference"),
    "one_read_by_all": (40, "training"),
    "wide_cat": (24, "inference"),
    "woven": (150, "inference"),
    "reductions": (24, "inference"),
}
MOST = 5.5  # times the calls for four times the program: what is sorted grows a little faster than it
FEW = 30_000  # calls that are not worth judging


def calls(family: str, n: int, training: bool, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Functions called in each stage while the program is compiled, and run once."""
    counts: Counter[str] = Counter()
    run = pipeline.run

    def counting(name: str, ctx: Context, stage: Callable[..., Any], *args: Any) -> Any:
        def count(frame: Any, event: str, arg: Any) -> None:
            if event in ("call", "c_call"):
                counts[name] += 1

        def counted(*given: Any) -> Any:
            sys.setprofile(count)
            try:
                return stage(*given)
            finally:
                sys.setprofile(None)

        return run(name, ctx, counted, *args)

    torch._dynamo.reset()
    program = FAMILIES[family].build(n)
    with monkeypatch.context() as patched, torch.enable_grad() if training else torch.no_grad():
        patched.setattr(pipeline, "run", counting)
        result = torch.compile(program.function, backend="litz")(*program.inputs)
        if training:
            results = [result] if isinstance(result, torch.Tensor) else result
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    return counts


@pytest.mark.parametrize(("family", "n", "mode"), [(f, n, mode) for f, (n, *modes) in CASES.items() for mode in modes])
def test_work_grows_with_the_program(family: str, n: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (calls(family, size, mode == "training", monkeypatch) for size in (n, GROWTH * n))
    assert large["fuse"] and large["build"]
    steep = {s: (small[s], large[s]) for s in large if large[s] > FEW and large[s] > MOST * small[s]}
    assert not steep, f"calls at {n} and {GROWTH * n}: {steep}"


def chain_of(count: int) -> Program:
    kernels = "".join(
        f"""kernel k{i}
  for i0 < 64 parallel:
    v0: f32 = load b{i}[i0]
    v1: f32 = sin v0
    store b{i + 1}[i0] = v1
"""
        for i in range(count)
    )
    buffers = "".join(f"buffer b{i}: f32[64] {'output' if i == count else 'temp'}\n" for i in range(1, count + 1))
    return parse_program(f"program(b0: f32[64]) -> (b{count}: f32[64])\n{buffers}{kernels}")


def test_a_kernel_that_grows_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[int] = []
    extend = draft.Addition.extend

    def counting(self: draft.Addition, body: Any, moved: Any) -> Any:
        refusal = extend(self, body, moved)
        appended.append(len(self.ops))
        return refusal

    monkeypatch.setattr(draft.Addition, "extend", counting)
    program = chain_of(300)
    fused = fuse(program, Context(Options(), detect(threads=2)))
    assert len(fused.kernels) < 6
    # Each operator by itself, and once more where it is appended.
    assert sum(appended) <= 2 * sum(len(kernel.body) for kernel in program.kernels)


def test_no_host_function_is_long() -> None:
    torch._dynamo.reset()
    layers = torch.nn.Sequential(*(torch.nn.Linear(9, 9) for _ in range(40)))
    x = torch.randn(3, 9)
    with torch.no_grad():
        compiled = litz.compile(layers, matmul="library", snapshots=True)
        torch.testing.assert_close(compiled(x), layers(x))
    report = litz.last_report()
    assert report is not None
    hosts = re.findall(r"^define void @run.*?^}", report.snapshot("render"), re.MULTILINE | re.DOTALL)
    assert len(hosts) > 2
    assert max(text.count("\n") for text in hosts) < 2 * host._LONGEST_PART


def test_an_index_out_of_range_far_from_the_end_raises() -> None:
    torch._dynamo.reset()
    layers = torch.nn.Sequential(torch.nn.Embedding(5, 9), *(torch.nn.Linear(9, 9) for _ in range(40)))
    with torch.no_grad():
        compiled = litz.compile(layers, matmul="library")
        good = torch.tensor([1, 4])
        expected = layers(good)
        torch.testing.assert_close(compiled(good), expected)
        with pytest.raises(IndexError):
            compiled(torch.tensor([1, 5]))
        torch.testing.assert_close(compiled(good), expected)


@pytest.mark.parametrize("index_first", [True, False])
def test_a_failure_ahead_of_an_effect_ends_all_parts(index_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.nn.Sequential(*(torch.nn.Linear(9, 9) for _ in range(4))) for _ in range(2)]

    def function(x: torch.Tensor, table: torch.Tensor, seen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if not index_first:
            seen.add_(1)
        x = layers[0](x)
        y = layers[1](table[(x.abs().sum(1) > 0) * seen.long().max()])
        seen.add_(y.sum(0))
        rows.add_(x.prod(1))
        return x

    torch._dynamo.reset()
    monkeypatch.setattr(host, "_LONGEST_PART", 1)
    with torch.no_grad():
        compiled = litz.compile(function, matmul="library", snapshots=True)
        for held in (2.0, 7.0, 3.0):
            x, table = torch.randn(3, 9), torch.randn(5, 9)
            mine, theirs = ([torch.full((9,), held), torch.zeros(3)] for _ in range(2))
            try:
                result = function(x, table, *theirs)
            except IndexError as error:
                assert held == 7.0
                with pytest.raises(IndexError, match=re.escape(str(error))):
                    compiled(x, table, *mine)
            else:
                torch.testing.assert_close(compiled(x, table, *mine), result)
            torch.testing.assert_close(mine, theirs)
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None
    parts = re.findall(r"^define void @run\d+\.\d+.*?^}", report.snapshot("render"), re.MULTILINE | re.DOTALL)
    (ending,) = (at for at, text in enumerate(parts) if re.search(rf"or i32 %\w+, {IN_TIME}\n", text))
    assert 5 < ending < len(parts) - 1  # operators before it, and an effect in a part that comes after


@pytest.mark.parametrize("seed", range(5))
def test_places_are_the_lowest_that_are_free(seed: int) -> None:
    draw = random.Random(seed)
    program = chain_of(200)
    spans = []
    for i in range(1, 200):
        first = draw.randrange(200)
        spans.append(Span((f"b{i}",), first, draw.randrange(first, min(201, first + draw.choice([1, 5, 100])))))
        size = expr(16 * draw.randrange(1, 9))
        program.buffers[f"b{i}"] = Buffer(f"b{i}", "f32", size)
    placed: list[tuple[Span, int, int]] = []
    for span in sorted(spans, key=lambda s: (-bytes_of(program.buffers, s.members[0]), s.first)):
        size_ = bytes_of(program.buffers, span.members[0])
        beside = [(low, high) for s, low, high in placed if s.first <= span.last and span.first <= s.last]
        free = [0, *sorted(high for _, high in beside)]
        offset = next(o for o in free if all(o + size_ <= low or high <= o for low, high in beside))
        placed.append((span, offset, offset + size_))
    placement = place(program.buffers, spans)
    assert placement.offsets == {span.members[0]: low for span, low, _ in placed}
    assert placement.size == max(high for _, _, high in placed)


@pytest.mark.parametrize("seed", range(5))
def test_a_workspace_lies_where_nothing_else_does_meanwhile(seed: int) -> None:
    draw = random.Random(seed)
    program = chain_of(200)
    spans = []
    for i in range(1, 200):
        first = draw.randrange(200)
        spans.append(Span((f"b{i}",), first, draw.randrange(first, min(201, first + draw.choice([1, 5, 100])))))
        program.buffers[f"b{i}"] = Buffer(f"b{i}", "f32", expr(16 * draw.randrange(1, 9)))
    workspace = Workspace(64 * draw.choice([1, 3, 20]), tuple(sorted(draw.sample(range(200), draw.choice([1, 4, 40])))))
    placement = place(program.buffers, spans, workspace=workspace)
    begins, ends = placement.workspace, placement.workspace + workspace.bytes
    assert ends <= placement.size <= place(program.buffers, spans).size + workspace.bytes
    for at in workspace.steps:
        for span in spans:
            low = placement.offsets[span.members[0]]
            high = low + bytes_of(program.buffers, span.members[0])
            assert not span.first <= at <= span.last or high <= begins or ends <= low


def test_a_frame_looks_at_each_result_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a first call works out once for a program grows with its results, not with their square."""
    looks: Counter[int] = Counter()

    def calls_in_frames(count: int) -> int:
        torch._dynamo.reset()
        x = torch.randn(8)
        fast = torch.compile(lambda x: [torch.cumsum(x * float(i), 0) for i in range(count)], backend="litz")
        fast(x)
        executable = made[-1]
        sys.setprofile(lambda frame, event, arg: looks.update([count]) if event in ("call", "c_call") else None)
        try:
            Frame(executable, {})
        finally:
            sys.setprofile(None)
        return looks[count]

    made: list[Executable] = []
    prepared = Executable.__init__

    def noting(self: Executable, *args: Any) -> None:
        prepared(self, *args)
        made.append(self)

    monkeypatch.setattr(Executable, "__init__", noting)
    small, large = calls_in_frames(40), calls_in_frames(160)
    assert large < MOST * small
