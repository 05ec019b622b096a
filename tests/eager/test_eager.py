"""Operators called one by one, run by generated code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
import litz.eager
from litz.codegen.llvm.boxed import MOST
from litz.errors import OptionError
from litz.runtime.cache import Cache

OPERATORS: dict[str, Any] = {
    "aten::gelu": lambda x: F.gelu(x, approximate="tanh"),
    "aten::silu": F.silu,
    "aten::_softmax": lambda x: torch.softmax(x, -1),
    "aten::native_layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], x[0], None, 1e-5),
    "aten::mul.Tensor": lambda x: x * x[0],
    "aten::sum.dim_IntList": lambda x: x.sum(0, dtype=torch.float64),
    "aten::mean": lambda x: x.mean(),
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LITZ_CACHE", "1")
    monkeypatch.setenv("LITZ_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    litz.eager.disable()


@pytest.mark.parametrize("name", OPERATORS)
def test_an_enabled_operator_does_what_it_did(name: str) -> None:
    torch.manual_seed(0)
    call = OPERATORS[name]
    inputs = [torch.randn(6, 16), torch.randn(3, 40), torch.randn(16, 6).T, torch.randn(6, 16).double()]
    expected = [call(x) for x in inputs]
    litz.eager.enable(name)
    for _ in range(2):
        for x, before in zip(inputs, expected, strict=True):
            found = call(x)
            assert found.stride() == before.stride()
            torch.testing.assert_close(found, before)
    assert litz.eager.enabled()[name] >= 4  # comparing tensors takes operators, too


def test_gradients_other_types_and_other_devices_go_on(_own_folder: Path) -> None:
    litz.eager.enable("aten::gelu", "aten::mul.Tensor")
    x = torch.randn(5, requires_grad=True)
    (F.gelu(x) * x).sum().backward()
    y = x.detach().clone().requires_grad_()
    litz.eager.disable()
    (F.gelu(y) * y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    litz.eager.enable("aten::mul.Tensor")
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(z * z, torch.view_as_complex(torch.view_as_real(z * z)))
    assert (torch.empty(3, device="meta") * torch.empty(3, device="meta")).device.type == "meta"
    assert torch.vmap(lambda a: a * a)(torch.ones(2, 3)).tolist() == [[1.0] * 3] * 2
    with torch.inference_mode():
        assert (torch.ones(2) * 2 * torch.ones(2)).tolist() == [2.0, 2.0]


def test_errors_are_torchs_own() -> None:
    litz.eager.enable("aten::mul.Tensor", "aten::_softmax")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match the size of tensor b"):
            torch.ones(4, 3) * torch.ones(4)
        with pytest.raises(RuntimeError, match="Dimension out of range"):
            torch.ops.aten._softmax(torch.ones(2, 3), 5, False)
    assert litz.eager.enabled() == {"aten::mul.Tensor": 0, "aten::_softmax": 0}


@pytest.mark.parametrize(
    "name, why",
    [
        ("aten::add.Tensor", "alpha"), ("aten::add_.Tensor", "writes to its arguments"), ("gelu", "no operator"),
        ("aten::softmax.int", "made of other operators"), ("aten::view", "returns memory of theirs"),
        ("aten::nothing", "no operator"), ("aten::_local_scalar_dense", "something else"),
    ],
)  # fmt: skip
def test_what_cannot_be_enabled_is_refused(name: str, why: str) -> None:
    with pytest.raises(litz.OptionError, match=why):
        litz.eager.enable("aten::gelu", name)
    assert litz.eager.enabled() == {}


def test_one_description_holds_several_shapes(_own_folder: Path) -> None:
    litz.eager.enable("aten::silu")
    for shape in ((3,), (4, 5), (4, 5)):
        F.silu(torch.randn(shape))
    (file,) = (_own_folder / "eager").glob("*.json")
    found = json.loads(file.read_text())
    assert found["operator"] == "aten::silu" and found["device"] == "cpu"
    assert [entry["arguments"][0]["sizes"] for entry in found["entries"]] == [[3], [4, 5]]
    for entry in found["entries"]:
        assert (file.parent / entry["file"]).exists()


def test_compile_op_gives_the_path_and_compiles_once(_own_folder: Path) -> None:
    x = torch.randn(4, 5)
    path = litz.eager.compile_op("aten", "gelu", "cpu", torch.ops.aten.gelu, (x,), {"approximate": "tanh"})
    made = path.stat().st_mtime_ns
    again = litz.eager.compile_op("aten", "gelu", "cpu", torch.ops.aten.gelu, (x,), {"approximate": "tanh"})
    assert again == path and path.stat().st_mtime_ns == made and path.is_relative_to(_own_folder)
    other = litz.eager.compile_op("aten", "gelu", "cpu", torch.ops.aten.gelu, (x,))
    assert other != path
    litz.eager.enable("aten::gelu")
    assert litz.eager.enabled() == {"aten::gelu": 2}
    with pytest.raises(litz.OptionError, match="for the CPU"):
        litz.eager.compile_op("aten", "gelu", "cuda", torch.ops.aten.gelu, (x,))
    with pytest.raises(litz.CompileError, match="complex64"):
        litz.eager.compile_op("aten", "mul.Tensor", "cpu", torch.mul, (x.to(torch.complex64), x))


SECOND = """
import torch, litz.eager, litz
torch.manual_seed(0)
litz.eager.enable("aten::gelu")
before = litz.eager.enabled()["aten::gelu"], len(litz.reports())
print(*before, float(torch.nn.functional.gelu(torch.randn(4, 5)).sum()), len(litz.reports()))
"""


def test_a_second_process_compiles_nothing(_own_folder: Path) -> None:
    lines = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", SECOND], capture_output=True, text=True, check=True)
        lines.append(done.stdout.split())
    assert lines[0][:2] == ["0", "0"] and lines[0][3] == "1"
    assert lines[1][:2] == ["1", "0"] and lines[1][3] == "0"
    assert lines[0][2] == lines[1][2]


def test_damaged_files_are_made_anew(_own_folder: Path) -> None:
    x = torch.randn(4, 5)
    path = litz.eager.compile_op("aten", "silu", "cpu", torch.ops.aten.silu, (x,))
    path.write_bytes(path.read_bytes()[:-3])
    litz.eager.enable("aten::silu")
    assert litz.eager.enabled() == {"aten::silu": 0}
    torch.testing.assert_close(F.silu(x), x * x.sigmoid())
    assert litz.eager.enabled() == {"aten::silu": 1}
    litz.eager.disable()
    (file,) = (_own_folder / "eager").glob("*.json")
    file.write_text("{")
    litz.eager.enable("aten::silu")
    assert litz.eager.enabled() == {"aten::silu": 0}


def test_a_failed_compile_is_said_once_and_torchs_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["litz.eager.enable"]

    def fails(*args: Any) -> Any:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(module, "compile_op", fails)
    litz.eager.enable("aten::silu")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for size in (3, 3, 4, 5):
            x = torch.randn(size)
            torch.testing.assert_close(F.silu(x), x * x.sigmoid())
    assert [str(w.message) for w in said if "no such luck" in str(w.message)] == [str(said[0].message)]


def test_many_threads_call_at_once() -> None:
    litz.eager.enable("aten::_softmax")
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for rows in (3, 4, 5) * 20:
            x = torch.randn(rows, 33, generator=generator)
            expected = x.exp() / x.exp().sum(-1, keepdim=True)
            if not torch.allclose(torch.softmax(x, -1), expected, atol=1e-6):
                wrong.append((seed, rows))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and litz.eager.enabled() == {"aten::_softmax": 3}


def test_types_that_numbers_and_defaults_decide_are_torchs() -> None:
    litz.eager.enable("aten::mul.Tensor", "aten::exp", "aten::sum.dim_IntList")
    whole = torch.arange(4)
    assert (whole * torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float64
    assert (whole * 2.0).dtype is torch.float32
    assert torch.exp(whole).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.exp(whole).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.ones(2, 3).sum(1, dtype=torch.complex64).dtype is torch.complex64


def test_another_function_for_an_operator_is_compiled_whenever_it_is_given() -> None:
    x = torch.randn(4, 5)
    litz.eager.compile_op("aten", "silu", "cpu", lambda x: x * 0 + 7, (x,))
    litz.eager.compile_op("aten", "silu", "cpu", lambda x: F.silu(x), (x,))
    litz.eager.enable("aten::silu")
    torch.testing.assert_close(F.silu(x), x * x.sigmoid())


def test_memory_is_given_back() -> None:
    """Handles, strings and lists that a kernel is given are its own to delete."""
    litz.eager.enable("aten::gelu", "aten::native_layer_norm")
    x, w = torch.randn(64, 64), torch.randn(64)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def calls(count: int) -> None:
        for _ in range(count):
            F.gelu(x, approximate="tanh")
            F.layer_norm(x, (64,), w, w)

    calls(300)
    before = resident()
    calls(20_000)
    assert resident() - before < 20_000 * 40  # a leaked tensor is 16 KiB, a leaked string or handle at least 48 bytes


def test_a_function_of_the_callers_is_not_what_enable_uses() -> None:
    x = torch.linspace(-2, 2, 8)
    expected = F.mish(x)
    litz.eager.compile_op("aten", "mish", "cpu", lambda x: x * 100, (x,))
    litz.eager.compile_op("aten", torch.ops.aten.mish.default, "cpu", torch.ops.aten.mish.default, (x,))
    litz.eager.enable("aten::mish")
    try:
        torch.testing.assert_close(F.mish(x), expected)
    finally:
        litz.eager.disable()


def test_a_number_that_is_none_is_not_compiled_for(_own_folder: Path) -> None:
    """It equals nothing, not even itself, and so is never found again."""
    litz.eager.enable("aten::nan_to_num")
    for _ in range(3):
        assert torch.nan_to_num(torch.tensor([1.0, float("nan")]), nan=float("nan")).isnan().tolist() == [False, True]
    assert litz.eager.enabled() == {"aten::nan_to_num": 0}
    assert not list(_own_folder.glob("eager/*.litz"))


def test_the_cache_knows_of_operators(_own_folder: Path) -> None:
    litz.eager.enable("aten::silu")
    F.silu(torch.randn(5))
    cache = Cache(_own_folder)
    assert [found.kind for found in cache.files("operator")] == ["operator"]
    assert cache.clear() >= 1
    assert not list(_own_folder.glob("eager/*.litz"))
    litz.eager.disable()
    litz.eager.enable("aten::silu")
    assert litz.eager.enabled() == {"aten::silu": 0}
    F.silu(torch.randn(5))
    assert litz.eager.enabled() == {"aten::silu": 1}


def test_earlier_processes_leave_room(_own_folder: Path) -> None:
    litz.eager.enable("aten::neg")
    for length in range(1, MOST + 1):
        torch.neg(torch.ones(length))
    litz.eager.disable()
    litz.eager.enable("aten::neg")
    assert litz.eager.enabled() == {"aten::neg": MOST // 2}
    torch.neg(torch.ones(MOST + 1))  # new
    torch.neg(torch.ones(1))  # kept, and not read at once
    assert litz.eager.enabled() == {"aten::neg": MOST // 2 + 2}


@pytest.mark.parametrize("name", [["aten::gelu"], 3, None])
def test_operators_are_given_by_name(name: Any) -> None:
    with pytest.raises(OptionError, match="by its name"):
        litz.eager.enable(name)
