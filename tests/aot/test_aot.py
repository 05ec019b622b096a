"""Models compiled ahead of time: what a file holds, what it refuses, and what it survives."""

from __future__ import annotations

import collections
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import litz
from litz.errors import CallError, CompileError
from litz.runtime.container import FORMAT, MAGIC
from litz.target import detect

HAS_LINKER = shutil.which("cc") is not None or shutil.which("gcc") is not None
needs_linker = pytest.mark.skipif(not HAS_LINKER, reason="a shared library takes a linker")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(16, 32), nn.Linear(32, 4), nn.LayerNorm(32)
        self.register_buffer("shift", torch.randn(32))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, times: int = 2) -> dict[str, Any]:
        hidden = self.norm(nn.functional.gelu(self.one(x)) * scale + self.shift)
        return {"logits": self.two(hidden) * times, "hidden": (hidden, hidden.abs().sum(-1))}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def _call() -> tuple[tuple, dict[str, Any]]:
    return (torch.randn(5, 16),), {"scale": torch.rand(32), "times": 3}


def _same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("suffix", [".litz", pytest.param(".so", marks=needs_linker)])
def test_a_file_does_what_the_model_does(net: Net, tmp_path: Path, suffix: str) -> None:
    args, kwargs = _call()
    file = litz.aot_compile(net, args, kwargs, path=tmp_path / f"net{suffix}")
    loaded = litz.load(file)
    for _ in range(2):
        args, kwargs = _call()
        _same(loaded(*args, **kwargs), net(*args, **kwargs))


def test_it_needs_neither_the_model_nor_the_place_it_was_made_in(net: Net, tmp_path: Path) -> None:
    args, kwargs = _call()
    expected = net(*args, **kwargs)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    file = litz.aot_compile(net, args, kwargs, path=tmp_path / "a" / "net.litz")
    moved = shutil.move(file, tmp_path / "b" / "other.litz")
    shutil.rmtree(tmp_path / "a")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    _same(litz.load(moved)(*args, **kwargs), expected)


def test_without_a_path_a_file_is_named_after_what_is_in_it(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args, kwargs = _call()
    first, second = litz.aot_compile(net, args, kwargs), litz.aot_compile(net, args, kwargs)
    assert first == second and (tmp_path / first).exists()
    with torch.no_grad():
        net.shift[0] += 1
    assert litz.aot_compile(net, args, kwargs) != first


def test_exported_programs_functions_and_graphs_are_compiled_too(net: Net, tmp_path: Path) -> None:
    args, kwargs = _call()
    program = torch.export.export(net, args, kwargs)
    _same(litz.load(litz.aot_compile(program, path=tmp_path / "p.litz"))(*args, **kwargs), net(*args, **kwargs))
    x = torch.randn(7, 3)
    file = litz.aot_compile(lambda a: a.softmax(-1) @ a.T, (x,), path=tmp_path / "f.litz")
    _same(litz.load(file)(x), x.softmax(-1) @ x.T)
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 5), nn.ReLU()))
    _same(litz.load(litz.aot_compile(graph, (x,), path=tmp_path / "g.litz"))(x), graph(x))


