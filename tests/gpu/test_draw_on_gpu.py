"""Random numbers on a GPU: eager's, bit for bit, forward and backward, and the generator where eager leaves it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import litz
from litz.report import HISTORY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")

HALF = torch.bfloat16


def given(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", fullgraph=True, **how)


def called() -> list[str]:
    report = litz.last_report()
    assert report.left_to_eager is None
    return [name for name, _ in report.calls]


def seeded(run: Callable[..., Any], *args: Any, seed: int = 7) -> tuple[Any, torch.Tensor]:
    """The results, and what eager draws afterwards."""
    torch.manual_seed(seed)
    torch.rand(3, device="cuda")  # the stream is not at its beginning
    found = run(*args)
    return found, torch.rand(5, device="cuda")


def same(function: Callable[..., Any], *args: Any, calls: list[str] | None = None, **how: Any) -> None:
    """Results equal eager's to the last bit, twice, and so does what is drawn next."""
    run = compiled(function, **how)
    for seed in (7, 8):
        (found, after), (wanted, eager_after) = (seeded(f, *args, seed=seed) for f in (run, function))
        for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
            assert got.dtype == want.dtype and got.stride() == want.stride()
            assert torch.equal(got, want), f"{int((got != want).sum())} of {got.numel()} elements differ"
        assert torch.equal(after, eager_after), "the generator stands elsewhere"
    assert called() == (["litz::reserve"] if calls is None else calls)


def dropout(x: torch.Tensor, p: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.native_dropout(x, p, True)


# -- dropout --------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [HALF, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "shape", [(8,), (64, 64), (1000, 768), (8192, 4096), (3, 5, 7), (31, 250), (17, 1003)], ids=str
)
def test_masks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Elements for one turn of eager's threads, for many, for vectors of any width and for none."""
    same(dropout, given(*shape, dtype=dtype))


@pytest.mark.parametrize("p", [0.0, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
def test_any_probability(p: float) -> None:
    same(lambda x: dropout(x, p), given(512, 512, dtype=HALF))


def test_everything_dropped() -> None:
    same(lambda x: dropout(x, 1.0), given(64, 64), calls=[])
    same(lambda x: F.dropout(x, 1.0) + 1, given(64, 64), calls=[])
    same(lambda x: F.dropout(x, 0.0) + 1, given(64, 64), calls=[])


FORMS: dict[str, Callable[[], torch.Tensor]] = {
    "turned": lambda: given(300, 640).t(),
    "turned and odd": lambda: given(301, 641).t(),
    "with gaps": lambda: given(300, 640)[:, ::2],
    "rows of more": lambda: given(300, 640, dtype=HALF)[:, :512],
    "channels last": lambda: given(8, 32, 10, 10).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", FORMS)
def test_however_it_lies(name: str) -> None:
    same(dropout, FORMS[name]())


@pytest.mark.parametrize("first", [1, 2, 4, 8])
def test_a_part_that_begins_anywhere(first: int) -> None:
    same(lambda x: dropout((x * 2)[first : first + 4096]), given(8192, dtype=HALF))


def test_no_elements() -> None:
    same(lambda x: F.dropout(x, 0.5) * 2, given(0, 64), calls=[])


def test_several_in_a_row() -> None:
    function = lambda x: dropout(F.gelu(dropout(x)[0]) + dropout(x * 2)[0], 0.5)  # noqa: E731
    same(lambda x: dropout(dropout(x)[0] * 2, 0.5), given(3000, 1000))
    run = compiled(function)
    x = given(1000, 1000)
    (found, after), (wanted, eager_after) = (seeded(f, x) for f in (run, function))
    assert torch.equal(found[1], wanted[1]) and torch.equal(after, eager_after)
    torch.testing.assert_close(found[0], wanted[0])


def test_among_other_random_operators() -> None:
    same(
        lambda x: dropout(dropout(x)[0] + torch.randn_like(x), 0.5)[0] + torch.rand_like(x), given(600, 1000),
        calls=["aten::rand_like", "aten::randn_like", "litz::reserve"],
    )  # fmt: skip


def test_beside_a_reduction() -> None:
    x, w = given(512, 4096, dtype=HALF), given(4096, dtype=HALF)
    function = lambda x, w: dropout(F.gelu(F.layer_norm(x, (4096,), w, w)), 0.1)  # noqa: E731
    (found, _), (wanted, _) = (seeded(f, x, w) for f in (compiled(function), function))
    assert torch.equal(found[1], wanted[1])
    assert litz.last_report().kernels == 1 and called() == ["litz::reserve"]
    torch.testing.assert_close(found[0], wanted[0], rtol=2e-2, atol=2e-2)


# -- other draws ----------------------------------------------------------------------------------
def test_coins_and_a_few_uniform_numbers() -> None:
    same(lambda x: F.dropout2d(x, 0.3) != 0, given(64, 96, 7, 7))
    same(lambda x: torch.empty_like(x).bernoulli_(0.4), given(3000, 1000))
    for dtype in (torch.float32, HALF, torch.float16):
        same(lambda x: (torch.rand_like(x), torch.rand(x.shape[0], 1, device="cuda")), given(300, 500, dtype=dtype))


# -- gradients ------------------------------------------------------------------------------------
def gradients(run: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, ...]:
    leaves = [a.detach().clone().requires_grad_() for a in args]
    out = run(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out)))


@pytest.mark.parametrize("dtype", [HALF, torch.float32], ids=str)
def test_backward(dtype: torch.dtype) -> None:
    function = lambda x, y: F.dropout(F.dropout(x, 0.1) * y, 0.4)  # noqa: E731
    run = compiled(function)
    x, y = given(1000, 768, dtype=dtype), given(1000, 768, dtype=dtype)
    (found, after), (wanted, eager_after) = (seeded(lambda f=f: gradients(f, x, y)) for f in (run, function))
    for got, want in zip(found, wanted, strict=True):
        assert torch.equal(got == 0, want == 0)  # the same are dropped
        # Eager rounds after each of three multiplications, by half a unit at most, and a kernel that does all once.
        torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps if dtype is HALF else 0.0, atol=0.0)
    assert torch.equal(after, eager_after)


