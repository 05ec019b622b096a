"""`torch.profiler` shows each step of compiled code: what it does, and where the user wrote it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import FunctionEvent

import litz
from litz.codegen.label import Label
from litz.codegen.llvm.naming import named
from litz.runtime.executable import Executable

HERE = Path(__file__).name


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.gelu(x @ w)
    z = torch.nn.functional.layer_norm(y, (64,))
    first = torch.sort(z, dim=-1).values
    return torch.tanh(first * 2).sum(0)


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().split("\n")
    return f"{HERE}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def events_of(run: object, *args: object) -> list[FunctionEvent]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        run(*args)  # type: ignore[operator]
    return list(profiled.events())


def names(events: list[FunctionEvent]) -> list[str]:
    return [event.name for event in events if event.name.startswith("litz: ")]


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 64), torch.randn(64, 64)


def test_each_step_has_a_name_of_what_it_does_and_where(inputs: tuple[torch.Tensor, ...]) -> None:
    compiled = litz.compile(layer, matmul="library")
    with torch.no_grad():
        expected = compiled(*inputs)
        events = events_of(compiled, *inputs)
        assert names(events_of(layer, *inputs)) == []
    assert f"litz: call mm ({line_of('gelu(x @')})" in names(events)  # of the shim's
    assert f"litz: gelu, native_layer_norm ({line_of('gelu(x @')}, {line_of('layer_norm(')})" in names(events)
    assert f"litz: call sort ({line_of('torch.sort')})" in names(events)  # that Python calls
    sorting = next(event for event in events if event.name == "aten::sort")
    assert sorting.cpu_parent.name.startswith("litz: call sort")
    ends = [event.time_range.end for event in events if event.name.startswith("litz: ")]
    starts = [event.time_range.start for event in events if event.name.startswith("litz: ")]
    assert all(start >= end for start, end in zip(starts[1:], ends)), "one step ends before the next begins"
    with torch.no_grad():
        assert compiled(*inputs).equal(expected)


def test_a_backward_has_names_of_where_its_forward_was_written(inputs: tuple[torch.Tensor, ...]) -> None:
    x, w = (one.requires_grad_() for one in inputs)
    compiled = litz.compile(lambda x, w: torch.tanh(x @ w).sum(), matmul="library")
    compiled(x, w).backward()
    events = events_of(lambda: compiled(x, w).backward())
    found = [name for name in names(events) if "tanh_backward" in name]
    assert len(found) == 1 and HERE in found[0]


def test_a_long_program_is_shown_whole() -> None:
    """Its host function is written in several parts."""

    def long(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = torch.tanh(x @ w)
        return x

    compiled = litz.compile(long, matmul="library")
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad():
        compiled(x, w)
        found = names(events_of(compiled, x, w))
    assert sum(name.startswith("litz: call mm") for name in found) == 60
    assert sum(name.startswith("litz: tanh") for name in found) == 60


def test_a_call_that_fails_leaves_no_event_open() -> None:
    def look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(at, table).exp()

    compiled = litz.compile(look_up)
    table, good = torch.randn(8, 4), torch.tensor([1, 2])
    with torch.no_grad():
        compiled(table, good)

        def fail_then_go_on() -> None:
            with pytest.raises(IndexError):
                compiled(table, torch.tensor([1, 99]))
            torch.ones(3).cumsum(0)

        events = events_of(fail_then_go_on)
        assert names(events)
        after = next(event for event in events if event.name == "aten::cumsum")
        assert after.cpu_parent is None
        assert names(events_of(compiled, table, good))


def test_without_a_profiler_native_code_is_told_of_none(
    inputs: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def watch(frame: object, slots: object) -> None:
        told.append(torch.autograd.profiler._is_profiler_enabled)
        follow(frame, slots)

    follow = Executable._begin.__globals__["follow_profiler"]
    monkeypatch.setitem(Executable._begin.__globals__, "follow_profiler", watch)
    compiled = litz.compile(lambda x, w: torch.tanh(x + w[0]))
    with torch.no_grad():
        compiled(*inputs)
        assert told == []
        events_of(compiled, *inputs)
        compiled(*inputs)
        compiled(*inputs)
    assert told == [True, False]


def test_a_kernel_of_a_gpu_is_called_by_what_it_does() -> None:
    label = Label(("native_layer_norm", "gelu"), ("my-model.py:31", "b.py:2"))
    assert label.word == "native_layer_norm_gelu_my_model_py_31"
    name, text = named("@kernel(", label.word)
    assert re.fullmatch(r"k_native_layer_norm_gelu_my_model_py_31_[0-9a-f]{16}", name) and text == f"@{name}("


def test_a_long_name_ends() -> None:
    label = Label(tuple("abcdefgh"), ("m.py:1", "m.py:2", "m.py:3"))
    assert str(label) == "litz: a, b, c, d, e, f and 2 more (m.py:1, m.py:2 and 1 more)"
