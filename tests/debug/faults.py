"""Faults, planted in Litz for the process that asks for them: `plant("wrong rule")`."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

import litz.graph.rewrite_joint as rewrite_joint
from litz.errors import CompileError
from litz.graph.pattern import ANY, Arg, call
from litz.graph.rewrite import Match, Rule, rule
from litz.ops.registry import LOWERINGS

aten = torch.ops.aten


@torch.library.custom_op("litz_tests::slow_mm", mutates_args=())
def slow_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    time.sleep(0.4)  # on a busy machine eager takes a while too
    return a @ b


@slow_mm.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


@rule(call(aten.tanh.default, Arg("x"), users=ANY))
def tanh_is_nearly_sin(match: Match) -> Any:
    return match.call(aten.sin.default, match["x"])


@rule(call(aten.exp.default, Arg("x"), users=ANY))
def exp_of_nothing(match: Match) -> Any:
    return match.call(aten.log.default, match.call(aten.sub.Tensor, match["x"], math.inf))


@rule(call(aten.mm.default, Arg("a"), Arg("b"), users=ANY))
def product_that_dawdles(match: Match) -> Any:
    return match.call(torch.ops.litz_tests.slow_mm.default, match["a"], match["b"])


def _add_rule(made: Rule) -> Callable[[], None]:
    def plant() -> None:
        rewrite_joint.JOINT = (*rewrite_joint.JOINT, made)

    return plant


def _wrong_lowering() -> None:
    LOWERINGS[aten.sigmoid.default] = LOWERINGS[aten.tanh.default]


def _in_lowering(operator: Any, what: Callable[[], Any]) -> Callable[[], None]:
    def plant() -> None:
        real = LOWERINGS[operator]

        def lowering(*args: Any, **kwargs: Any) -> Any:
            what()
            return real(*args, **kwargs)

        LOWERINGS[operator] = lowering

    return plant


def _refuses() -> None:
    raise CompileError("the planted fault: no code for this")


def _never_ends() -> None:
    while True:
        pass


FAULTS: dict[str, Callable[[], None]] = {
    "wrong rule": _add_rule(tanh_is_nearly_sin),
    "NaN": _add_rule(exp_of_nothing),
    "slow": _add_rule(product_that_dawdles),
    "wrong lowering": _wrong_lowering,
    "exception": _in_lowering(aten.sigmoid.default, _refuses),
    "hang": _in_lowering(aten.sigmoid.default, _never_ends),
    "signal": _in_lowering(aten.sigmoid.default, lambda: os.kill(os.getpid(), signal.SIGSEGV)),
}


def plant(name: str) -> None:
    FAULTS[name]()
