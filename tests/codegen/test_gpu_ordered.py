"""Scans and scatters as a GPU runs them, on the CPU thread by thread: against the interpreter, and against eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from litz.codegen.llvm import gpu
from litz.codegen.llvm.build import object_of
from litz.codegen.llvm.writer import Module
from litz.codegen.plan_gpu import plan_for_gpu
from litz.loop.ir import Call, Kernel
from litz.loop.parse import parse_program
from litz.target import GpuTarget, detect
from tests.codegen import emulate
from tests.codegen.emulate import Ran, WrongOnGpu, program_of, run, run_function
from tests.codegen.row_kernels import histogram, scan, scatter

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8)
ROUGH = {torch.bfloat16: 0.3, torch.float16: 0.05}  # added up in any order, and rounded each time


def generated(function: Callable[..., Any], *inputs: torch.Tensor, **tolerances: float) -> Ran:
    """All of it is kernels, each as the interpreter has it, and the results are eager's."""
    ran = run_function(function, *inputs, **tolerances)
    assert ran.kernels and not ran.others
    return ran


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(dtype) if dtype == torch.int8 else (2 * torch.randn(shape)).to(dtype)


# -- scans --------------------------------------------------------------------------------------------
# Each a plan of its own: a thread, part of a warp, a warp, several; in one round and in more, the last not full.
LENGTHS = (2, 7, 33, 64, 1000, 4096, 20_001)
SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x, dim: x.cumsum(dim), "cummax": lambda x, dim: tuple(x.cummax(dim)),
    "cummin": lambda x, dim: tuple(x.cummin(dim)), "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
    "cumprod": lambda x, dim: x.sign().cumprod(dim),
}  # fmt: skip


CASES = [(kind, length) for kind in SCANS for length in (LENGTHS if kind == "cumsum" else LENGTHS[1::2])]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind, length", CASES)
def test_scans(kind: str, length: int, dim: int) -> None:
    x = torch.randn(3, length) if dim else torch.randn(length, 3)
    generated(lambda x: SCANS[kind](x, dim), x, rtol=1e-4, atol=1e-3)


def test_lengths_of_every_plan() -> None:
    found = []
    for along in ("rows", "columns"):
        for length in LENGTHS:
            (kernel,) = scan("sum", 3, length, along).kernels
            found.append(plan_for_gpu(kernel).rows)
    assert {plan.team for plan in found} == {1, 8, 16, 32, 64, 256, 512}
    assert {plan.lanes for plan in found} == {1, 2, 4}
    assert all(plan.over_reduced for plan in found)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_scans_of_each_type(dtype: torch.dtype) -> None:
    x = numbers((3, 700), dtype)
    loose = 0.5 if dtype in ROUGH else 1e-3
    generated(lambda x: (x.cumsum(1), *x.cummax(1)), x, rtol=1e-4, atol=loose)
    generated(lambda x: (x.cumsum(0), *x.cummin(0)), x.t().contiguous(), rtol=1e-4, atol=loose)


@pytest.mark.parametrize("dim", [0, 1])
def test_scans_of_what_is_no_number(dim: int) -> None:
    x = torch.tensor([[1, NAN, 3, INF], [-INF] * 4, [INF, -INF, 2, 3], [0.0, -0.0, 0.0, 5.0]])
    generated(lambda x: (*x.cummax(dim), *x.cummin(dim), x.logcumsumexp(dim), x.cumsum(dim)), x)
    ties = torch.randint(0, 3, (4, 300)).float()
    ties[1, 150] = NAN
    generated(lambda x: (*x.cummax(dim), *x.cummin(dim)), ties if dim else ties.t().contiguous())


@pytest.mark.parametrize("length", [4097, 8191])
def test_a_row_whose_last_vector_hangs_over(length: int) -> None:
    program, _ = program_of(lambda x: x.cumsum(0), [torch.randn(length)])
    assert [plan_for_gpu(kernel).rows.lanes for kernel in program.kernels] == [4]
    generated(lambda x: (x.cumsum(0), *x.cummax(0)), torch.randn(length), rtol=1e-4, atol=1e-3)


