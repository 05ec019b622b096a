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
from litz.target import Target, detect
from tests import golden
from tests.codegen import native
from tests.codegen.product_kernels import of_bytes, product
from tests.codegen.test_isas import isas

_X86 = "+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
PAIRS = Target("x86_64", "avx512", "znver4", f"{_X86},+avx512bf16", 64, 32, threads=2, l2_bytes=1 << 20)
TILES = replace(PAIRS, cpu="sapphirerapids", features=f"{_X86},+avx512bf16,+amx-tile,+amx-bf16")
WIDE = replace(PAIRS, features=_X86)  # without an instruction for pairs
NARROW = Target("x86_64", "avx2", "haswell", "+avx,+avx2,+fma", 32, 16, threads=2)
TILES_OF_FOURS = replace(TILES, features=f"{TILES.features},+avx512vnni,+amx-int8")
FOURS = replace(PAIRS, features=f"{_X86},+avx512vnni")
NARROW_FOURS = replace(NARROW, cpu="alderlake", features=f"{NARROW.features},+avxvnni")
LEAST = replace(NARROW, isa="sse2", cpu="x86-64", features="+sse2", vector_bytes=16)
TARGETS = {"pairs": PAIRS, "tiles": TILES, "wide": WIDE, "narrow": NARROW}
OF_BYTES = {
    "tiles of fours": TILES_OF_FOURS, "fours": FOURS, "narrow fours": NARROW_FOURS, "wide": WIDE, "narrow": NARROW,
    "least": LEAST,
}  # fmt: skip
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)

SHOWN = {
    "pairs": (product(512, 768, 3072), PAIRS),
    "pairs_turned": (product(40, 50, 71, turned="ab", batch=3), PAIRS),
    "pairs_any_rows": (product("s0", 96, 64), PAIRS),
    "tiles": (product(512, 768, 3072, turned="b"), TILES),
    "widened": (product(512, 768, 3072, dtype="f16"), PAIRS),
    "float32": (product(512, 768, 3072, dtype="f32"), NARROW),
    "bytes": (of_bytes(512, 768, 3072), FOURS),
    "bytes_widened": (of_bytes(512, 768, 3072), NARROW),
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


def test_text_of_a_product_of_bytes() -> None:
    golden.check("product_of_bytes", print_program(of_bytes(40, 50, 71, turned="b", beyond=3)))


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


BYTES = {
    "whole tiles": of_bytes(28, 64, 64),
    "nothing whole": of_bytes(33, 47, 71),
    "a depth that is turned": of_bytes(15, 33, 37, turned="ab"),
    "a depth of one": of_bytes(5, 7, 1, turned="b"),
    "several blocks": of_bytes(60, 300, 40),
    "signed": of_bytes(20, 40, 70, left="i8"),
    "unsigned columns": of_bytes(20, 40, 70, left="i8", right="u8", turned="a"),
    "rows from beyond": of_bytes(20, 40, 70, turned="b", beyond=3),
}


def operands(program: Program) -> list[torch.Tensor]:
    """Whole numbers are any, the least and the largest first."""
    generator = torch.Generator().manual_seed(0)
    given = []
    for name in program.inputs:
        assert name is not None
        size, dtype = int(program.buffers[name].size.at({})), to_torch(program.buffers[name].dtype)
        if dtype.is_floating_point:
            given.append(torch.randn(size, generator=generator).to(dtype))
            continue
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        numbers = torch.randint(least, most + 1, (size,), generator=generator)
        numbers[: size // 3], numbers[size // 3 : size // 2] = most, least
        given.append(numbers.to(dtype))
    return given


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


@pytest.mark.parametrize("target", OF_BYTES.values(), ids=OF_BYTES)
@pytest.mark.parametrize("name", BYTES)
def test_a_plan_computes_the_product_of_bytes(name: str, target: Target) -> None:
    program = BYTES[name]
    target = replace(target, l2_bytes=1 << 14) if name == "several blocks" else target
    inputs = operands(program)
    (wanted,) = interpret(program, inputs)
    assert torch.equal(by_plan(program, planned(program, target), inputs), wanted)


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


@pytest.mark.parametrize("isa", isas())
def test_generated_code_of_bytes_is_exact(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITZ_ISA", isa)
    for program in BYTES.values():
        inputs = operands(program)
        (wanted,) = interpret(program, inputs)
        (found,) = native.run(program, inputs, detect(2))
        assert torch.equal(found, wanted)


# -- instructions ---------------------------------------------------------------------------------
def test_the_best_instruction_that_there_is() -> None:
    def names(target: Target) -> list[str]:
        return [multiply_for(target, *types).name for types in (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"))]

    assert [names(target)[0] for target in TARGETS.values()] == ["vdpbf16ps", "tdpbf16ps", "fma", "fma"]
    assert names(TILES)[1:] == ["fma", "fma"]


def test_the_best_instruction_for_bytes() -> None:
    def names(left: str, right: str) -> list[str]:
        return [multiply_for(target, left, right, "i32").name for target in OF_BYTES.values()]

    assert names("u8", "i8") == ["tdpbusd", "vpdpbusd", "vpdpbusd", "vpmaddwd", "vpmaddwd", "imul"]
    assert names("i8", "i8") == [*["vpmaddwd"] * 5, "imul"]


@pytest.mark.parametrize("multiply", MULTIPLIES, ids=lambda multiply: f"{multiply.name}-{multiply.widest}")
def test_the_inner_loop_is_the_instruction(multiply) -> None:
    having = (TILES, TILES_OF_FOURS, FOURS, NARROW_FOURS, NARROW)
    if multiply.name == "imul":
        having = (LEAST,)
    target = next(t for t in having if t.has_all(multiply.needs) and t.vector_bytes <= multiply.widest)
    expected = {"fma": ("vfmadd",), "imul": ("pmuludq",), "vpmaddwd": ("vpmaddwd", "vpdpwssd")}.get(
        multiply.name, (multiply.name,)
    )
    for tile in tiles_for(multiply, target):
        module = llvm().parse_assembly(microkernel.text(tile))
        module.verify()
        machine = llvm().Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
            cpu=target.cpu, features=target.features, opt=2
        )  # fmt: skip
        lines = [line.split() for line in machine.emit_assembly(module).splitlines()]
        count = sum(any(word.startswith(expected) for word in line[:2]) for line in lines)  # after `{vex}` too
        if multiply.on_tiles:
            assert count == tile.rows // 16 * 2
            assert [line[0] for line in lines if line and line[0] in ("ldtilecfg", "tilerelease")] == [
                "ldtilecfg", "tilerelease",
            ]  # fmt: skip
        else:
            each = 2 if multiply.name == "imul" else 1  # as many instructions multiply whole numbers of 32 bits there
            assert count == each * tile.rows * 2 * (tile.lanes + 1)  # a chunk of words, and one that is left
        stack = [line for line in lines if "(%rsp)" in "".join(line) and "mm" in "".join(line)]
        if multiply.name == "imul":
            continue  # where it is two multiplications and shuffles, these take registers too
        assert not stack, "accumulators do not fit into registers"
