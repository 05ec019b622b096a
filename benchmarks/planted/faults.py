"""Faults as a compiler has them, each planted in Litz for the process that asks for it, and the model it shows in.

In: a name. Out: a `Fault`. They are where such faults are in life: a rule of the joint graph, a lowering, a stage of
the schedule, the writer of LLVM text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
SLOWER_THAN = 3.0  # times eager's time, of the faults that only make slow


@dataclass(frozen=True)
class Fault:
    """`told`: how the symptom begins that it must be found by, and end as."""

    kind: str
    model: str
    told: str
    plant: Callable[[], None]
    rule: str | None = None  # that is to be blamed
    slower_than: float | None = None
    for_torch: str | None = None  # what torch's own minifier looks for: "exception" or "accuracy", where it can

    def shown_by(self, said: str) -> bool:
        """By what a file says that is run by itself. One whose process ends, or does not, cannot say in which stage."""
        if self.kind == "hang":
            return said == "no end"
        return said.startswith(self.told.partition(" in stage ")[0] if "SIG" in self.told else self.told)


# -- what plants them ----------------------------------------------------------------------------------
def _rule(pattern: Callable[[], Any], replacement: Callable[[Any], Any], name: str) -> Callable[[], None]:
    def plant() -> None:
        from litz.graph import rewrite_joint
        from litz.graph.rewrite import rule

        replacement.__name__ = name
        rewrite_joint.JOINT = (*rewrite_joint.JOINT, rule(pattern())(replacement))

    return plant


def _lowering(operator: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    def plant() -> None:
        from litz.ops.registry import LOWERINGS

        LOWERINGS[operator] = change(LOWERINGS[operator])

    return plant


def _stage(name: str, stumble: Callable[[Any], None]) -> Callable[[], None]:
    def plant() -> None:
        from litz import pipeline

        real = getattr(pipeline, name)

        def stage(program: Any, *rest: Any) -> Any:
            stumble(program)
            return real(program, *rest)

        setattr(pipeline, name, stage)

    return plant


def _writing(operator: str, stumble: Callable[[Any], None]) -> Callable[[], None]:
    """While LLVM text is written for that scalar operator."""

    def plant() -> None:
        from litz.codegen.llvm.body import Scope

        real = Scope.apply

        def apply(self: Scope, op: Any, args: Any, lanes: int) -> Any:
            if op.op == operator:
                stumble(op)
            return real(self, op, args, lanes)

        Scope.apply = apply  # type: ignore[method-assign]

    return plant


# -- wrong rules ---------------------------------------------------------------------------------------
def _norm_of_a_sum() -> Any:
    from litz.graph.pattern import ANY, Arg, call

    total = call(aten.add.Tensor, Arg("a"), Arg("b"), users=ANY)
    return call(aten.native_layer_norm.default, total, Arg("shape"), Arg("w"), Arg("c"), Arg("eps"), users=ANY)


def _residual_counted_twice(match: Any) -> Any:
    total = match.call(aten.add.Tensor, match["a"], match.call(aten.mul.Tensor, match["b"], 2.0))
    return match.call(aten.native_layer_norm.default, total, *(match[name] for name in ("shape", "w", "c", "eps")))


def _rotated_half() -> Any:
    from litz.graph.pattern import ANY, Arg, call

    return call(aten.cat.default, [call(aten.neg.default, Arg("x"), users=ANY), Arg("y")], Arg("dim"), users=ANY)


def _half_not_turned(match: Any) -> Any:
    return match.call(aten.cat.default, [match["x"], match["y"]], match["dim"])


def _power() -> Any:
    from litz.graph.pattern import ANY, Arg, call

    return call(aten.pow.Tensor_Scalar, Arg("x"), Arg("n"), users=ANY)


def _power_as_exponential(match: Any) -> Any:
    """NaN where the base is negative."""
    scaled = match.call(aten.mul.Tensor, match.call(aten.log.default, match["x"]), match["n"])
    return match.call(aten.exp.default, scaled)


def _hyperbolic() -> Any:
    from litz.graph.pattern import ANY, Arg, call

    return call(aten.tanh.default, Arg("x"), users=ANY)


def _waits_for_nobody(match: Any) -> Any:
    return match.call(torch.ops.planted.waiting.default, match["x"])


def _plant_waiting() -> None:
    @torch.library.custom_op("planted::waiting", mutates_args=())
    def waiting(x: torch.Tensor) -> torch.Tensor:
        while True:
            pass

    @waiting.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    _rule(_hyperbolic, _waits_for_nobody, "tanh_that_waits")()


def _called_again(operator: Any, times: int, name: str) -> Callable[[], None]:
    """In place of an operator a kernel of somebody's, which does all it does so many times."""

    def plant() -> None:
        from litz.graph.pattern import ANY, Arg, call

        @torch.library.custom_op(f"planted::{name}", mutates_args=())
        def again(x: torch.Tensor) -> torch.Tensor:
            for _ in range(times):
                result = operator(x)
            return result

        @again.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x)

        made = getattr(torch.ops.planted, name).default
        _rule(lambda: call(operator, Arg("x"), users=ANY), lambda match: match.call(made, match["x"]), name)()

    return plant


