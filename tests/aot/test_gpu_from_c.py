"""Models on a GPU as shared libraries, called from C: with a driver that is written here, where there is no GPU.

Its memory is the process's own, and each kernel does `y = x * weight + 1`, which is what the model does.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import litz
from litz.aot import compile as aot
from litz.aot import shared_library
from litz.aot.shared_library import container_in
from litz.codegen.gpu_code import GpuCode
from litz.codegen.llvm.open_gpu import images_of
from litz.runtime.container import unpack
from litz.target import GpuTarget, detect, portable

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="C programs take a C compiler")

TARGET = GpuTarget(detect(), "sm_90", "+ptx80", 132, 90)
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long context_of_device = 77, other = 78;
static _Thread_local void *current;
static int held, modules, launches;
const char *trouble = "";
void *last_stream;

static int failing(const char *what) { return strcmp(trouble, what) == 0; }
int cuInit(unsigned flags) { return failing("no GPU") ? 100 : 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return current == NULL ? 201 : 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &context_of_device; return 0; }
void use_another_context(void) { current = &other; }
int cuMemAlloc_v2(void **memory, size_t size) {
  if (current == NULL) return 201;
  if (failing("no memory")) return 2;
  ++held;
  *memory = aligned_alloc(256, (size + 255) / 256 * 256);
  return 0;
}
int cuMemFree_v2(void *memory) { --held; free(memory); return 0; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { memcpy(to, from, size); return 0; }
int cuModuleLoadData(void **module, const void *image) {
  int is_ptx = memcmp(image, "//", 2) == 0;
  if (!is_ptx && memcmp(image, "\177ELF", 4) != 0) return 200;
  if (failing("older") || (failing("no cubin") && !is_ptx)) return 209;
  printf(is_ptx ? "PTX\n" : "cubin\n");
  ++modules;
  *module = (void *)image;
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (strncmp(name, "k_", 2) != 0) return 500;
  *function = module;
  return 0;
}
int cuLaunchKernel(void *function, int gx, int gy, int gz, int bx, int by, int bz, int shared, void *stream,
                   void **arguments, void **more) {
  float *x = *(float **)arguments[0], *w = *(float **)arguments[1], *y = *(float **)arguments[2];
  if (function == NULL || current != &context_of_device) return 400;
  for (int i = 0; i < 8 * 64; ++i) y[i] = x[i] * w[i % 64] + 1;
  ++launches;
  last_stream = stream;
  return 0;
}
void leftovers(void) { printf("held %d launches %d\n", held, launches); }
"""
PROGRAM = r"""
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

extern const char *trouble;
extern void *last_stream;
void leftovers(void);
void use_another_context(void);
int cuMemFree_v2(void *memory);

int main(int count, char **arguments) {
  trouble = arguments[1];
  void *model = litz_net_open();
  if (model == NULL) { puts("not opened"); leftovers(); return 0; }
  void *second = litz_net_open();
  int64_t sizes[] = {8, 64};
  float *x = aligned_alloc(64, 4 * 8 * 64 + 64);
  for (int i = 0; i < 8 * 64; ++i) x[i] = i;
  litz_tensor input = {x, sizes, NULL, 2, 6}, output = {0};
  if (trouble[0] == '+') input.data = (char *)x + 4;
  if (trouble[0] == '!') use_another_context();
  litz_net_set_stream(model, (void *)1234);
  int32_t code = litz_net_run(model, &input, 1, &output, 1);
  if (code != 0) { puts(litz_net_error(code)); return 0; }
  float *y = output.data;
  printf("%g %g %g stream %ld\n", y[0], y[65], y[511], (long)last_stream);
  code = litz_net_run(second, &input, 1, &output, 1);  /* into the same memory */
  printf("again %d stream %ld\n", code, (long)last_stream);
  cuMemFree_v2(output.data);
  litz_net_close(model);
  litz_net_close(second);
  leftovers();
  return 0;
}
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(64.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 1


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(aot, "_targets", lambda options, device: [TARGET])
    return built(tmp_path, monkeypatch)


def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Whether nvJitLink is installed here is no matter: each kernel has machine code.
    made = shared_library.images_of
    with_cubin = lambda kernels: made([replace(k, cubins=((90, b"\x7fELF"),)) for k in kernels])  # noqa: E731
    monkeypatch.setattr(shared_library, "images_of", with_cubin)
    litz.aot_compile(Net(), (torch.ones(8, 64),), path=tmp_path / "net.so")
    (tmp_path / "driver.c").write_text(DRIVER)
    (tmp_path / "main.c").write_text(PROGRAM)
    command = ["gcc", "main.c", "driver.c", "net.so", "-o", "main", f"-Wl,-rpath,{tmp_path}", "-rdynamic"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "main"


def ran(program: Path, trouble: str = "") -> list[str]:
    done = subprocess.run([str(program), trouble], cwd=program.parent, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


WANTED = f"{0 * 0 + 1} {65 * 1 + 1} {511 * 63 + 1} stream 1234"


def test_a_model_runs_and_leaves_nothing_behind(program: Path) -> None:
    assert ran(program) == ["cubin", WANTED, "again 0 stream 0", "held 0 launches 2"]


@pytest.mark.skipif(detect().arch != "x86_64", reason="other processors have one level")
def test_several_levels_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [replace(TARGET, host=host) for host in portable(["sse2", "avx2"])]
    monkeypatch.setattr(aot, "_targets", lambda options, device: levels)
    assert ran(built(tmp_path, monkeypatch)) == ["cubin", WANTED, "again 0 stream 0", "held 0 launches 2"]


def test_ptx_in_the_place_of_machine_code(program: Path) -> None:
    assert ran(program, "no cubin") == ["PTX", WANTED, "again 0 stream 0", "held 0 launches 2"]


@pytest.mark.parametrize("trouble", ["no GPU", "older", "no memory"])
def test_what_cannot_be_opened(program: Path, trouble: str) -> None:
    *loaded, opened, held = ran(program, trouble)
    assert (opened, held) == ("not opened", "held 0 launches 0")
    assert bool(loaded) == (trouble == "no memory")


def test_calls_that_are_refused(program: Path) -> None:
    assert ran(program, "+")[-1] == "the data of x do not lie at a multiple of 16 bytes"
    assert ran(program, "!")[-1].startswith("the current device, or its context, is not the one")


def test_the_header_and_the_file(program: Path) -> None:
    folder = program.parent
    text = (folder / "net.h").read_text()
    assert "memory of the GPU" in text and "`cuMemFree`" in text and "void litz_net_set_stream(" in text
    assert "Needs the driver of the GPU (libcuda.so.1: -lcuda)." in text
    package = unpack(container_in((folder / "net.so").read_bytes()))
    assert package.levels[0].forward.target == TARGET


def test_images_lie_as_the_driver_wants_them() -> None:
    ptx = b"//\n.target sm_90\n.entry k_1(\n"
    data, rows = images_of([GpuCode(ptx, ((90, b"\x7fELF a"), (103, b"\x7fELF b"))), GpuCode(ptx)])
    assert len(rows) == 3 * 4 and rows[::3] == [0, 0, 0, 1] and all(at % 64 == 0 for at in (*rows[1::3], *rows[2::3]))
    texts = [ctypes.string_at(ctypes.create_string_buffer(data[at:])) for at in (*rows[1::3], *rows[2::3])]
    assert texts == [b"k_1"] * 4 + [b"\x7fELF b", b"\x7fELF a", ptx, ptx]