@pytest.mark.parametrize("suffix", [".litz", pytest.param(".so", marks=needs_linker)])
def test_dimensions_vary_within_their_bounds(tmp_path: Path, suffix: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8)).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    file = litz.aot_compile(model, (torch.randn(4, 8),), path=tmp_path / f"m{suffix}", dynamic_shapes=({0: batch},))
    loaded = litz.load(file)
    for rows in (2, 5, 64):
        x = torch.randn(rows, 8)
        _same(loaded(x), model(x))
    with pytest.raises(litz.CallError, match=r"dimension 0 of .* is 65, and must be at most 64"):
        loaded(torch.randn(65, 8))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a, k: ((a[0].double(),), k), r"x: its type is torch.float64, and torch.float32 is expected"),
        (lambda a, k: ((a[0][:4],), k), r"x: its shape is \(4, 16\), and \(5, 16\) is expected"),
        (lambda a, k: ((a[0].T.contiguous().T,), k), r"x: its strides are \(1, 5\), and \(16, 1\) are expected"),
        (lambda a, k: (a, {**k, "times": 4}), r"times is 4, and the model was compiled for 3"),
        (lambda a, k: (a, {**k, "wrong": 4}), r"there is no argument 'wrong'"),
        (lambda a, k: (a, {"times": 3}), r"the argument 'scale' is missing"),
        (lambda a, k: (a, {**k, "scale": 2.0}), r"scale is a float, and a tensor is expected"),
        (lambda a, k: ((*a, a[0]), k), r"come otherwise than it was compiled for"),
    ],
)
def test_arguments_are_checked_by_name(net: Net, tmp_path: Path, change: Any, message: str) -> None:
    args, kwargs = _call()
    loaded = litz.load(litz.aot_compile(net, args, kwargs, path=tmp_path / "net.litz"))
    args, kwargs = change(args, kwargs)
    with pytest.raises(litz.CallError, match=message):
        loaded(*args, **kwargs)


def test_a_file_that_was_changed_is_refused_before_any_of_it_runs(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    file = litz.aot_compile(lambda a: a.exp().sum(0), (x,), path=tmp_path / "m.litz")
    data = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        at = int(torch.randint(len(data), (), generator=generator))
        bit = 1 << int(torch.randint(8, (), generator=generator))
        file.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with pytest.raises(litz.CacheError, match=r"m\.litz"):
            litz.load(file)
        file.write_bytes(data[:at])
        with pytest.raises(litz.CacheError, match=r"m\.litz"):
            litz.load(file)


def test_another_format_a_missing_file_and_something_else_are_told_apart(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    file = litz.aot_compile(lambda a: a + 1, (x,), path=tmp_path / "m.litz")
    data = file.read_bytes()
    file.write_bytes(data[: len(MAGIC)] + struct.pack("<I", FORMAT + 1) + data[len(MAGIC) + 4 :])
    with pytest.raises(litz.CacheError, match=f"format {FORMAT + 1}"):
        litz.load(file)
    with pytest.raises(litz.CacheError, match="cannot be read"):
        litz.load(tmp_path / "none.litz")
    file.write_bytes(b"hello")
    with pytest.raises(litz.CacheError, match="does not begin"):
        litz.load(file)


def test_the_best_level_that_a_processor_has_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if detect().arch != "x86_64":
        pytest.skip("levels of x86")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8), nn.Softmax(-1)).eval()
    x = torch.randn(5, 8)
    file = litz.aot_compile(model, (x,), path=tmp_path / "m.litz", options={"cpu_levels": ["sse2", "avx2", "avx512"]})
    for isa in ("sse2", "avx2"):
        monkeypatch.setenv("LITZ_ISA", isa)
        loaded = litz.load(file)
        assert loaded.level.forward.target.isa == isa
        _same(loaded(x), model(x))
    only = litz.aot_compile(model, (x,), path=tmp_path / "n.litz", options={"cpu_levels": ["avx2"]})
    monkeypatch.setenv("LITZ_ISA", "sse2")
    with pytest.raises(litz.UnsupportedPlatform, match=r"this one lacks .*avx2"):
        litz.load(only)
    with pytest.raises(litz.OptionError, match="'avx512', 'neon', not 'mmx'"):
        litz.aot_compile(model, (x,), path=tmp_path / "o.litz", options={"cpu_levels": ["mmx"]})


def test_what_cannot_be_a_shared_library_says_why(tmp_path: Path) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    with pytest.raises(litz.CompileError, match=r"writes to its arguments|no linker"):
        litz.aot_compile(writes, (x,), path=tmp_path / "w.so")
    loaded = litz.load(litz.aot_compile(writes, (torch.zeros(3),), path=tmp_path / "w.litz"))
    y = torch.zeros(3)
    assert loaded(y).tolist() == [2.0] * 3 and y.tolist() == [1.0] * 3


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 8), nn.Linear(8, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.table(ids)))