def test_rows_side_by_side_that_are_many() -> None:
    """Each is a thread's, several steps at a time."""
    (kernel,) = scan("sum", 40_000, 20, "columns").kernels
    assert plan_for_gpu(kernel).rows.team == 1
    generated(lambda x: x.cumsum(0), torch.randn(20, 40_000), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 300, 4096, 9001])
def test_a_length_known_only_at_run_time(length: int) -> None:
    for along in ("rows", "columns"):
        program = scan("sum", "s0", "s1", along)
        ran = run(program, [torch.randn(5 * length)], {"s0": 5, "s1": length}, rtol=1e-4, atol=1e-3)
        assert ran.kernels == 1


def test_one_long_row_is_the_librarys() -> None:
    program, _ = program_of(lambda x: x.cumsum(0), [torch.randn(1 << 16)])
    assert [type(step) for step in program.steps] == [Call]
    assert "row" in program.calls[0].why
    generated(lambda x: x.cumsum(0), torch.randn(1 << 13), rtol=1e-4, atol=1e-3)


def test_what_surrounds_a_scan_is_computed_with_it() -> None:
    assert generated(lambda x: x.exp().cumsum(1) * 2 + x, torch.randn(5, 300), rtol=1e-4).kernels == 1
    assert generated(lambda x: x.sin().cumsum(0).tanh(), torch.randn(30, 50), atol=1e-4).kernels == 1
    assert generated(lambda x: x.cumsum(1).softmax(1), torch.randn(5, 40)).kernels == 2
    assert generated(lambda x: x.cumsum(0).cumsum(1).sum(), torch.randn(9, 20), rtol=1e-4, atol=1e-3).kernels == 3


def test_a_scan_in_place_of_what_it_scans() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.cumsum(torch.sort(x, 1).values, 1)
        return x

    for length in (50, 3000):
        run_function(chain, torch.rand(3, length), rtol=1e-3)


# -- scatters -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_at_places(dtype: torch.dtype) -> None:
    tolerances = {"rtol": 1e-4, "atol": ROUGH.get(dtype, 1e-4)}
    for columns in (1, 33, 64):
        x, source, index = numbers((20, columns), dtype), numbers((70, columns), dtype), torch.randint(0, 20, (70,))
        everywhere = torch.randint(0, 20, (70, columns))
        generated(lambda x, i, s: x.index_add(0, i, s), x, index, source, **tolerances)
        generated(lambda x, i, s: torch.index_put(x, (i,), s, True), x, index - 20, source, **tolerances)
        generated(lambda x, i, s: x.scatter_add(0, i, s), x, everywhere, source, **tolerances)
        across = tuple(part.t().contiguous() for part in (x, everywhere, source))
        generated(lambda x, i, s: x.scatter_add(1, i, s), *across, **tolerances)
        generated(lambda x, i, s: torch.put(x, i, s, True), x, index - 20, source[:, 0].contiguous(), **tolerances)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_scatter_reduce(dtype: torch.dtype, reduce: str, whole: bool) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, i, s, reduce, include_self=whole)

    x, source, index = numbers((20, 33), dtype), numbers((70, 33), dtype), torch.randint(0, 20, (70, 33))
    if reduce == "prod":
        source = source.sign() if dtype.is_floating_point else source.clamp(-1, 1)
    generated(function, x, index, source, rtol=1e-4, atol=ROUGH.get(dtype, 1e-4))


def test_extrema_of_what_is_no_number() -> None:
    x = torch.tensor([0.0, NAN, -INF, 1.0, -0.0])
    source = torch.tensor([NAN, 5.0, 1.0, -1.0, NAN, INF, -0.0, 0.0, -INF, 2.0])
    index = torch.tensor([0, 1, 2, 3, 3, 0, 4, 4, 2, 1])
    for reduce in ("amax", "amin"):
        generated(lambda x, i, s, how=reduce: x.scatter_reduce(0, i, s, how), x, index, source)


