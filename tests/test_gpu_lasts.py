"""Programs for GPUs as data: what is kept of them, what they are told apart by, and files where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import litz
from litz import target as targets
from litz.aot import compile as aot
from litz.codegen.gpu_code import GpuCode
from litz.context import Context
from litz.errors import CompileError, UnsupportedPlatform
from litz.options import Options
from litz.pipeline import compile_to_data
from litz.runtime.artifact import Artifact
from litz.runtime.cache import Cache
from litz.runtime.container import pack, unpack
from litz.runtime.layout import extent, on_device
from litz.target import GpuTarget, detect, detect_gpu

TARGET = GpuTarget(detect(), "sm_90", "+ptx80", 132, 90)


def compiled(target: GpuTarget) -> Artifact:
    with torch.no_grad():
        made, _ = compile_to_data(
            lambda x, w: torch.softmax(x, -1) @ w + torch.tensor([1.0, 2.0]), [torch.ones(8, 64), torch.ones(64, 2)],
            None, Context(Options(), target),
        )  # fmt: skip
    return made.forward


# -- what is kept ---------------------------------------------------------------------------------
def test_all_of_a_program_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = compiled(TARGET)
    made = replace(made, kernels=tuple(GpuCode(kernel.ptx, ((90, b"\x7fELF"),)) for kernel in made.kernels))
    cache = Cache(tmp_path)
    cache.store("function", "ab12", made)
    found = cache.load("function", "ab12")
    assert found.kernels == made.kernels and found.target == TARGET and found.objects == made.objects
    assert pack(found) == pack(made)
    assert found.kernels and found.kernels[0].cubin_for(90) == b"\x7fELF"


def test_gpus_are_told_apart_by_what_machine_code_is_for() -> None:
    later = replace(TARGET, level=103)
    differ = {k for k, v in later.cache_key_entries().items() if TARGET.cache_key_entries()[k] != v}
    assert differ == {"target.gpu_level"}


@pytest.mark.parametrize(
    ("capability", "cpu", "level"), [((8, 6), "sm_86", 86), ((9, 0), "sm_90", 90), ((12, 1), "sm_90", 121)]
)
def test_a_gpu_as_torch_describes_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], cpu: str, level: int
) -> None:
    major, minor = capability
    found = SimpleNamespace(
        name="a GPU", major=major, minor=minor, multi_processor_count=100,
        max_threads_per_multi_processor=2048, shared_memory_per_block_optin=99 << 10,
        total_memory=80 << 30,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    target = detect_gpu(0)
    assert (target.cpu, target.level, target.processors, target.shared_bytes) == (cpu, level, 100, 99 << 10)


def test_a_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(
        name="an old GPU", major=7, minor=5, multi_processor_count=40,
        max_threads_per_multi_processor=2048, shared_memory_per_block_optin=48 << 10,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    with pytest.raises(UnsupportedPlatform, match=r"an old GPU has compute capability 7\.5; Litz needs 8\.0"):
        detect_gpu(0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4).t(), torch.arange(12.0)[1::3],
        torch.ones(1).expand(5), torch.empty(0, 3), torch.tensor(2.5), torch.arange(8.0).view(2, 4)[:, 1:3],
    ],
    ids=["rows", "columns", "with gaps", "one seen often", "none", "a number", "a part"],
)  # fmt: skip
def test_tensors_are_carried_as_they_lie(tensor: torch.Tensor) -> None:
    assert on_device(tensor, tensor.device) is tensor
    moved = on_device(tensor, torch.device("meta"))
    assert (moved.shape, moved.stride(), moved.device.type) == (tensor.shape, tensor.stride(), "meta")
    assert moved.untyped_storage().nbytes() == extent(tensor.shape, tensor.stride()) * tensor.itemsize


# -- files ----------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).softmax(-1)


@pytest.fixture
def for_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile as for a model on a GPU."""
    monkeypatch.setattr(aot, "_targets", lambda options, device: [TARGET])


def test_a_file_holds_ptx_and_machine_code(for_gpu: None, tmp_path: Path) -> None:
    file = litz.aot_compile(Net(), (torch.ones(4, 16),), path=tmp_path / "net.litz")
    package = unpack(file.read_bytes())
    (level,) = package.levels
    assert level.forward.target == TARGET
    assert level.forward.kernels and all(kernel.least_level == 90 for kernel in level.forward.kernels)


def test_no_gpu(for_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = litz.aot_compile(Net(), (torch.ones(4, 16),), path=tmp_path / "net.litz")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedPlatform, match="is for a GPU of NVIDIA's, and torch finds none"):
        litz.load(file)


def test_an_older_gpu(for_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = litz.aot_compile(Net(), (torch.ones(4, 16),), path=tmp_path / "net.litz")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(UnsupportedPlatform, match=r"capability 9\.0 or newer, and this one has 8\.0"):
        litz.load(file)


def test_the_target_of_a_file_is_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "detect_gpu", lambda index, threads: replace(TARGET, processors=index))
    (gpu,) = aot._targets(Options(), torch.device("cuda", 3))
    assert isinstance(gpu, GpuTarget) and gpu.processors == 3 and gpu.host == detect()
    if detect().arch == "x86_64":
        both: list[Any] = aot._targets(Options(cpu_levels=("sse2", "avx2")), torch.device("cuda", 3))
        assert [level.host.isa for level in both] == ["avx2", "sse2"]
    assert aot._targets(Options(), torch.device("cpu")) == [targets.detect()]


def test_a_model_on_two_devices_is_refused() -> None:
    with pytest.raises(CompileError, match="on cpu and meta: a file is for one device"):
        aot._device_of([torch.ones(1), 3, torch.ones(1, device="meta")])
