"""Every instruction set that this machine can run: all scalar operators, all casts, and each kind of kernel.

All rows of one type are kernels of one program, which is built once for each instruction set.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from litz.codegen.llvm.build import build
from litz.errors import CompileError
from litz.loop.dtype import DTYPES, to_torch
from litz.loop.ir import Kernel, Load, Program, Store, View
from litz.loop.scalar import BOOL, Scalar
from litz.runtime.link import Code, undefined_symbols
from litz.target import Target, _host_cpu, detect
from tests.codegen.native import over_each, run
from tests.codegen.test_scalars import ROWS, SPECIAL, TYPES, arguments, judge

WIDTHS = {"avx512": 64, "avx2": 32, "sse2": 16, "neon": 16}
LENGTH = 37  # whole vectors of every width, and some elements more


def isas() -> list[str]:
    """Those that this processor has, the machine's own included."""
    present = {item[1:] for item in _host_cpu()[1].split(",") if item.startswith("+")}
    if detect(1).arch != "x86_64":
        return [detect(1).isa]
    needs = {"avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx2": {"avx2", "fma"}, "sse2": set()}
    return [isa for isa, features in needs.items() if features <= present]


@pytest.fixture(params=isas())
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("LITZ_ISA", request.param)
    found = detect(threads=2)
    assert (found.isa, found.vector_bytes) == (request.param, WIDTHS[request.param])
    return found


def side_by_side(programs: list[Program]) -> Program:
    """The programs as one, each with buffers of its own."""
    buffers, inputs, outputs, steps = {}, [], [], []
    for number, program in enumerate(programs):
        names = {name: f"p{number}_{name}" for name in program.buffers}
        buffers |= {new: replace(program.buffers[old], name=new) for old, new in names.items()}
        inputs += [names[name] for name in program.inputs if name is not None]
        outputs += [replace(v, buffer=names[v.buffer]) for v in program.outputs if isinstance(v, View)]
        for kernel in program.kernels:
            body = (replace(op, buffer=names[op.buffer]) if isinstance(op, (Load, Store)) else op for op in kernel.body)
            steps.append(Kernel(f"p{number}_{kernel.name}", kernel.axes, kernel.reduced, tuple(body)))
    return Program(buffers, tuple(inputs), tuple(outputs), tuple(steps))


def result(row: Scalar, dtype: str) -> str:
    return "b1" if row.result == BOOL else dtype


@pytest.mark.parametrize("dtype", [dtype for kind in TYPES.values() for dtype in kind])
def test_scalars(target: Target, dtype: str) -> None:
    rows = [row for row in ROWS if DTYPES[dtype].kind in row.kinds]
    given = [arguments(row, dtype, LENGTH) for row in rows]
    programs = [over_each(x, row.name, result(row, dtype)) for row, x in zip(rows, given, strict=True)]
    found = run(side_by_side(programs), [x for inputs in given for x in inputs], target)
    for row, inputs, made in zip(rows, given, found, strict=True):
        judge(row, inputs, made)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_special_values(target: Target, dtype: str) -> None:
    rows = [row for row in ROWS if "float" in row.kinds and row.arity == 1]
    values = torch.tensor(SPECIAL, dtype=to_torch(dtype))
    programs = [over_each([values], row.name, result(row, dtype)) for row in rows]
    found = run(side_by_side(programs), [values] * len(rows), target)
    for row, made in zip(rows, found, strict=True):
        judge(row, [values], made)


def test_casts(target: Target) -> None:
    """Between all types, of numbers that each of them has."""
    numbers = torch.tensor([0, 1, 2, 3, 100, 5, 17, 64] * 5)[:LENGTH]
    pairs = [(a, b) for a in DTYPES for b in DTYPES if a != b]
    given = [numbers.to(to_torch(a)) for a, _ in pairs]
    programs = [over_each([x], "cast", b) for x, (_, b) in zip(given, pairs, strict=True)]
    found = run(side_by_side(programs), given, target)
    for x, (_, b), made in zip(given, pairs, found, strict=True):
        assert torch.equal(made, x.to(to_torch(b)))


def blocks(x, w, image, kernel, ids):
    y = F.layer_norm(F.gelu(F.linear(x, w)), (48,))
    pooled = F.max_pool2d(F.relu(F.conv2d(image, kernel, padding=1)), 2)
    half = (x.half() * 2 + 1).tanh(), x.bfloat16().sin() + x[:, :1].bfloat16()
    sums = x.sum(), x.cumsum(0), x.argmax(1), x.double().std(0), (x > 0).any(1), torch.softmax(y, -1)
    return y, pooled, half, sums, F.embedding(ids, w), w.index_add(0, ids, w[:3] * 2), x[:, ::3].exp2(), x.t() % 0.7


def test_each_kind_of_kernel(target: Target) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(33, 31), torch.randn(48, 31), torch.randn(2, 3, 9, 9), torch.randn(16, 3, 3, 3))
    ids = torch.tensor([3, 0, 7])
    torch._dynamo.reset()
    compiled = torch.compile(blocks, backend="litz", options={"matmul": "generate", "verify": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs, ids), blocks(*inputs, ids), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_without_functions_for_vectors(dtype: str) -> None:
    """Where torch exports none at all, the C library's are called a lane at a time."""
    rows = [row for row in ROWS if row.llvm.get("float", "").startswith(("sleef", "inline"))]
    given = [arguments(row, dtype, LENGTH) for row in rows]
    programs = [over_each(x, row.name, result(row, dtype)) for row, x in zip(rows, given, strict=True)]
    bare = replace(detect(threads=1), function_bytes=())
    found = run(side_by_side(programs), [x for inputs in given for x in inputs], bare)
    for row, inputs, made in zip(rows, given, found, strict=True):
        judge(row, inputs, made)


def test_a_function_that_does_not_exist_is_named() -> None:
    """LLVM's own answer to a missing symbol is to end the process."""
    text = """declare float @nobody_has_this(float)
    define float @f(float %x) {
      %y = call float @nobody_has_this(float %x)
      ret float %y
    }"""
    with pytest.raises(CompileError, match="calls nobody_has_this, which this process does not have"):
        Code(build([text], detect(1)), detect(1))
    assert undefined_symbols(b"something else") == []
