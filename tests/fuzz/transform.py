"""`torch.func` around a drawn program.

In: the program, drawn so that no statement writes to its inputs. Out: the same statements as a function `base` of one
result, and a transform of it that eager runs.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.fuzz.build import Build
from tests.fuzz.eager import Refused
from tests.fuzz.program import FuzzProgram
from tests.fuzz.run_program import cases_of, mode_of, namespace, run

ATTEMPTS = 6
LARGEST = 4000  # elements of a result, of which a Jacobian has many
SMALL = 40  # elements of the input of a Jacobian
# Over `f`, a function of one input, and `x`, that input.
_SCALAR = "lambda v: ({f})(v).sin().sum()"
_PLAIN = (
    f"torch.func.grad({_SCALAR})({{x}})",
    f"torch.func.grad_and_value({_SCALAR})({{x}})",
    "(lambda out, pull: (out, pull(torch.cos(out))))(*torch.func.vjp({f}, {x}))",
    "torch.func.jvp({f}, ({x},), (torch.cos({x}),))",
    f"torch.func.jvp(torch.func.grad({_SCALAR}), ({{x}},), (torch.cos({{x}}),))",
    f"torch.func.grad(lambda v: torch.func.grad({_SCALAR})(v).square().sum())({{x}})",
)
_JACOBIANS = (
    "torch.func.jacrev({f})({x})",
    "torch.func.jacfwd({f})({x})",
    f"torch.func.hessian({_SCALAR})({{x}})",
    f"torch.func.jacrev(torch.func.grad({_SCALAR}))({{x}})",
)
_BATCHED = (
    "torch.func.vmap({f})({x})",
    f"torch.func.vmap(torch.func.grad({_SCALAR}))({{x}})",
    "torch.func.vmap(lambda v: torch.func.jvp({f}, (v,), (torch.cos(v),)))({x})",
    "torch.func.vmap(torch.func.jacrev({f}))({x})",
    f"torch.func.vmap(torch.func.hessian({_SCALAR}))({{x}})",
)


def transformed(b: Build, program: FuzzProgram) -> FuzzProgram:
    inputs = [name for line in program.inputs for name in line.defines if b[name].is_floating_point()]
    for _ in range(ATTEMPTS):
        if not inputs:
            break
        x = b.one(inputs)
        reached = [name for name in _reached(program, x) if b[name].is_floating_point()]
        if not reached:
            continue
        output = b.one(reached[-3:])
        batched = b.maybe(3)
        small = b[x].numel() <= SMALL and b[output].numel() <= SMALL
        template = b.one(_BATCHED if batched else _PLAIN + (_JACOBIANS if small else ()))
        names = [name for line in program.inputs for name in line.defines]
        function = f"lambda {x}: base({', '.join(names)})"
        made = replace(program, outputs=(output,), training=False, transform=template.format(f=function, x=x))
        made = _stacked(made, x) if batched else made
        if _runs(made):
            return made
    raise Refused("no transform of it runs")


def _reached(program: FuzzProgram, x: str) -> list[str]:
    """What is made of an input, in order."""
    found = [x]
    for line in program.lines:
        if set(found).intersection(line.uses):
            found += [name for name in line.touched if name not in found]
    return found[1:]


def _stacked(program: FuzzProgram, x: str) -> FuzzProgram:
    """The input with three of its like behind one another."""
    lines = []
    for line in program.inputs:
        if line.defines == (x,):
            _, _, code = line.code.partition(" = ")
            line = replace(line, code=f"{x} = (lambda v: torch.stack([v, v * 0.5, -v]))({code})")
        elif x in line.uses:
            raise Refused("it shares memory with a batched input")
        lines.append(line)
    return replace(program, inputs=tuple(lines))


def _runs(program: FuzzProgram) -> bool:
    """Whether eager takes it, with results of a size to compare."""
    space = namespace(str(program))
    with mode_of(space):
        outcomes = [run(space, case) for case in cases_of(space)]
    results = [r for outcome in outcomes for r in outcome.returned]
    return not any(o.error for o in outcomes) and all(
        isinstance(r, torch.Tensor) and r.numel() <= LARGEST and bool(r.isfinite().all()) for r in results
    )


__all__ = ["transformed"]
