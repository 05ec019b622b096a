"""Every lowering over sizes known only at run time: right, and no question asked that would tie a size down."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from litz.capture.joint import trace_joint
from litz.context import Context
from litz.loop.interpret import interpret
from litz.loop.verify import verify
from litz.ops.decompose import decompositions
from litz.ops.lower import Lowered, lower
from litz.options import Options
from litz.target import detect
from tests.graph.rewriting import symbolic
from tests.ops.lowering import Case, quiet
from tests.ops.test_lowering import CASES

# Operators that are called for sizes that vary and generated for fixed ones, and why.
CALLED = {
    "aten::searchsorted.Tensor": "how often a row is halved follows from its length",
    "aten::searchsorted.Scalar": "how often a row is halved follows from its length",
    "aten::index_add": "whether sizes that must be equal are is not asked",
}


def open_sizes(fakes: list[Any]) -> list[Any]:
    return [s.node.maybe_as_int() is None for f in fakes if isinstance(f, torch.Tensor) for s in f.shape
            if isinstance(s, torch.SymInt)]  # fmt: skip


def lowered(one: Case) -> tuple[Lowered, list[int], list[Any], list[Any]]:
    """The program, what it takes beyond the inputs, and which sizes were open after tracing and after lowering."""
    fakes = iter(symbolic(*(x.detach() for x in one.inputs if isinstance(x, torch.Tensor))))
    given = [next(fakes) if isinstance(x, torch.Tensor) else x for x in one.inputs]
    # As Dynamo does: strides that follow from no size are arguments of their own.
    strides = [s for f in given if isinstance(f, torch.Tensor) for s in f.stride() if isinstance(s, torch.SymInt)]
    count = len(given)
    joint = trace_joint(lambda *args: one.function(*args[:count]), [*given, *strides], None, decompositions(), False)
    before = open_sizes(given)
    made = lower(joint.graph, Context(Options(matmul="library"), detect(threads=2)))
    verify(made.program)
    return made, [int(s.node.hint) for s in strides], before, open_sizes(given)


# Sixteen places an element, which take seconds to trace: what lies outside is asked of four places in all its ways.
TWICE = re.compile("grid-2d-bicubic-(border|zeros$|reflection-corners)")
SYMBOLIC = [one for one in CASES if not TWICE.match(one.name)]


@pytest.mark.parametrize("one", SYMBOLIC, ids=[one.name for one in SYMBOLIC])
def test_agrees_with_eager_for_any_size(one: Case) -> None:
    """All cases of `test_lowering.py` but those of `TWICE`, which have their sizes known there."""
    with quiet(), torch.no_grad():
        expected = one.function(*one.inputs)
        made, strides, before, after = lowered(one)
        found = interpret(made.program, [*one.inputs, *strides, *made.constants])
    assert before == after
    called = {call.target for call in made.program.calls}
    assert called - CALLED.keys() <= set(one.calls), called
    wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    tensors = [want for want in wanted if isinstance(want, torch.Tensor)]
    for got, want in zip(found, tensors, strict=False):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, want, rtol=one.rtol, atol=one.atol, equal_nan=True)