def test_booleans_at_places() -> None:
    x, rows = torch.rand(40, 33) > 0.5, torch.randint(-40, 40, (5, 6))
    generated(lambda x, r, v: torch.index_put(x, (r,), v, True), x, rows, torch.rand(5, 6, 33) > 0.5)


def test_what_is_put_at_places_that_differ() -> None:
    order = torch.randperm(50)
    generated(lambda x, i, s: x.scatter(0, i, s), torch.zeros(50), order, torch.arange(50.0))
    generated(lambda x, i, s: x.index_copy(0, i, s), torch.zeros(60, 64), order, torch.randn(50, 64).bfloat16().float())
    generated(lambda x, i: x.index_fill(0, i, 7.0), torch.zeros(60, 33), order)
    generated(lambda x, i, s: torch.index_put(x, (i - 60,), s), torch.zeros(60, 5), order, torch.randn(50, 5))


def test_of_what_is_put_at_one_place_something_stays() -> None:
    index, source = torch.randint(0, 5, (300,)), torch.arange(300.0)
    program, given = program_of(lambda x, i, s: x.scatter(0, i, s), [torch.full((8,), -1.0), index, source])
    memory = emulate.memory_of(program, given, {})
    for step in program.steps:
        assert isinstance(step, Kernel)
        emulate.run_kernel(step, program.buffers, memory, {})
    found = memory[program.outputs[0].buffer]  # type: ignore[union-attr]
    for place in range(8):
        assert found[place] in (source[index == place] if place < 5 else [-1.0])


def test_indices_of_several_dimensions() -> None:
    rows, columns, x = torch.randint(-40, 40, (5, 6)), torch.randint(-33, 33, (6,)), torch.randn(40, 33)
    generated(lambda x, r, c, v: torch.index_put(x, (r, c), v, True), x, rows, columns, torch.randn(5, 6), atol=1e-4)
    given = torch.randint(0, 33, (70,)), torch.randn(40, 70)
    generated(lambda x, i, s: x.index_add(1, i, s, alpha=3), x, *given, atol=1e-3)


def test_nothing_to_put() -> None:
    none = torch.empty(0, dtype=torch.int64)
    generated(lambda x, i, s: x.index_add(0, i, s) + 1, torch.randn(5, 3), none, torch.empty(0, 3))


@pytest.mark.parametrize("places, columns", [(1, 1), (70, 33), (9, 300)])
def test_any_number_of_places(places: int, columns: int) -> None:
    program = parse_program("""sizes m, n
program(x: bf16[m*n], i: i64[m], y: bf16[20*n]) -> (y: bf16[20, n])
kernel add
  for i0 < n parallel, r0 < m reduce:
    v0: i64 = load i[r0]
    v1: i64 = check v0 < 20
    v2: bf16 = load x[n*r0 + i0]
    update sum y[n*v1 + i0] = v2
""")
    index = torch.arange(places) % 20 - 20
    given = [torch.randn(places * columns).bfloat16(), index, torch.randn(20 * columns).bfloat16()]
    assert run(program, given, {"m": places, "n": columns}, atol=0.1).kernels == 1