def test_tied_weights_are_one_tensor_in_the_file_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, ids = _Tied().eval(), torch.tensor([[1, 2, 6]])
    loaded = litz.load(litz.aot_compile(model, (ids,), path=tmp_path / "m.litz"))
    _same(loaded(ids), model(ids))


def test_a_dimension_without_bounds(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    dims = ({0: torch.export.Dim("rows")},)
    loaded = litz.load(litz.aot_compile(lambda a: a.exp().sum(1), (x,), path=tmp_path / "m.litz", dynamic_shapes=dims))
    for rows in (2, 9):
        _same(loaded(x[:1].expand(rows, 8).contiguous()), x[:1].expand(rows, 8).exp().sum(1))


def test_what_export_assumed_of_sizes_is_checked(tmp_path: Path) -> None:
    auto = torch.export.Dim.AUTO

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum() if x.shape[0] > y.shape[0] else x.sum() - y.sum()

    example = torch.ones(7), torch.ones(5)
    file = litz.aot_compile(function, example, path=tmp_path / "m.litz", dynamic_shapes=({0: auto}, {0: auto}))
    loaded = litz.load(file)
    assert loaded(torch.ones(9), torch.ones(3)) == 12
    with pytest.raises(litz.CallError, match="break what the model was compiled for"):
        loaded(torch.ones(3), torch.ones(9))


@pytest.mark.parametrize("keyword", [False, True])
def test_a_function_has_its_own_names(tmp_path: Path, keyword: bool) -> None:
    def function(x: torch.Tensor, *, weight: torch.Tensor) -> torch.Tensor:
        return x * weight

    def given(rows: int) -> tuple[tuple, dict]:
        x, weight = torch.randn(rows, 3), torch.randn(rows, 3)
        return ((), {"weight": weight, "x": x}) if keyword else ((x,), {"weight": weight})

    rows = torch.export.Dim("rows")
    shapes = {"x": {0: rows}, "weight": {0: rows}}
    model = litz.load(litz.aot_compile(function, *given(4), path=tmp_path / "m.litz", dynamic_shapes=shapes))
    args, kwargs = given(7)
    assert torch.equal(model(*args, **kwargs), function(*args, **kwargs))
    with pytest.raises(litz.CallError, match="weight"):
        model(*args, **{**kwargs, "weight": torch.randn(7, 4)})


# -- what a caller may get wrong -------------------------------------------------------------------
def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(litz.OptionError, match="is a folder"):
        litz.aot_compile(lambda x: x + 1, (torch.ones(3),), path=tmp_path)


def test_examples_that_are_one_tensor_are_no_promise(tmp_path: Path) -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    model = litz.load(litz.aot_compile(lambda a, b: a + 2 * b, (x, x), path=tmp_path / "m.litz"))
    assert torch.equal(model(x, y), x + 2 * y) and torch.equal(model(x, x), x + 2 * x)


def test_arguments_negated_by_a_bit_are_seen(tmp_path: Path) -> None:
    model = litz.load(litz.aot_compile(lambda a: a * 1, (torch.randn(5),), path=tmp_path / "m.litz"))
    negated = torch._neg_view(torch.randn(5))
    assert torch.equal(model(negated), negated * 1)


@pytest.mark.parametrize("fixed, other", [(0.0, -0.0), (1, True), (2, 2.0), (math.nan, 1.0)], ids=str)
def test_numbers_are_told_apart(tmp_path: Path, fixed: float, other: float) -> None:
    x = torch.randn(3)
    model = litz.load(litz.aot_compile(lambda a, n: a * n, (x, fixed), path=tmp_path / "m.litz"))
    model(x, fixed)
    with pytest.raises(CallError, match="was compiled for"):
        model(x, other)


def test_what_is_no_such_tensor_is_refused(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    example, path = (torch.randn(4, 3),), tmp_path / "m.litz"
    model = litz.load(litz.aot_compile(lambda a: a.sum(-1), example, path=path, dynamic_shapes=({0: rows},)))
    with FakeTensorMode():
        fake = torch.randn(4, 3)
    for given, told in ((torch.randn(3), "1 dimensions"), (torch.tensor(1.0), "0 dimensions"), (fake, "FakeTensor"),
                        (torch.randn(4, 3).to_sparse(), "layout")):  # fmt: skip
        with pytest.raises(CallError, match=told):
            model(given)


def test_what_fails_while_it_runs_says_so(tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    model = litz.load(litz.aot_compile(lambda a, i: a[i], (x, torch.tensor([0, 1])), path=tmp_path / "m.litz"))
    with pytest.raises(IndexError, match="out of range"):
        model(x, torch.tensor([0, 9]))
    assert torch.equal(model(x, torch.tensor([3, 1])), x[[3, 1]])


def test_what_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    x, pair = torch.randn(8, 3), collections.namedtuple("pair", "a b")
    half = torch.export.Dim("half", min=2, max=30)
    with pytest.raises(CompileError, match="2\\*s"):
        litz.aot_compile(lambda a: a * 2, (x,), path=tmp_path / "m.litz", dynamic_shapes=({0: 2 * half},))
    with pytest.raises(CompileError, match="container"):
        litz.aot_compile(lambda p: p.a + p.b, (pair(x, x),), path=tmp_path / "m.litz")
    with pytest.raises(CompileError, match="complex64"):
        litz.aot_compile(lambda a, b: a * 2, (x, torch.randn(3, dtype=torch.cfloat)), path=tmp_path / "m.so")


def test_dictionaries_come_in_any_order(tmp_path: Path) -> None:
    x, y = torch.randn(3), torch.randn(3)
    path = litz.aot_compile(lambda d: d["b"] - 2 * d["a"], ({"b": x, "a": y},), path=tmp_path / "m.litz")
    assert torch.equal(litz.load(path)({"a": y, "b": x}), x - 2 * y)


@needs_linker
def test_tied_weights_are_one_tensor_in_a_library_too(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.table.weight

        def forward(self, places: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(places)).softmax(-1)

    model, places = Tied().eval(), torch.tensor([[1, 2, 9], [0, 0, 3]])
    path = litz.aot_compile(model, (places,), path=tmp_path / "m.so")
    torch.testing.assert_close(litz.load(path)(places), model(places))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(litz.CacheError, match="damaged"):
        litz.load(path)


def test_sizes_that_depend_on_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(litz.LitzError, match="depends on data"):
        litz.aot_compile(lambda x: x.nonzero(), (torch.randn(4),), path=tmp_path / "m.litz")


def test_arguments_by_position_may_be_given_by_name(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2 + y

    x, y = torch.randn(4, 8), torch.randn(8)
    loaded = litz.load(litz.aot_compile(Sum(), (x, y), path=tmp_path / "sum.litz"))
    for found in (loaded(x, y), loaded(x, y=y), loaded(x=x, y=y), loaded(y=y, x=x)):
        assert torch.equal(found, x * 2 + y)
    for args, kwargs, why in (
        ((x,), {"x": x}, "'x' is given twice"),
        ((), {"y": y}, "'x' is missing"),
        ((x,), {"z": y}, "no argument 'z'"),
    ):
        with pytest.raises(CallError, match=why):
            loaded(*args, **kwargs)


def test_arguments_on_another_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="is on meta: files are made for CPUs and for GPUs"):
        litz.aot_compile(nn.Linear(3, 2, device="meta"), (torch.empty(4, 3, device="meta"),), path=tmp_path / "m.litz")
