"""How a lowering is tested: trace a function, lower it, verify, interpret, and compare with eager."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.context import Context
from litz.loop.interpret import interpret
from litz.loop.verify import verify
from litz.ops.lower import Lowered, lower
from litz.options import Options
from litz.target import detect


@dataclass(frozen=True)
class Case:
    """`calls`: the operators that are expected to be called rather than generated.

    `strides`: whether the result is laid out as eager's; torch's own fake tensors get a few operators wrong.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    calls: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    strides: bool = True


def case(name: str, function: Callable[..., Any], *inputs: Any, **expected: Any) -> Case:
    return Case(name, function, inputs, **expected)


def trace(function: Callable[..., Any], inputs: tuple[Any, ...]) -> torch.fx.GraphModule:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    # Tracing counts parameters: those that a case's lambda only binds must not show.
    functional = torch.func.functionalize(lambda *args: function(*args), remove="mutations")
    with mode, torch.no_grad():
        return make_fx(functional)(*fakes)


def lowered(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Lowered, Context]:
    ctx = Context(Options(matmul="library"), detect(threads=2))
    return lower(trace(function, inputs), ctx), ctx


def run(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[list[Any], Lowered, Context]:
    made, ctx = lowered(function, inputs)
    verify(made.program)
    return interpret(made.program, [*inputs, *made.constants]), made, ctx


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check(one: Case) -> None:
    with quiet(), torch.no_grad():
        expected = one.function(*one.inputs)
        found, made, ctx = run(one.function, one.inputs)
    called = sorted({call.target for call in made.program.calls})
    assert called == sorted(one.calls), f"called: {called}; fallbacks: {ctx.fallbacks}"
    wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        assert isinstance(got, torch.Tensor)
        if one.strides and want.numel() > 1:
            assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=one.rtol, atol=one.atol, equal_nan=True)
