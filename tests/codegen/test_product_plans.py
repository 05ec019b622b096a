"""Plans of matrix products: their text, what they compute by `interpret_product.py`, and the instructions they are for.

Instructions that this machine lacks are looked at in the assembly that LLVM makes of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from litz.codegen.interpret_product import run_product
from litz.codegen.llvm import microkernel
from litz.codegen.llvm.build import llvm
from litz.codegen.product import ProductPlan, plan_product, tiles_for
from litz.errors import PlanError
from litz.loop.contraction import Contraction, contraction
from litz.loop.dtype import to_torch
from litz.loop.expr import expr
from litz.loop.interpret import interpret
from litz.loop.ir import Program
from litz.loop.multiply import MULTIPLIES, multiply_for
from litz.loop.text import print_program
from litz.target import Target
from tests import golden
from tests.codegen import native
from tests.codegen.product_kernels import product

_X86 = "+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
PAIRS = Target("x86_64", "avx512", "znver4", f"{_X86},+avx512bf16", 64, 32, threads=2, l2_bytes=1 << 20)
TILES = replace(PAIRS, cpu="sapphirerapids", features=f"{_X86},+avx512bf16,+amx-tile,+amx-bf16")
WIDE = replace(PAIRS, features=_X86)  # without an instruction for pairs
NARROW = Target("x86_64", "avx2", "haswell", "+avx,+avx2,+fma", 32, 16, threads=2)
TARGETS = {"pairs": PAIRS, "tiles": TILES, "wide": WIDE, "narrow": NARROW}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)

SHOWN = {
    "pairs": (product(512, 768, 3072), PAIRS),
    "pairs_turned": (product(40, 50, 71, turned="ab", batch=3), PAIRS),
    "pairs_any_rows": (product("s0", 96, 64), PAIRS),
    "tiles": (product(512, 768, 3072, turned="b"), TILES),
    "widened": (product(512, 768, 3072, dtype="f16"), PAIRS),
    "float32": (product(512, 768, 3072, dtype="f32"), NARROW),
}


def found_in(program: Program) -> Contraction:
    found = contraction(program.kernels[0])
    assert found is not None
    return found


def planned(program: Program, target: Target) -> ProductPlan:
    return plan_product(found_in(program), program.kernels[0], target)


@pytest.mark.parametrize("name", SHOWN)
def test_text_of_plans(name: str) -> None:
    program, target = SHOWN[name]
    golden.check(f"plan_product_{name}", f"{planned(program, target)}\n")


def test_text_of_a_product_of_halves() -> None:
    golden.check("product_of_halves", print_program(product(40, 50, 71, turned="b")))


# -- what they compute ----------------------------------------------------------------------------
COMPUTED = {
    "whole tiles": product(28, 64, 64),
    "nothing whole": product(33, 47, 71),
    "an odd depth that is turned": product(15, 33, 37, turned="ab"),
    "a depth of one": product(5, 7, 1, turned="b"),
    "a batch": product(17, 20, 33, batch=3, turned="b"),
    "several blocks": product(60, 300, 40),
    "float16": product(20, 40, 35, dtype="f16"),
    "float32": product(20, 40, 300, dtype="f32", turned="a"),
    "a float32 sum of halves": product(20, 40, 700, out="f32"),
}


def operands(program: Program) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    given = [program.buffers[name] for name in program.inputs if name is not None]
    return [torch.randn(int(b.size.at({})), generator=generator).to(to_torch(b.dtype)) for b in given]


def by_plan(program: Program, plan: ProductPlan, inputs: list[torch.Tensor]) -> torch.Tensor:
    (result,) = interpret(
        program, inputs, {}, lambda kernel, *where: run_product(plan, kernel, found_in(program), *where)
    )
    assert isinstance(result, torch.Tensor)
    return result


@each_target
@pytest.mark.parametrize("name", COMPUTED)
def test_a_plan_computes_the_product(name: str, target: Target) -> None:
    program = COMPUTED[name]
    target = replace(target, l2_bytes=1 << 14) if name == "several blocks" else target
    inputs = operands(program)
    (wanted,) = interpret(program, inputs)
    found = by_plan(program, planned(program, target), inputs)
    tolerance = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-5}[program.buffers["y"].dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_a_plan_that_leaves_something_out_is_noticed() -> None:
    program = product(40, 50, 64)
    plan = planned(program, PAIRS)
    for wrong in (replace(plan, block=1, blocks=1), replace(plan, rows=expr(30)), replace(plan, rows=expr(54))):
        with pytest.raises((PlanError, IndexError), match=r"computed|reaches"):
            by_plan(program, wrong, operands(program))


@pytest.mark.parametrize("name", COMPUTED)
def test_generated_code_does_as_planned(name: str) -> None:
    program = COMPUTED[name]
    inputs = operands(program)
    (wanted,) = interpret(program, inputs)
    (found,) = native.run(program, inputs)
    tolerance = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-5}[program.buffers["y"].dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


# -- instructions ---------------------------------------------------------------------------------
def test_the_best_instruction_that_there_is() -> None:
    def names(target: Target) -> list[str]:
        return [multiply_for(target, *types).name for types in (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"))]

    assert [names(target)[0] for target in TARGETS.values()] == ["vdpbf16ps", "tdpbf16ps", "fma", "fma"]
    assert names(TILES)[1:] == ["fma", "fma"]


@pytest.mark.parametrize("multiply", MULTIPLIES, ids=lambda multiply: multiply.name)
def test_the_inner_loop_is_the_instruction(multiply) -> None:
    target = next(t for t in (TILES, NARROW) if t.has_all(multiply.needs))
    expected = {"tdpbf16ps": "tdpbf16ps", "vdpbf16ps": "vdpbf16ps", "fma": "vfmadd"}[multiply.name]
    for tile in tiles_for(multiply, target):
        module = llvm().parse_assembly(microkernel.text(tile))
        module.verify()
        machine = llvm().Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
            cpu=target.cpu, features=target.features, opt=2
        )  # fmt: skip
        lines = [line.split() for line in machine.emit_assembly(module).splitlines()]
        count = sum(bool(line) and line[0].startswith(expected) for line in lines)
        if multiply.on_tiles:
            assert count == tile.rows // 16 * 2
            assert [line[0] for line in lines if line and line[0] in ("ldtilecfg", "tilerelease")] == [
                "ldtilecfg", "tilerelease",
            ]  # fmt: skip
        else:
            assert count == tile.rows * 2 * (tile.lanes + 1)  # a chunk of words, and one that is left
        stack = [line for line in lines if "(%rsp)" in "".join(line) and "mm" in "".join(line)]
        assert not stack, "accumulators do not fit into registers"
