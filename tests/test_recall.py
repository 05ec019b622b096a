"""What one process has compiled, another recalls: the same results, nothing traced, misses explained."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import litz
from litz.runtime.cache import Cache

ROOT = Path(__file__).resolve().parent.parent


pytestmark = pytest.mark.usefixtures("folder")


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """As another process would compile it: nothing in memory is used again."""
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", fullgraph=True, **how)


def was_recalled() -> bool:
    report = litz.last_report()
    assert report is not None
    stages = {stage for stage, _ in report.timings}
    assert ("from the cache" in report.cache) == (not stages & {"trace", "lower", "render", "build"})
    return "from the cache" in report.cache


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w + 1.5).softmax(-1)


X, W = torch.randn(6, 16), torch.randn(16, 8)


# -- hits ------------------------------------------------------------------------------------------
def test_a_second_compile_is_recalled() -> None:
    first = compiled(function)(X, W)
    assert not was_recalled()
    assert torch.equal(compiled(function)(X, W), first)
    assert was_recalled()


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_is_recalled_forward_and_backward(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def step(run: Callable[..., Any], rows: int) -> list[torch.Tensor]:
        model.zero_grad()
        x = torch.linspace(-1, 1, rows * 8).view(rows, 8)
        run(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    sizes = (5, 9, 12) if dynamic else (5,)
    made = compiled(model, dynamic=dynamic)
    first = [step(made, rows) for rows in sizes]
    assert not was_recalled()
    again = compiled(model, dynamic=dynamic)
    for rows, expected in zip(sizes, first, strict=True):
        for found, wanted in zip(step(again, rows), expected, strict=True):
            assert torch.equal(found, wanted)
    assert was_recalled()


def test_one_program_over_sizes_is_recalled_for_all_of_them() -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).sum(0) * x.shape[0]

    made = compiled(pooled, dynamic=True)
    for rows in (4, 7):
        made(torch.randn(rows, 16))
    again = compiled(pooled, dynamic=True)
    for rows in (4, 31, 7):  # a size as large as the first was, to begin with: code is chosen by likely sizes
        x = torch.randn(rows, 16)
        torch.testing.assert_close(again(x), pooled(x))
        assert was_recalled()


def test_what_a_function_writes_is_written_when_it_is_recalled() -> None:
    def writes(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x * 2)
        return x.view(-1)

    for _ in range(2):
        x, out = torch.randn(3, 4), torch.zeros(3, 4)
        found = compiled(writes)(x, out)
        assert torch.equal(out, x * 2) and found.data_ptr() == x.data_ptr()
    assert was_recalled()


def test_results_that_had_no_gradient_when_it_was_kept_may_have_one_later() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), x.sin()

    def gradient(run: Callable[..., Any], which: tuple[int, ...]) -> torch.Tensor:
        x = torch.linspace(-1, 1, 5).requires_grad_()
        found = run(x)
        sum(found[i].sum() for i in which).backward()
        assert x.grad is not None
        return x.grad

    for which in ((0, 1), (0,), (1,), (0, 1)):
        torch.testing.assert_close(gradient(compiled(two), which), gradient(two, which))


def _masked(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(x.shape[-1])
    kept = torch.where(places[:, None] >= places, x @ x.mT, float("-inf"))
    return kept.softmax(-1), x.exp()


def _normed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.layer_norm(x.sigmoid(), x.shape[-1:]).tanh(), x.log_softmax(-1)


def _written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.sin()
    y[0].mul_(x[1].cos())
    return y, x * x.sum()


@pytest.mark.parametrize("function", [_masked, _normed, _written], ids=lambda f: f.__name__)
@pytest.mark.parametrize("given", ["leaf", "computed", "view"])
@pytest.mark.parametrize("sizes", [((8,), (8,)), ((7, 8), (8, 5)), ((6, 8), (7,))], ids=str)
def test_a_backward_that_was_not_kept_fits_the_forward_that_was(
    function: Callable[..., Any], given: str, sizes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Where another result has the gradient, the backward is compiled from inputs like those of the call."""

    def gradient(run: Callable[..., Any], n: int, which: int) -> torch.Tensor:
        leaf = torch.arange(2.0 * n * n).mul(7).sin().view(2, n, n).requires_grad_()
        x = {"leaf": leaf, "computed": leaf * 1.5, "view": leaf[1].mT}[given]
        (run(x)[which] * torch.linspace(0, 2, n)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    for which, numbers in enumerate(sizes):
        made = compiled(function, dynamic=len(sizes[0]) > 1)
        for n in numbers:
            torch.testing.assert_close(gradient(made, n, which), gradient(function, n, which))
    report = litz.last_report()
    assert report is not None and "from the cache" in report.cache and "trace" in dict(report.timings)


# -- misses ----------------------------------------------------------------------------------------
def _differences() -> list[str]:
    report = litz.last_report()
    assert report is not None
    found = [re.match(r"not in the cache; of the nearest that is, another ([\w.]+):", note) for note in report.cache]
    return [match[1] for match in found if match]


@pytest.mark.parametrize(
    "entry, change",
    [
        ("option.matmul", lambda: compiled(function, options={"matmul": "generate"})(X, W)),
        ("constants", lambda: compiled(lambda x, w: F.gelu(x @ w + 1.25).softmax(-1))(X, W)),
        ("graph", lambda: compiled(lambda x, w: F.silu(x @ w + 1.5).softmax(-1))(X, W)),
        ("mode.deterministic", lambda: _deterministic()),
        ("option.threads", lambda: compiled(function, options={"threads": 1})(X, W)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_miss_is_explained_by_the_entry_that_changed(entry: str, change: Callable[[], Any]) -> None:
    compiled(function)(X, W)
    change()
    assert not was_recalled()
    allowed = {"option.threads": {"option.threads", "target.threads"}, "graph": {"graph", "constants"}}
    assert entry in _differences() and set(_differences()) <= allowed.get(entry, {entry})


def _deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        compiled(function)(X, W)
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_shape_is_explained_by_the_shapes() -> None:
    def pointwise(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    compiled(pointwise)(torch.randn(5))
    compiled(pointwise)(torch.randn(6))
    assert not was_recalled() and _differences() == ["inputs.shapes"]


def test_a_constant_tensor_is_told_by_what_is_in_it() -> None:
    for values in ([1.0, 2.0], [1.0, 3.0], [1.0, 2.0]):
        run = compiled(lambda x, values=values: x * torch.tensor(values))
        assert run(torch.ones(2)).tolist() == values


def test_functions_of_the_users_make_a_compile_uncacheable_and_the_report_says_so(folder: Path) -> None:
    for _ in range(2):
        run = compiled(function, options={"after": {"fuse": lambda program: None}})
        run(X, W)
        report = litz.last_report()
        assert report is not None and any("not kept for other processes" in note for note in report.cache)
    assert not [found for found in Cache(folder).files() if found.kind == "function"]


def _own_relu() -> Callable[..., Any]:
    @torch.compiler.allow_in_graph
    @functools.wraps(torch.relu)
    def relu(x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, 0.5)

    return relu


def test_a_function_that_claims_anothers_name_is_not_taken_for_it() -> None:
    x = torch.tensor([-1.0, 2.0])
    assert compiled(lambda x: torch.relu(x) + 1)(x).tolist() == [1.0, 3.0]
    relu = _own_relu()
    assert compiled(lambda x: relu(x) + 1)(x).tolist() == [0.5, 3.0]


def test_functions_that_torch_makes_inside_others_are_its_own() -> None:
    x = torch.randn(1, 2, 6, 6)
    for _ in range(2):
        compiled(lambda x: F.max_pool2d(x, 2).relu())(x)
    assert was_recalled()


def test_operators_of_the_users_are_not_kept(folder: Path) -> None:
    with torch.library._scoped_library("litz_test_recall", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        compiled(lambda x: torch.ops.litz_test_recall.twice(x) + 1)(X)
    assert not list(Cache(folder).files("function"))


def test_folders_are_for_their_owner_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        compiled(function)(X, W)
    finally:
        os.umask(before)
    assert [path for path in folder.rglob("*") if path.is_dir() and path.stat().st_mode & 0o022] == []


# -- bad luck --------------------------------------------------------------------------------------
def test_damaged_entries_are_rebuilt(folder: Path) -> None:
    expected = compiled(function)(X, W)
    draw = random.Random(0)
    for _ in range(15):
        for found in list(Cache(folder).files()):
            data = bytearray(found.path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            found.path.write_bytes(data if draw.random() < 0.7 else data[: draw.randrange(len(data))])
        assert torch.equal(compiled(function)(X, W), expected)
        assert not was_recalled()
        assert torch.equal(compiled(function)(X, W), expected)
        assert was_recalled()


def test_a_writer_that_is_killed_leaves_whole_files_or_none(tmp_path: Path) -> None:
    """At 200 random moments of writing."""
    cache, draw = Cache(tmp_path / "killed"), random.Random(1)
    values = {f"{key:04x}": bytes([key]) * 200_000 for key in range(8)}
    for _ in range(200):
        child = os.fork()
        if child == 0:
            while True:
                for key, value in values.items():
                    cache.store("kernel", key, value, {"key": key})
        time.sleep(draw.random() * 0.004)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for key, value in values.items():
            assert cache.load("kernel", key) in (None, value)
    for path in (tmp_path / "killed").rglob("*.part"):
        os.utime(path, (0, 0))
    cache.trim()
    assert not list((tmp_path / "killed").rglob("*.part"))
    for key, value in values.items():
        cache.store("kernel", key, value)
        assert cache.load("kernel", key) == value


ONE_OF_MANY = """
import sys, time, torch, litz
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
x = torch.randn(8, 16)
with torch.no_grad():
    expected, found = model(x), torch.compile(model, backend="litz")(x)
assert torch.allclose(found, expected, atol=1e-5)
print(found.double().sum().item())
"""


@pytest.mark.long
def test_sixteen_processes_at_once_share_one_entry(folder: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", ONE_OF_MANY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(16)
    ]
    ended = [process.communicate(timeout=600) for process in running]
    assert [process.returncode for process in running] == [0] * 16, [error[-500:] for _, error in ended]
    assert len({out for out, _ in ended}) == 1
    assert len([found for found in Cache(folder).files() if found.kind == "function"]) == 1
    assert not list(folder.rglob("*.part"))


# -- the same code whatever came before ------------------------------------------------------------
ORDER = """
import sys, torch, litz
from litz.runtime.cache import Cache
from pathlib import Path
torch.manual_seed(0)
programs = {
    "norm": (lambda x: torch.nn.functional.layer_norm(x, (40,)).exp().sum(0), (33, 40)),
    "soft": (lambda x: (x @ x.T).softmax(-1), (20, 24)),
    "scan": (lambda x: x.cumsum(0).relu().mean(1), (17, 9)),
    "rows": (lambda x: x.sum(1) * x.shape[0], (70, 33)),
}
dynamic = sys.argv[1] == "dynamic"
for name in sys.argv[2:]:
    function, shape = programs[name]
    torch.compile(function, backend="litz", dynamic=dynamic)(torch.randn(shape))
"""


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_the_same_program_is_the_same_code_whatever_was_compiled_before(tmp_path: Path, kind: str) -> None:
    found: dict[str, dict[str, bytes]] = {}
    for order in (("rows",), ("norm", "soft", "scan", "rows"), ("scan", "rows", "soft")):
        place = tmp_path / "-".join(order)
        environment = {**os.environ, "LITZ_CACHE_DIR": str(place)}
        subprocess.run([sys.executable, "-c", ORDER, kind, *order], env=environment, check=True, capture_output=True)
        functions = {f.key: f.path.read_bytes() for f in Cache(place).files() if f.kind == "function"}
        assert len(functions) == len(order)
        found["-".join(order)] = functions
    alone, last, middle = found.values()
    (key,) = alone
    assert last[key] == alone[key] and middle[key] == alone[key]
    shared = last.keys() & middle.keys()
    assert len(shared) == 3 and all(last[k] == middle[k] for k in shared)


# -- functions of torch's that were replaced ---------------------------------------------------------
def _ten_times(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return 10 * function(*args, **kwargs)

    return replaced


@pytest.mark.parametrize(("home", "name"), [(F, "relu"), (torch, "sin"), (F, "scaled_dot_product_attention")])
def test_what_was_replaced_is_not_kept_for_others(monkeypatch: pytest.MonkeyPatch, home: Any, name: str) -> None:
    """A wrapper says that it is what it wraps; and functions of torch's call others by their names."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def called(x: torch.Tensor) -> torch.Tensor:
        return attention(torch.sin(x), x, F.relu(x), need_weights=False)[0]

    x = torch.randn(2, 3, 8)
    with monkeypatch.context() as patch:
        patch.setattr(home, name, _ten_times(getattr(home, name)))
        torch.testing.assert_close(compiled(called)(x), called(x))
        assert "was replaced" in str(litz.last_report().cache)
    torch.testing.assert_close(compiled(called)(x), called(x))
    assert not was_recalled()
