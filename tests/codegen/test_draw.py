"""Random numbers in generated kernels, run thread by thread where there is no GPU: each is the one that eager's kernels
draw (`tests/eager_draws.py`), blocks are shared, and a backward draws what its forward drew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F

from litz.codegen.interpret import run_plan
from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import object_of
from litz.codegen.llvm.writer import Module
from litz.codegen.plan_gpu import plan_for_gpu
from litz.context import Context
from litz.graph.partition.split import split
from litz.graph.replay_draws import replay_draws
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.rewrite_post_grad import rewrite_post_grad
from litz.loop.draw import RESERVE
from litz.loop.interpret import interpret
from litz.loop.ir import Program
from litz.loop.parse import parse_program
from litz.loop.text import print_program
from litz.ops.draw import kept_scale
from litz.ops.lower import lower
from litz.options import Options
from litz.pipeline import trace
from litz.schedule.check_first import check_first
from litz.schedule.fuse import fuse
from litz.schedule.simplify import mark_outputs, merge_axes
from litz.target import GpuTarget, detect
from tests import eager_draws
from tests.codegen.emulate import run

THREADS = 256  # of a very small GPU, so that a few thousand elements take several turns


def target(processors: int = 1) -> GpuTarget:
    return GpuTarget(detect(threads=1), "sm_90", "+ptx80", processors, threads_each=THREADS)


def scheduled(graph: Any, ctx: Context) -> Program:
    return merge_axes(check_first(fuse(mark_outputs(lower(graph, ctx).program), ctx)))


def inference(function: Callable[..., Any], inputs: Sequence[Any], ctx: Context | None = None) -> Program:
    ctx = ctx or Context(Options(), target())
    with torch.no_grad():
        joint = replay_draws(rewrite_joint(trace(function, inputs, None, ctx, False), ctx), ctx)
    return scheduled(joint.graph, ctx)


def seeded(function: Callable[[], Any], seed: int = 5) -> Any:
    torch.manual_seed(seed)
    return function()


def cell_of(seed: int = 5) -> tuple[int, int]:
    """What a program reserves that is run under `seeded`."""
    first, second = seeded(lambda: RESERVE(1, device=torch.device("cpu")), seed).tolist()
    return first, second


def mask_of(
    x: torch.Tensor, p: float, width: int, cell: tuple[int, int], first: int = 0, order: tuple[int, ...] | None = None
) -> torch.Tensor:
    """What eager's kernel would keep of a tensor like that."""
    words = eager_draws.drawn(x.numel(), width, cell[0], 4 * (cell[1] + first), THREADS)
    double = x.dtype is torch.float64
    kept = torch.tensor([eager_draws.is_kept(word, 1.0 - p, double) for word in words])
    return torch.as_strided(kept, x.shape, order or x.stride())


