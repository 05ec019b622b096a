"""What is gathered of a model that is compiled and run: it agrees with the report, and leads to the user's lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import litz
from litz.explanation.encode import from_json, to_json
from litz.explanation.explanation import FORMAT, Explanation, Piece
from litz.report import HISTORY
from litz.watch import watch_now
from tests.explanation.models import Attention, Broken


@pytest.fixture(scope="module", autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def training() -> Explanation:
    return litz.explain(Attention(capped=True), torch.randn(2, 16, 32), path=None)


def only(explanation: Explanation) -> Piece:
    (piece,) = explanation.pieces
    return piece


def test_forward_and_backward_are_there_step_by_step(training: Explanation) -> None:
    piece = only(training)
    report = litz.reports()[-1]
    assert {step.part for step in piece.steps} == {"forward", "backward"}
    assert sum(step.kind != "call" for step in piece.steps) == report.kernels
    assert all(step.microseconds is not None and step.calls >= 2 for step in piece.steps)
    assert all(step.bytes > 0 for step in piece.steps)
    assert {stage.name for stage in piece.stages} >= {"trace", "split", "lower", "fuse", "render", "build", "load"}
    assert watch_now() is None


def test_kernels_lead_to_the_users_lines_in_the_backward_too(training: Explanation) -> None:
    tanh = [step for step in only(training).steps if any("tanh" in name for name in step.does)]
    assert {step.part for step in tanh} == {"forward", "backward"}
    for step in tanh:
        assert any("models.py" in line and "tanh" in line for line in step.lines), step.lines


def test_each_kernel_has_its_loops_llvm_and_machine_code(training: Explanation) -> None:
    piece = only(training)
    functions = {function.name: function for function in piece.functions}
    for step in piece.steps:
        if step.kind == "call":
            assert step.function is None and training.text(step.text).startswith("call ")
            continue
        function = functions[step.function or ""]
        assert f"kernel {step.name}" in training.text(step.text)
        assert f"@{function.name}(" in training.text(function.llvm)
        assert function.machine is not None and "ret" in training.text(function.machine)


def test_the_peak_is_the_reports(training: Explanation) -> None:
    memory = only(training).memory
    assert memory is not None
    report = litz.reports()[-1]
    assert memory.peak == report.peak_bytes
    assert len(memory.held) == sum(part.steps for part in memory.parts) == len(only(training).steps)
    own = sum(t.bytes for t in memory.tensors if not t.in_arena and t.first <= memory.peak_at <= t.last)
    assert own + memory.arena == memory.peak  # nothing that is held goes unnamed


def test_work_is_counted_by_the_loops() -> None:
    a, b = torch.randn(64, 96), torch.randn(96, 128)
    explanation = litz.explain(lambda x, y: (x @ y).relu(), a, b, path=None, options={"matmul": "generate"})
    (step,) = only(explanation).steps
    assert step.kind == "product"
    assert step.flops == 2 * 64 * 96 * 128 + 64 * 128
    assert step.bytes == 4 * (64 * 96 + 96 * 128 + 64 * 128)


def test_data_comes_back_as_it_was(training: Explanation) -> None:
    assert from_json(to_json(training)) == training


def test_another_format_is_refused(training: Explanation) -> None:
    other = to_json(training).replace(f'"format":{FORMAT}', '"format":999')
    with pytest.raises(litz.LitzError, match="format 999; this Litz reads format"):
        from_json(other)


def test_gradients_and_compiled_code_of_the_users_stay() -> None:
    model, x = Attention(capped=False), torch.randn(2, 16, 32)
    compiled = torch.compile(model, backend="litz")
    compiled(x).sum().backward()
    before, compiles = model.q.weight.grad.clone(), HISTORY.mark()
    litz.explain(compiled, x, path=None)
    assert torch.equal(model.q.weight.grad, before)
    explained = HISTORY.mark()
    assert explained > compiles
    compiled(x)
    assert HISTORY.mark() == explained


def test_each_graph_break_is_told_with_its_line() -> None:
    with torch.no_grad():
        explanation = litz.explain(Broken(), torch.randn(8, 64), path=None)
    ends = [piece.ends for piece in explanation.pieces if piece.ends is not None]
    assert len(ends) == 5 and not any(piece.again for piece in explanation.pieces)
    for told, code in zip(ends, ("float(", "graph_break()", "if x.sum()", "torch.save", "open(")):
        assert code in (told.source or ""), told
    assert "Data-dependent branching" in ends[2].why  # and not "generic_jump", as the graph itself has it


def test_nothing_compiled_is_an_error_that_says_why() -> None:
    with pytest.raises(litz.CaptureError, match="nothing was compiled"):
        litz.explain(lambda: 1, path=None)
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(litz.CaptureError, match="sparse"):
        litz.explain(lambda x: x * 2, sparse, path=None)
    with pytest.raises(litz.CaptureError, match="as_strided counts from the start"):
        litz.explain(lambda x: torch.as_strided(x, (2,), (1,), 1) + 1, torch.randn(8), path=None)


def test_a_budget_is_seen_among_what_others_would_cost() -> None:
    explanation = litz.explain(
        Attention(capped=False), torch.randn(2, 16, 32), path=None, options={"memory_budget": 0.5}
    )
    piece = only(explanation)
    (compiled,) = [choice for choice in piece.choices if choice.compiled]
    others = [choice for choice in piece.choices if not choice.compiled]
    assert piece.budget == "0.5" and piece.memory is not None and compiled.bytes == piece.memory.peak
    assert len(others) > 2 and [c.bytes for c in others] == sorted((c.bytes for c in others), reverse=True)
    lost = [choice.again or 0.0 for choice in others]
    assert lost == sorted(lost)  # less memory never costs less time


def test_one_more_page_can_always_be_made() -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with torch._dynamo.config.patch(recompile_limit=1), torch.no_grad():
        for _ in range(3):
            assert only(litz.explain(model, x, path=None)).steps


def test_the_cache_is_asked_and_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LITZ_CACHE", "1")
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path))

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.randn(64)
    first = only(litz.explain(function, x, path=None))
    assert first.cache == ("not in the cache, nor anything like it",)
    torch.compile(function, backend="litz")(x)
    kept = sorted(path for path in tmp_path.rglob("*.litz") if "kernel" not in path.parts)
    assert only(litz.explain(function, x, path=None)).cache == ("in the cache; compiled all the same, to be looked at",)
    (miss,) = only(litz.explain(function, x, path=None, options={"fuel": 7})).cache
    assert "of the nearest that is, another option.fuel: None -> 7" in miss
    assert sorted(path for path in tmp_path.rglob("*.litz") if "kernel" not in path.parts) == kept