def test_masks_are_not_kept() -> None:
    kept: list[torch.Tensor] = []
    run = compiled(lambda x, w: F.dropout(F.gelu(F.dropout(x @ w, 0.1)), 0.1))
    x, w = (given(512, 512, dtype=HALF).requires_grad_() for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        run(x, w)
    assert not [t for t in kept if t.dtype is torch.bool]
    assert [t.numel() for t in kept if t.dtype is torch.int64] == [2]


class Layer(nn.Module):
    """A layer of a transformer, with dropout as usual; in the attention as well if asked."""

    def __init__(self, size: int = 256, heads: int = 4, p: float = 0.1, attention: float = 0.0):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, size = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attention, is_causal=True)
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(n, length, size)))
        return x + self.drop(self.down(self.drop(F.gelu(self.up(self.norms[1](x))))))


@pytest.mark.parametrize("attention", [0.0, 0.1])
def test_training_steps_of_a_transformer(attention: float) -> None:
    """Results and losses of several steps under one seed: with other masks, elements would be far apart."""
    torch.manual_seed(0)
    model = nn.Sequential(Layer(attention=attention), Layer(attention=attention)).cuda()
    x, target = given(8, 128, 256), given(8, 128, 256)
    found: list[list[torch.Tensor]] = []
    for how in (compiled, lambda model: model):
        own = copy.deepcopy(model)
        run = how(own)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
        torch.manual_seed(3)
        found.append([])
        for _ in range(6):
            optimizer.zero_grad()
            out = run(x)
            loss = F.mse_loss(out, target)
            loss.backward()
            optimizer.step()
            found[-1] += [out.detach(), loss.detach()]
    assert "litz::reserve" in called() and "aten::native_dropout" not in called()
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


# -- sizes that change ----------------------------------------------------------------------------
def test_symbolic_sizes() -> None:
    function = lambda x: dropout(dropout(x)[0] * 2, 0.5)  # noqa: E731
    run = compiled(function)
    for rows in (3, 1000, 5000, 17):
        x = given(rows, 768, dtype=HALF)
        torch._dynamo.mark_dynamic(x, 0)
        (found, after), (wanted, eager_after) = (seeded(f, x) for f in (run, function))
        assert torch.equal(found[1], wanted[1]) and torch.equal(found[0], wanted[0])
        assert torch.equal(after, eager_after)
    assert called() == ["litz::reserve"]


def test_sizes_of_which_too_little_is_known() -> None:
    """Whether eager's vectors fit is known only at run time: the operator is called, and the report says so."""
    HISTORY.clear()  # what other tests were told does not count
    run = compiled(dropout, dynamic=True)
    for rows, columns in ((30, 50), (31, 1000), (2, 7)):
        x = given(rows, columns)
        (found, after), (wanted, eager_after) = (seeded(f, x) for f in (run, dropout))
        assert torch.equal(found[1], wanted[1]) and torch.equal(after, eager_after)
    told = [fallback.why for report in litz.reports() for fallback in report.fallbacks]
    assert any("known only at run time" in why for why in told), (told, litz.last_report().left_to_eager)


# -- CUDA graphs of the user's own ----------------------------------------------------------------
def test_captured_in_a_graph_each_replay_draws_anew() -> None:
    run = compiled(lambda x: dropout(x, 0.5)[0])
    x = torch.ones(1 << 16, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(x)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(out.clone())
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])
    for one in found:
        assert abs(float((one != 0).float().mean()) - 0.5) < 0.02
    assert not torch.equal(run(x), found[2])  # and the device is as usable as before