# -- wrong lowerings -----------------------------------------------------------------------------------
def _always_the_short_form(real: Callable[..., Any]) -> Callable[..., Any]:
    """GELU by tanh, whatever was asked for."""
    return lambda b, node, x, approximate="none": real(b, node, x, "tanh")


def _one_too_many(real: Callable[..., Any]) -> Callable[..., Any]:
    """A mean over several dimensions divides by one more than there are."""

    def mean(b: Any, node: Any, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        if dim is None or len(dim) < 2:
            return real(b, node, x, dim, keepdim, dtype)
        from litz.ops.builder import computed
        from litz.ops.reduce import count_over, reduction

        count = count_over(x, dim) + 1
        return reduction(b, node, x, dim, "sum", computed(node.meta["val"]), finish=lambda body, total: total / count)

    return mean


def _through_a_logarithm(real: Callable[..., Any]) -> Callable[..., Any]:
    """GELU with a term that vanishes, and is NaN below a bound that only few numbers pass."""

    def gelu(b: Any, node: Any, x: Any, approximate: str = "none") -> Any:
        from litz.ops.pointwise import elementwise

        def formula(body: Any, v: Any) -> Any:
            return v * body.apply("normal_cdf", v) + body.apply("log", v + 1.5) * 0.0

        return elementwise(b, node, formula, x)

    return gelu


# -- stages and writers that fail ----------------------------------------------------------------------
def _never_ends_on_roots(program: Any) -> None:
    from litz.loop.ir import Apply, Kernel

    kernels = [step for step in program.steps if isinstance(step, Kernel)]
    while any(isinstance(op, Apply) and op.op == "rsqrt" for kernel in kernels for op in kernel.body):
        pass


def _no_such_spelling(op: Any) -> None:
    raise KeyError(op.dtype)


def _reads_at_nothing(op: Any) -> None:
    ctypes.string_at(0)


FAULTS: dict[str, Fault] = {
    "rule-bert": Fault(
        "wrong rule", "bert", "wrong numbers in the results",
        _rule(_norm_of_a_sum, _residual_counted_twice, "residual_counted_twice"), rule="residual_counted_twice",
        for_torch="accuracy",
    ),
    "rule-llama": Fault(
        "wrong rule", "llama", "wrong numbers in the results",
        _rule(_rotated_half, _half_not_turned, "half_not_turned"), rule="half_not_turned", for_torch="accuracy",
    ),
    "lowering-vit": Fault(
        "wrong lowering", "vit", "wrong numbers in the results", _lowering(aten.gelu.default, _always_the_short_form),
        for_torch="accuracy",
    ),
    "lowering-resnet": Fault(
        "wrong lowering", "resnet", "wrong numbers in the results", _lowering(aten.mean.dim, _one_too_many),
        for_torch="accuracy",
    ),
    "crash-convnext": Fault(
        "crash in codegen", "convnext", "KeyError in stage render", _writing("normal_cdf", _no_such_spelling),
        for_torch="exception",
    ),
    "crash-gpt2": Fault(
        "crash in codegen", "gpt2", "the process ended by SIGSEGV in stage render", _writing("tanh", _reads_at_nothing),
    ),
    "hang-bert": Fault("hang", "bert", "no end in stage merge_axes", _stage("merge_axes", _never_ends_on_roots)),
    "hang-vit": Fault("hang", "vit", "no end in a call", _plant_waiting, rule="tanh_that_waits"),
    "nan-llama": Fault(
        "NaN", "llama", "wrong NaN in the results", _rule(_power, _power_as_exponential, "power_as_exponential"),
        rule="power_as_exponential", for_torch="accuracy",
    ),
    "nan-convnext": Fault(
        "NaN", "convnext", "wrong NaN in the results", _lowering(aten.gelu.default, _through_a_logarithm),
        for_torch="accuracy",
    ),
    "slow-llama": Fault(
        "slow kernel", "llama", "slow:", _called_again(aten.silu.default, 4000, "slow_silu"), rule="slow_silu",
        slower_than=SLOWER_THAN,
    ),
    "slow-resnet": Fault(
        "slow kernel", "resnet", "slow:", _called_again(aten.relu.default, 200, "slow_relu"), rule="slow_relu",
        slower_than=SLOWER_THAN,
    ),
}  # fmt: skip

__all__ = ["FAULTS", "Fault"]