def kept(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return (x.to(wide) * mask * torch.tensor(kept_scale(1.0 - p, x.dtype), dtype=wide)).to(x.dtype)


def dropout(x: torch.Tensor, p: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.native_dropout(x, p, True)


# -- each element's number ------------------------------------------------------------------------
WIDTHS = {torch.bfloat16: 8, torch.float16: 8, torch.float32: 4, torch.float64: 2}


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("shape", [(8,), (3, 64), (5, 1024), (9000,), (4, 5, 48)], ids=str)
def test_dropout(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    ran = seeded(lambda: run(inference(dropout, [x]), [x]))
    assert (ran.kernels, ran.others) == (1, 1)
    mask = mask_of(x, 0.3, WIDTHS[dtype], cell_of())
    assert 0 < int(mask.sum()) < mask.numel()
    assert torch.equal(ran.results[1], mask)
    assert torch.equal(ran.results[0], kept(x, mask, 0.3))


@pytest.mark.parametrize("p", [0.0, 1e-6, 0.5, 0.999])
def test_any_probability(p: float) -> None:
    x = torch.randn(40, 32)
    ran = seeded(lambda: run(inference(lambda x: dropout(x, p), [x]), [x]))
    assert torch.equal(ran.results[1], mask_of(x, p, 4, cell_of()))


FORMS: dict[str, tuple[Callable[[], torch.Tensor], int, tuple[int, ...] | None]] = {
    "elements are left over": (lambda: torch.randn(30, 15), 2, None),
    "odd": (lambda: torch.randn(33, 35), 1, None),
    "turned": (lambda: torch.randn(48, 20).t(), 4, None),
    "turned and odd": (lambda: torch.randn(35, 33).t(), 1, (35, 1)),
    "with gaps": (lambda: torch.randn(24, 40)[:, ::2], 1, (20, 1)),
    "begins elsewhere": (lambda: torch.randn(900)[2:802], 2, None),
}


@pytest.mark.parametrize("name", FORMS)
def test_however_it_lies(name: str) -> None:
    make, width, order = FORMS[name]
    x = make()
    ran = seeded(lambda: run(inference(dropout, [x]), [x]))
    mask = mask_of(x, 0.3, width, cell_of(), order=order)
    assert torch.equal(ran.results[1], mask) and torch.equal(ran.results[0], kept(x, mask, 0.3))
    assert ran.results[0].stride() == torch.empty_like(x).stride()


def test_two_in_a_row() -> None:
    x = torch.randn(100, 64)
    ran = seeded(lambda: run(inference(lambda x: dropout(dropout(x)[0] + 1, 0.6)[0], [x]), [x]))
    assert (ran.kernels, ran.others) == (1, 1)
    cell, blocks = cell_of(), eager_draws.increment(x.numel(), THREADS) // 4
    assert blocks > 1
    half = kept(x, mask_of(x, 0.3, 4, cell), 0.3) + 1
    assert torch.equal(ran.results[0], kept(half, mask_of(x, 0.6, 4, cell, blocks), 0.6))


def test_nan_and_infinity_stay_as_under_eager() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, -1.0, 3e38, 1e-45]).repeat(8)
    ran = seeded(lambda: run(inference(lambda x: dropout(x, 0.5), [x]), [x]))
    wanted = kept(x, ran.results[1], 0.5)
    assert torch.equal(ran.results[0].isnan(), wanted.isnan())
    assert torch.equal(ran.results[0].nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(ran.results[0].signbit() & ~wanted.isnan(), wanted.signbit() & ~wanted.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_coins(dtype: torch.dtype) -> None:
    x = torch.empty(50, 30)
    ran = seeded(lambda: run(inference(lambda x: torch.empty_like(x, dtype=dtype).bernoulli_(0.3), [x]), [x]))
    assert torch.equal(ran.results[0], mask_of(x, 0.7, 1, cell_of()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_uniform_numbers(dtype: torch.dtype) -> None:
    x = torch.empty(50, 30, dtype=dtype)
    ran = seeded(lambda: run(inference(torch.rand_like, [x]), [x]))
    cell = cell_of()
    words = eager_draws.drawn(x.numel(), 1, cell[0], 4 * cell[1], THREADS)
    wanted = torch.tensor([eager_draws.uniform(word) for word in words]).to(dtype).view(x.shape)
    assert dtype is not torch.bfloat16 or bool((wanted == 1).any())  # which are zeros in the result
    assert torch.equal(ran.results[0], torch.where(wanted == 1, 0, wanted))


def test_beside_rows_that_are_reduced() -> None:
    x = torch.randn(6, 512).bfloat16()
    ran = seeded(lambda: run(inference(lambda x: dropout(F.softmax(x, -1)), [x]), [x], rtol=1e-2))
    assert (ran.kernels, ran.others) == (1, 1)
    assert torch.equal(ran.results[1], mask_of(x, 0.3, 8, cell_of()))


@pytest.mark.parametrize("function", [F.gelu, F.silu], ids=["gelu", "silu"])
def test_behind_a_function_that_it_is_part_of(function: Callable[..., torch.Tensor]) -> None:
    """What is kept is multiplied within the function, and rounded once."""
    x = torch.linspace(-4, 4, 4096).bfloat16()
    ran = seeded(lambda: run(inference(lambda x: dropout(function(x)), [x]), [x]))
    mask, exact = mask_of(x, 0.3, 8, cell_of()), function(x.double()) / (1 - 0.3)
    assert (ran.kernels, ran.others) == (1, 1) and torch.equal(ran.results[1], mask)
    off = (ran.results[0].double() - exact * mask).abs()
    assert (off <= 0.7 * torch.finfo(x.dtype).eps * exact.abs()).all()
    (infinite,) = seeded(
        lambda: run(inference(lambda x: dropout(function(x))[0], [x]), [torch.full_like(x, torch.inf)]).results
    )
    assert torch.equal(infinite.isnan(), ~mask) and bool((infinite[mask] == torch.inf).all())


@pytest.mark.parametrize("columns", [40, 20_000], ids=["short rows", "longer than registers"])
def test_before_rows_are_reduced(columns: int) -> None:
    x = torch.randn(3, columns)
    ran = seeded(lambda: run(inference(lambda x: F.softmax(dropout(x)[0], -1), [x]), [x]))
    wanted = kept(x, mask_of(x, 0.3, 4, cell_of()), 0.3).softmax(-1)
    torch.testing.assert_close(ran.results[0], wanted)


# -- sizes known only at run time -----------------------------------------------------------------
def symbolic(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    sizes = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(x.dim())]
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(
        x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )


def test_symbolic_sizes() -> None:
    x = torch.randn(30, 7, 32)
    fake = symbolic(x, (0, 1))
    with fake.fake_mode:  # type: ignore[attr-defined]
        program = inference(lambda x: dropout(dropout(x)[0])[0], [fake])
    assert len(program.sizes) == 2
    for rows, columns in ((30, 7), (100, 3), (1, 1), (60, 20)):
        x = torch.randn(rows, columns, 32)
        ran = seeded(lambda x=x: run(program, [x]))
        cell, blocks = cell_of(), eager_draws.increment(x.numel(), THREADS) // 4
        once = kept(x, mask_of(x, 0.3, 4, cell), 0.3)
        assert torch.equal(ran.results[0], kept(once, mask_of(x, 0.3, 4, cell, blocks), 0.3))


# -- in the backward ------------------------------------------------------------------------------
def test_a_backward_draws_what_its_forward_drew() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return dropout(torch.tanh(dropout(x)[0] * y), 0.6)[0]

    x, y, tangent = (torch.randn(60, 64) for _ in range(3))
    ctx = Context(Options(), target())
    inputs = [t.clone().requires_grad_() for t in (x, y)]
    joint = replay_draws(rewrite_joint(trace(function, inputs, None, ctx, True), ctx), ctx)
    parts = split(joint)
    forward, backward = (scheduled(rewrite_post_grad(g, ctx), ctx) for g in (parts.forward, parts.backward))
    results = seeded(lambda: run(forward, [x, y])).results
    own, saved = results[: joint.forward_outputs], results[joint.forward_outputs :]
    assert [t.numel() for t in saved if not t.is_floating_point()] == [2]  # the cell, and no mask
    given = [(x, y)[i] for i in parts.saved_primals] + [own[i] for i in parts.saved_results] + saved
    ran = run(backward, [*given, tangent])
    assert not ran.others
    cell, blocks = cell_of(), eager_draws.increment(x.numel(), THREADS) // 4
    masks = mask_of(x, 0.3, 4, cell), mask_of(x, 0.6, 4, cell, blocks)
    result = kept(torch.tanh(kept(inputs[0], masks[0], 0.3) * inputs[1]), masks[1], 0.6)
    torch.testing.assert_close(own[0], result.detach())
    result.backward(tangent)
    for found, leaf in zip(ran.results, inputs, strict=True):
        torch.testing.assert_close(found, leaf.grad)


# -- how it is done -------------------------------------------------------------------------------
def code_of(program: Program) -> tuple[str, str]:
    (kernel,) = program.kernels
    module = Module(gpu.DIALECT)
    gpu.render(kernel, program.buffers, module, "kernel")
    text = f"{gpu.TRIPLE}\n{module.text()}"
    return text, object_of(text, target()).decode()


@pytest.mark.parametrize(
    "dtype, vectors, blocks", [(torch.bfloat16, 2, 4), (torch.float32, 4, 4), (torch.float64, 8, 8)], ids=str
)
def test_neighbours_share_a_block(dtype: torch.dtype, vectors: int, blocks: int) -> None:
    """Sixteen elements, in vectors of 16 bytes: four blocks, or, of doubles, as many as eager draws."""
    x = torch.empty(1 << 20, dtype=dtype)
    program = inference(lambda x: dropout(x)[0], [x], Context(Options(), target(132)))
    plan = plan_for_gpu(program.kernels[0]).rows
    assert (plan.lanes * plan.copies, plan.copies) == (16, vectors)
    text, ptx = code_of(program)
    assert text.count("call i32 @llvm.nvvm.mulhi.ui(") == 20 * blocks
    products = ptx.count("mul.hi.u32")  # some of the first rounds are the same for all
    assert 14 * blocks <= products <= 20 * blocks + 4
    assert ".local" not in ptx and "div." not in ptx and "rem." not in ptx


def test_keys_are_made_once() -> None:
    program = inference(lambda x: dropout(x)[0], [torch.empty(1 << 20)], Context(Options(), target(132)))
    _, ptx = code_of(program)
    assert sum(ptx.count(f", {step - (1 << 32)};") for step in (0x9E3779B9, 0xBB67AE85)) <= 2


def test_lanes_of_other_neighbours_have_blocks_of_their_own() -> None:
    """Written in another order than it is drawn: still the same numbers."""
    x = torch.randn(64, 40)
    function = lambda x: dropout(x)[0].t().contiguous() * 2  # noqa: E731
    ran = seeded(lambda: run(inference(function, [x]), [x]))
    assert torch.equal(ran.results[0], kept(x, mask_of(x, 0.3, 4, cell_of()), 0.3).t() * 2)


KERNEL = """program(cell: i64[2]) -> (y: i64[{size}])
buffer y: i64[{size}] output
kernel k
  for i0 < {rows} parallel, i1 < {columns} parallel:
    v0: i64 = load cell[0]
    v1: i64 = load cell[1]
    v2: i64 = index v1 + (i1//4)%2
    v3: i64 = index {columns}*i0 + 4*(i1//8) + i1%4
    v4: i64 = philox v0, v2, v3
    store y[{columns}*i0 + i1] = v4
"""


@pytest.mark.parametrize("columns", [8, 12, 30, 1000])
def test_kernels_as_written(columns: int) -> None:
    """Text, both interpreters, and code; vectors that fit and such that do not."""
    program = parse_program(KERNEL.format(size=6 * columns, rows=6, columns=columns))
    assert parse_program(print_program(program)) == program
    cell = torch.tensor([-77, (1 << 32) - 1])  # whose counters carry into the next word
    (wanted,) = interpret(program, [cell])
    (planned,) = interpret(program, [cell], run_kernel=lambda kernel, *where: run_plan(plan_for_gpu(kernel), *where))
    assert isinstance(wanted, torch.Tensor) and torch.equal(planned, wanted)  # type: ignore[arg-type]
    assert len(wanted.unique()) == wanted.numel() and int(wanted.min()) >= 0 and int(wanted.max()) < 1 << 32
    assert torch.equal(run(program, [cell]).results[0], wanted)


def test_axes_that_are_counted_as_one_are_one() -> None:
    """Rows that eager's threads take whole numbers of stay rows, whose place is found once for all of their vectors."""
    for columns, axes in ((768, [800, 768]), (1000, [800_000])):
        x = torch.empty(4, 200, columns, dtype=torch.bfloat16)
        (kernel,) = inference(lambda x: dropout(x)[0], [x], Context(Options(), target(132))).kernels
        assert [axis.size.int for axis in kernel.axes] == axes