def test_an_index_out_of_range_is_a_fault() -> None:
    index = torch.tensor([3, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    program, given = program_of(lambda x, i, s: x.index_add(0, i, s), [torch.randn(10, 8), index, torch.randn(12, 8)])
    memory = emulate.memory_of(program, given, {})
    with pytest.raises(WrongOnGpu, match="is at fault"):
        for step in program.steps:
            assert isinstance(step, Kernel)
            emulate.run_kernel(step, program.buffers, memory, {})


def test_what_is_scattered_is_made_where_it_is_scattered() -> None:
    x, source, index = torch.randn(20, 33), torch.randn(70, 33), torch.randint(0, 20, (70,))
    assert generated(lambda x, i, s: x.index_add(0, i, s * 2 + 1), x, index, source, atol=1e-3).kernels == 2
    # The places are few, and would be made anew for each column.
    ran = generated(lambda x, i, s: torch.index_put(x, (i - 20,), s.relu(), True), x, index, source, atol=1e-3)
    assert ran.kernels == 3


# -- the backward of an embedding -----------------------------------------------------------------------
@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_embeddings(dtype: torch.dtype, padding: int, by_frequency: bool) -> None:
    for rows, width, places in ((200, 64, 20), (200, 7, 20), (10, 64, 20), (8, 5, 300)):  # fewer places than rows; more
        index = torch.randint(0, rows, (3, places))
        index[0, :7] = 3
        index[2, 5] = index[1, 1] = index[0, 10] = 7
        grad = torch.randn(3, places, width).to(dtype)
        program, given = program_of(
            lambda g, i, n=rows: aten.embedding_dense_backward(g, i, n, padding, by_frequency), [grad, index]
        )
        ran = run(program, given)
        assert ran.kernels and not ran.others
        # Eager's own of half precision rounds each sum, on CPUs.
        exact = aten.embedding_dense_backward(grad.double(), index, rows, padding, by_frequency)
        emulate.agree(ran.results[0], exact.to(dtype), 1e-5, 1e-5, "gradient")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_embedding_of_one_index(dtype: torch.dtype) -> None:
    grad = torch.randn(64).to(dtype)
    program, given = program_of(
        lambda g, i: aten.embedding_dense_backward(g, i, 20, -1, False), [grad, torch.tensor(3)]
    )
    (found,) = run(program, given).results
    assert torch.equal(found[3], grad) and not found[:3].any() and not found[4:].any()


def test_a_large_table_is_not_summed_whole() -> None:
    """Half precision is summed in float32: as much of it as places took rows, not as the table has."""
    program, _ = program_of(
        lambda g, i: aten.embedding_dense_backward(g, i, 50_257, -1, False),
        [torch.zeros(2, 64, 768, dtype=torch.bfloat16), torch.zeros(2, 64, dtype=torch.int64)],
    )
    wide = [b.size.int for b in program.buffers.values() if b.dtype == "f32" and b.kind == "temp"]
    assert wide == [2 * 64 * 768]


def test_few_rows_are_summed_in_shares() -> None:
    program, _ = program_of(
        lambda g, i: aten.embedding_dense_backward(g, i, 2, -1, False),
        [torch.zeros(32, 512, 768, dtype=torch.bfloat16), torch.zeros(32, 512, dtype=torch.int64)],
    )
    assert [b.size.int for b in program.buffers.values() if b.kind == "temp" and b.dtype == "f32"] == [64 * 2 * 768]


# -- when torch is to be deterministic -------------------------------------------------------------------
@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_sums_in_any_order_are_not_made() -> None:
    x, index, source = torch.randn(20, 33), torch.randint(0, 20, (70,)), torch.randn(70, 33)
    for function in (
        lambda x, i, s: x.index_add(0, i, s),
        lambda x, i, s: torch.index_put(x, (i,), s, True),
        lambda x, i, s: x.index_copy(0, i[:20], s[:20]),
        lambda x, i, s: aten.embedding_dense_backward(s, i, 20, -1, False),
    ):
        program, _ = program_of(function, [x, index, source])
        assert len(program.calls) == 1 and "deterministic" in program.calls[0].why


@pytest.mark.usefixtures("deterministic")
def test_what_any_order_leaves_alike_is_made() -> None:
    x, index, source = torch.randn(20, 33), torch.randint(0, 20, (70, 33)), torch.randn(70, 33)
    for given in ([x, index, source], [x.long(), index, source.long()]):
        program, _ = program_of(lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), given)
        assert not program.calls
    program, _ = program_of(lambda x, i, s: x.scatter_add(0, i, s), [x.long(), index, source.long()])
    assert not program.calls
    program, _ = program_of(lambda x: x.cumsum(1), [x])
    assert not program.calls


# -- what the code looks like ---------------------------------------------------------------------------
def ptx_of(kernel: Kernel, buffers: Any, level: int = 90) -> str:
    target = GpuTarget(detect(), f"sm_{level}", "+ptx80", 132, level)
    module = Module(gpu.dialect_for(target))
    gpu.render(kernel, buffers, module, "kernel")
    return object_of(f"{gpu.TRIPLE}\n{module.text()}", target).decode()


ATOMIC = {
    ("sum", "f32"): "atom.global.add.f32", ("sum", "f64"): "atom.global.add.f64",
    ("sum", "i32"): "atom.global.add.u32", ("sum", "i64"): "atom.global.add.u64",
    ("max", "i32"): "atom.global.max.s32", ("min", "i64"): "atom.global.min.s64",
    ("sum", "bf16"): "red.relaxed.gpu.global.add.noftz.bf16x2",
    ("sum", "f16"): "red.relaxed.gpu.global.add.noftz.f16x2",
    ("prod", "f32"): "atom.relaxed.gpu.global.cas.b32", ("max", "f64"): "atom.relaxed.gpu.global.cas.b64",
    ("sum", "i8"): "atom.relaxed.gpu.global.cas.b32",
}  # fmt: skip


def test_a_row_of_an_odd_number_of_halves() -> None:
    """Two are one word, but the last has none beside it: what lies there is not touched."""
    program = parse_program("""program(x: bf16[6600], i: i64[100], y: bf16[660]) -> (y: bf16[660])
kernel scatter_part
  for i0 < 65 parallel, r0 < 100 reduce:
    v0: i64 = load i[r0]
    v1: i64 = check v0 < 10
    v2: bf16 = load x[66*r0 + i0]
    update sum y[66*v1 + i0] = v2
""")
    (kernel,) = program.kernels
    assert plan_for_gpu(kernel).rows.lanes == 1
    x, places, y = torch.ones(6600).bfloat16(), torch.arange(100) % 10, torch.zeros(660).bfloat16()
    run(program, [x, places, y])


@pytest.mark.parametrize("kind, dtype", ATOMIC, ids=str)
def test_instructions(kind: str, dtype: str) -> None:
    program = scatter(kind, 100, 500, 64, dtype)
    ptx = ptx_of(program.kernels[0], program.buffers)
    assert ATOMIC[kind, dtype] in ptx
    assert "st.global" not in ptx and ".local" not in ptx
    if dtype in ("bf16", "f16"):
        assert "cas" not in ptx and "ld.global.b32" in ptx  # two at a time


def test_instructions_of_older_gpus() -> None:
    program = scatter("sum", 100, 500, 64, "bf16")
    ptx = ptx_of(program.kernels[0], program.buffers, 80)
    assert "red." not in ptx and "atom.relaxed.gpu.global.cas.b32" in ptx
    program = scatter("sum", 100, 500, 64, "f16")
    assert "red.relaxed.gpu.global.add.noftz.f16x2" in ptx_of(program.kernels[0], program.buffers, 80)


def test_counts_are_single_instructions() -> None:
    program = histogram(5000, 7)
    assert "atom.global.add.u64" in ptx_of(program.kernels[0], program.buffers)


def test_a_scan_reads_and_writes_16_bytes_at_a_time() -> None:
    program = scan("sum", 64, 4096)
    ptx = ptx_of(program.kernels[0], program.buffers)
    assert set(re.findall(r"\b(?:ld|st)\.global\S*", ptx)) == {"ld.global.v4.b32", "st.global.v4.b32"}
    assert "shfl.sync.bfly" in ptx and "shfl.sync.idx" in ptx and ".local" not in ptx


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("length", [7, 70, 1000, 5000])
def test_scans_go_through_all_of_llvm(length: int, along: str) -> None:
    """Which finds fault with what is used where it is not known to have been computed."""
    for rows in (3, 33, 40_000):
        program = scan("max", rows, length, along)
        assert ".local" not in ptx_of(program.kernels[0], program.buffers)


def test_scans_of_models() -> None:
    """Positions from a mask, and places in line at an expert, as models compute them."""
    mask = torch.rand(3, 70) > 0.3
    generated(lambda m: (m.long().cumsum(-1) - 1).clamp(min=0), mask)
    generated(lambda x: F.one_hot(x, 8).cumsum(0) * F.one_hot(x, 8), torch.randint(0, 8, (130,)))
