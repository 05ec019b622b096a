"""Machine code of GPUs, which takes no GPU to make: by nvJitLink where it is installed, else left to the driver."""

from __future__ import annotations

import ctypes
import ctypes.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.codegen import machine_code
from litz.codegen.gpu_code import GpuCode
from litz.codegen.llvm import build
from litz.codegen.llvm.build import Building, object_of
from litz.codegen.llvm.gpu_kernels import FUNCTIONS
from litz.codegen.llvm.record import PROFILER_SLOT
from litz.codegen.llvm.shim import STREAM_SLOT
from litz.codegen.machine_code import Assembler, NotAssembled
from litz.compat import jit_linker_library
from litz.context import Context
from litz.options import Options
from litz.pipeline import compile_to_data
from litz.runtime.cache import Cache
from litz.runtime.elf import ObjectFile
from litz.runtime.link import HOST_FUNCTION
from litz.runtime.load import Loaded, can_load
from litz.target import GpuTarget, detect
from tests.codegen.row_kernels import layer_norm, pointwise, softmax
from tests.codegen.test_ptx import llvm_of, ptx_of

TARGET = GpuTarget(detect(), "sm_90", "+ptx80", 132, 90)


@pytest.fixture
def assembler() -> Assembler:
    path = jit_linker_library()
    if path is None:
        pytest.skip("nvJitLink is not installed (pip install nvidia-nvjitlink)")
    return Assembler(path)


@pytest.fixture
def without_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "assembler", lambda: NotAssembled("there is none, says the test"))
    monkeypatch.setattr(build, "_LATELY", build._Recent(1 << 20))


@pytest.mark.parametrize("level", [90, 100, 120])
def test_of_several_gpus(assembler: Assembler, level: int) -> None:
    ptx = ptx_of(layer_norm(8, 1024)).encode()
    cubin = assembler.cubin(ptx, level)
    assert cubin.startswith(b"\x7fELF")
    assert b".text." + GpuCode(ptx).name in cubin


def test_threads_do_not_meet(assembler: Assembler) -> None:
    each = [ptx_of(p).encode() for p in (layer_norm(8, 1024), softmax(64, 64), pointwise(1 << 20, "bf16"))] * 4
    alone = [assembler.cubin(ptx, 90) for ptx in each]
    with ThreadPoolExecutor(4) as workers:
        assert list(workers.map(lambda ptx: assembler.cubin(ptx, 90), each)) == alone


def test_what_it_refuses_it_explains(assembler: Assembler) -> None:
    ptx = ptx_of(pointwise(1000, "f32")).encode()
    with pytest.raises(NotAssembled, match="sm_999"):
        assembler.cubin(ptx, 999)  # newer than the library
    with pytest.raises(NotAssembled, match=r"refuses generated code .*'return'"):
        assembler.cubin(ptx.replace(b"ret;", b"return;"), 90)
    with pytest.raises(NotAssembled, match="refuses generated code"):
        assembler.cubin(ptx, 80)  # older than what the code is for


def test_another_library_is_none() -> None:
    with pytest.raises(NotAssembled, match="is no nvJitLink"):
        Assembler(str(ctypes.util.find_library("c")))
    with pytest.raises(NotAssembled, match="is no nvJitLink"):
        Assembler("/there/is/no/such/file.so")


def test_what_is_built_is_kept(assembler: Assembler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_LATELY", build._Recent(1 << 20))
    text, store = llvm_of(softmax(8, 500)), Cache(tmp_path)
    (made,) = Building(TARGET, store).finish([text]).kernels
    assert made.cubin_for(90) == assembler.cubin(made.ptx, 90)
    monkeypatch.setattr(build, "_LATELY", build._Recent(1 << 20))
    monkeypatch.setattr(build, "object_of", None)  # not called: it is there
    (again,) = Building(TARGET, store).finish([text]).kernels
    assert again == made


def test_without_the_library_it_is_left_to_the_driver(without_assembler: None) -> None:
    found = Building(TARGET).finish([llvm_of(softmax(8, 500))])
    (made,) = found.kernels
    assert made.ptx == object_of(llvm_of(softmax(8, 500)), TARGET) and made.cubins == ()
    assert found.left_to_driver == ("there is none, says the test",)


def test_the_report_says_so(without_assembler: None) -> None:
    ctx = Context(Options(), TARGET)
    with torch.no_grad():
        compile_to_data(lambda x: x * 2, [torch.ones(8)], None, ctx)
    assert "machine code of kernels is left to the driver: there is none, says the test" in ctx.report().notes


def test_a_program_has_code_of_the_processor_and_of_the_gpu() -> None:
    ctx = Context(Options(), TARGET)
    with torch.no_grad():
        compiled, _ = compile_to_data(lambda x: torch.softmax(x, -1) + 1, [torch.ones(8, 64)], None, ctx)
    (host,), (kernel,) = compiled.forward.objects, compiled.forward.kernels
    assert kernel.least_level == 90 and kernel.name.startswith(b"k_")
    assert can_load([ObjectFile(host)])  # also what was made quickly
    expected = () if jit_linker_library() is None else (90,)
    assert tuple(level for level, _ in kernel.cubins) == expected


def test_host_functions_of_a_gpu_are_built_quickly() -> None:
    assert detect().host_computes and not TARGET.host_computes
    text = "define i64 @f(i64 %x) {\n  %y = mul i64 %x, 3\n  ret i64 %y\n}\n"
    careful, quick = (len(Building(target).finish([text]).objects[0]) for target in (detect(), TARGET))
    assert careful <= quick
    assert Building(TARGET).finish([text]).objects == (object_of(text, detect(), quickly=True),)


def test_what_was_made_quickly_starts_kernels_with_what_it_is_given() -> None:
    ctx = Context(Options(), TARGET)
    with torch.no_grad():
        compiled, _ = compile_to_data(lambda x: x * 2 + 1, [torch.ones(512, 64)], None, ctx)
    program, started = compiled.forward, []

    def launch(function: int, x: int, y: int, z: int, threads: int, *rest: Any) -> int:
        _, _, shared, stream, arguments, more = rest
        given = [ctypes.c_int64.from_address(at).value for at in (ctypes.c_void_p * 2).from_address(arguments)]
        started.append((function, y, z, threads % 32, shared, stream, given, more))
        return 0

    integer, pointer = ctypes.c_int32, ctypes.c_void_p
    driver = ctypes.CFUNCTYPE(integer, pointer, *[integer] * 7, pointer, pointer, pointer)(launch)
    table = (ctypes.c_void_p * 1)(7000)
    known = {FUNCTIONS: ctypes.addressof(table), "cuLaunchKernel": ctypes.cast(driver, pointer).value or 0}
    code = Loaded([ObjectFile(made) for made in program.objects], known)
    slots = (ctypes.c_int64 * len(program.plan.slots))(*range(100, 100 + len(program.plan.slots)))
    slots[program.plan.slots[STREAM_SLOT]] = 42
    slots[program.plan.slots[PROFILER_SLOT]] = 0  # there is none
    error = ctypes.c_int32()
    HOST_FUNCTION(code.address("run0"))(ctypes.addressof(slots), None, None, ctypes.addressof(error))
    (result,) = program.plan.items[0].makes
    given = [100 + program.plan.slots[name] for name in (str(program.plan.inputs[0]), result)]
    assert not error.value and started == [(7000, 1, 1, 0, 0, 42, given, None)]
