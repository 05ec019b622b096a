"""Errors: readable text, the built-in base a caller expects, and the user's own source line."""

from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch

from litz import errors
from litz.errors import LitzError, source_of

BASES = {
    "OptionError": ValueError,
    "UnsupportedPlatform": RuntimeError,
    "CaptureError": RuntimeError,
    "LoweringError": RuntimeError,
    "VerifyError": ValueError,
    "ParseError": ValueError,
    "CompileError": RuntimeError,
    "CallError": RuntimeError,
}


@pytest.mark.parametrize("name", BASES)
def test_each_error_is_a_litz_error_and_a_builtin_one(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("it broke")
    assert isinstance(error, LitzError)
    assert isinstance(error, BASES[name])
    assert str(error) == "it broke"


def test_text_says_where_and_what_next() -> None:
    error = errors.LoweringError(
        "no loops for this",
        stage="lower",
        node="%add",
        source="model.py:3: x + 1",
        excerpt="%a = add\n%b = mul\n",
        hint="report it",
    )
    assert str(error) == (
        "no loops for this\n"
        "  stage: lower\n"
        "  node: %add\n"
        "  source: model.py:3: x + 1\n"
        "  excerpt:\n"
        "    %a = add\n"
        "    %b = mul\n"
        "  hint: report it"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_node_gives_its_own_source() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.relu, (x,))
    node.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    return torch.relu(x)\n'
    error = errors.CompileError("no", node=node)
    assert error.source == "model.py:7: return torch.relu(x)"
    assert isinstance(error.node, str) and "relu" in error.node


def node_with(trace: str | None) -> SimpleNamespace:
    return SimpleNamespace(meta={} if trace is None else {"stack_trace": trace})


def test_source_of_takes_the_last_frame() -> None:
    trace = (
        '  File "train.py", line 40, in <module>\n    model(x)\n'
        '  File "model.py", line 12, in forward\n    y = self.act(x)\n         ^^^^^^^^^^^\n'
    )
    assert source_of(node_with(trace)) == "model.py:12: y = self.act(x)"


def test_source_of_skips_frames_inside_torch() -> None:
    linear = torch.nn.modules.linear.__file__
    trace = (
        '  File "model.py", line 12, in forward\n    y = self.proj(x)\n'
        f'  File "{linear}", line 125, in forward\n    return F.linear(input, self.weight, self.bias)\n'
    )
    assert source_of(node_with(trace)) == "model.py:12: y = self.proj(x)"
    only_torch = f'  File "{linear}", line 125, in forward\n    return F.linear(input)\n'
    assert source_of(node_with(only_torch)) == f"{linear}:125: return F.linear(input)"


@pytest.mark.parametrize("trace", [None, "", "no frames here"])
def test_source_of_without_a_trace(trace: str | None) -> None:
    assert source_of(node_with(trace)) is None
    assert source_of(object()) is None


def test_source_of_without_code_text() -> None:
    trace = '  File "a.py", line 1, in f\n  File "b.py", line 2, in g'
    assert source_of(node_with(trace)) == "b.py:2"


def test_a_warning_made_an_error_stops_no_program(caplog: pytest.LogCaptureFixture) -> None:
    """What is left to eager runs as ever, and it is said all the same."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = torch.compile(lambda x: x.as_strided((2,), (1,), 1) * 123, backend="litz")(torch.arange(5.0))
        errors.tell("something of note", f"{__file__}:7: x")
    assert y.tolist() == [123.0, 246.0]
    assert any("something of note" in record.getMessage() for record in caplog.records)
