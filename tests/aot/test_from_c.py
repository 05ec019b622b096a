"""Shared libraries called from C, in a process without Python."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="C programs take a C compiler")

TORCH = Path(torch.__file__).parent / "lib"
TYPES = {torch.float32: 6, torch.int64: 4}
# Reads each input from a file, as many times as asked runs the model, and writes each output to one.
PROGRAM = r"""
#include "{header}"
#include <stdio.h>
#include <stdlib.h>

static void *read_all(const char *name) {{
  FILE *file = fopen(name, "rb");
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  void *data = malloc(size + 1);
  if (fread(data, 1, size, file) != (size_t)size) exit(3);
  fclose(file);
  return data;
}}

int main(void) {{
  {sizes}
  litz_tensor inputs[] = {{{inputs}}};
  litz_tensor outputs[{output_count}] = {{{{0}}}};
  int64_t shape[8];
  void *model = {name}_open();
  if (model == NULL) return 2;
  for (int round = 0; round < 3; ++round) {{
    for (int i = 0; i < {output_count}; ++i) {{ free(outputs[i].data); outputs[i].data = NULL; }}
    outputs[0].sizes = shape;
    int32_t code = {name}_run(model, inputs, {input_count}, outputs, {output_count});
    if (code != 0) {{ puts({name}_error(code)); return 1; }}
  }}
  size_t count = {bytes};
  for (int d = 0; d < outputs[0].rank; ++d) count *= shape[d];
  fwrite(outputs[0].data, 1, count, fopen("output", "wb"));
  {name}_close(model);
  return 0;
}}
"""


def run_from_c(
    file: Path, inputs: Sequence[torch.Tensor], *, with_torch: bool = True, without_data: bool = False
) -> subprocess.CompletedProcess:
    """The program is built beside the library and run there; what it writes is in `output`."""
    folder, name = file.parent, f"litz_{file.stem}"
    sizes, given = [], []
    for i, tensor in enumerate(inputs):
        (folder / f"input{i}").write_bytes(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        sizes.append(f"int64_t sizes{i}[] = {{{', '.join(map(str, tensor.shape))}}};")
        data = "NULL" if without_data else f'read_all("input{i}")'
        given.append(f"{{{data}, sizes{i}, NULL, {tensor.dim()}, {TYPES[tensor.dtype]}}}")
    text = PROGRAM.format(
        header=file.with_suffix(".h").name, sizes="\n  ".join(sizes), inputs=", ".join(given), name=name,
        input_count=len(inputs), output_count=1, bytes=4,
    )  # fmt: skip
    (folder / "main.c").write_text(text)
    libraries = [f"-L{TORCH}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH}", "-Wl,--allow-shlib-undefined"]
    command = ["gcc", "main.c", str(file), "-o", "main", f"-Wl,-rpath,{folder}", *(libraries if with_torch else [])]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return subprocess.run(["./main"], cwd=folder, capture_output=True, text=True, check=False)


def _output(folder: Path, like: torch.Tensor) -> torch.Tensor:
    data = bytearray((folder / "output").read_bytes())
    return torch.frombuffer(data, dtype=like.dtype).view(like.shape)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(nn.functional.relu(self.norm(self.one(x))), 2)
        return self.head(nn.functional.silu(self.two(x)).mean((2, 3)))


@pytest.mark.parametrize("levels", [(), ("sse2", "avx2", "avx512")], ids=["here", "levels"])
def test_a_convolutional_net(tmp_path: Path, levels: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model, x = _Block().eval(), torch.randn(2, 3, 20, 20)
    file = litz.aot_compile(model, (x,), path=tmp_path / "net.so", options={"cpu_levels": levels})
    expected = model(x).detach()
    ran = run_from_c(file, [x])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    torch.testing.assert_close(_output(tmp_path, expected), expected, rtol=1e-4, atol=1e-5)


OUTPUTS = {
    "of a convolution": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3) / 9),
    "of a convolution, in another shape": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3) / 9).flatten(1),
    "of a fused attention": lambda x: F.scaled_dot_product_attention(x, x + 1, x * 2),
    "a part of a tensor": lambda x: (x + 1)[:, 1:],
    "a column": lambda x: (x * 2)[..., 3],
    "a repeated row": lambda x: (x * 2)[:1].expand(2, -1, -1, -1),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_in_memory_that_is_not_its_own_is_copied(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    x, function = torch.randn(2, 3, 8, 8), OUTPUTS[name]
    expected = function(x)
    file = litz.aot_compile(function, (x,), path=tmp_path / "m.so")
    ran = run_from_c(file, [x])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    torch.testing.assert_close(_output(tmp_path, expected), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(litz.load(file)(x), expected, rtol=1e-4, atol=1e-5)


def test_sizes_that_vary_are_checked_and_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    rows = torch.export.Dim("rows", min=2, max=16)
    file = litz.aot_compile(model, (torch.randn(4, 8),), path=tmp_path / "m.so", dynamic_shapes=({0: rows},))
    for n in (2, 11):
        x = torch.randn(n, 8)
        assert run_from_c(file, [x]).returncode == 0
        torch.testing.assert_close(_output(tmp_path, model(x)), model(x).detach(), rtol=1e-4, atol=1e-5)
    refused = run_from_c(file, [torch.randn(17, 8)])
    assert refused.returncode == 1 and re.search(r"must be at most 16", refused.stdout), refused.stdout
    assert "its size is not 8" in run_from_c(file, [torch.randn(4, 9)]).stdout
    assert "not of type f32" in run_from_c(file, [torch.zeros(4, 8, dtype=torch.int64)]).stdout
    refused = run_from_c(file, [torch.randn(4, 8)], without_data=True)
    assert refused.returncode == 1 and "the data of input are missing" in refused.stdout, refused.stdout


def test_what_holds_between_sizes_is_asked(tmp_path: Path) -> None:
    """Sizes that vary, each by itself, and that the model compares: with each other, and by a formula."""

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d((x.sigmoid() + y)[None], 3, 2).softmax(-1)

    x = torch.randn(4, 9)
    file = litz.aot_compile(torch.export.export(
        _Module(model), (x, x + 1), dynamic_shapes=({1: torch.export.Dim.AUTO}, {1: torch.export.Dim.AUTO}),
    ), path=tmp_path / "m.so")  # fmt: skip
    for n in (9, 12, 31):
        x, y = torch.randn(4, n), torch.randn(4, n)
        ended = run_from_c(file, [x, y])
        assert ended.returncode == 0, ended.stdout + ended.stderr
        torch.testing.assert_close(_output(tmp_path, model(x, y)), model(x, y))
    ended = run_from_c(file, [torch.randn(4, 9), torch.randn(4, 8)])
    assert ended.returncode == 1 and ("shape[1]" in ended.stdout or "dimension 1" in ended.stdout), ended.stdout


class _Module(nn.Module):
    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y)


def test_what_is_all_generated_needs_no_torch(tmp_path: Path) -> None:
    x = torch.randn(6, 40)
    file = litz.aot_compile(lambda a: (a * 2 + 1).relu().sum(-1), (x,), path=tmp_path / "f.so")
    needed = subprocess.run(["objdump", "-p", str(file)], capture_output=True, text=True, check=True).stdout
    assert "torch" not in needed and "libtorch" not in file.with_suffix(".h").read_text()
    ran = run_from_c(file, [x], with_torch=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    expected = (x * 2 + 1).relu().sum(-1)
    torch.testing.assert_close(_output(tmp_path, expected), expected, rtol=1e-5, atol=1e-5)


def test_two_libraries_do_not_mix_in_one_process(tmp_path: Path) -> None:
    x = torch.randn(6, 40)
    files: list[Path] = []
    functions: list[Any] = [lambda a: a.exp(), lambda a: a.neg()]
    for number, function in enumerate(functions):
        files.append(litz.aot_compile(function, (x,), path=tmp_path / f"f{number}.so"))
    libraries = [ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL) for file in files]
    seen = subprocess.run(["nm", "-D", "--defined-only", str(files[0])], capture_output=True, text=True, check=True)
    assert sorted(line.split()[-1] for line in seen.stdout.splitlines()) == [
        f"litz_f0_{what}" for what in ("close", "error", "open", "run")
    ]
    for library, name, function in zip(libraries, ("litz_f0", "litz_f1"), functions, strict=True):
        torch.testing.assert_close(_run(library, name, x), function(x))


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("rank", ctypes.c_int32), ("type", ctypes.c_int32),
    ]  # fmt: skip


def _run(library: Any, name: str, x: torch.Tensor) -> torch.Tensor:
    getattr(library, f"{name}_open").restype = ctypes.c_void_p
    model = ctypes.c_void_p(getattr(library, f"{name}_open")())
    sizes = (ctypes.c_int64 * x.dim())(*x.shape)
    out = torch.empty_like(x)
    given = _Tensor(x.data_ptr(), ctypes.addressof(sizes), None, x.dim(), 6)
    made = _Tensor(out.data_ptr(), None, None, 0, 0)
    count = ctypes.c_int64(1)
    assert getattr(library, f"{name}_run")(model, ctypes.byref(given), count, ctypes.byref(made), count) == 0
    getattr(library, f"{name}_close")(model)
    return out
