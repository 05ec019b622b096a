"""Through `torch.compile(backend="litz")`: what a user sees besides numbers is as in eager, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure

import litz

MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with MODES[request.param]():
        yield


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="litz", options=options or None)


def copies(inputs: tuple[Any, ...]) -> list[Any]:
    """The same tensors again, strides, gaps and offsets included."""
    made = []
    for x in inputs:
        if isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_meta:
            base = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage().clone())
            x = base.as_strided(x.shape, x.stride(), x.storage_offset())
        made.append(x)
    return made


def whose(outputs: Any, inputs: list[Any]) -> list[list[bool]]:
    """Which memory each output shares: that of inputs, and of other outputs."""
    leaves = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]
    others = [x for x in inputs if isinstance(x, torch.Tensor)] + leaves

    def storage(x: torch.Tensor) -> int:
        return x.untyped_storage().data_ptr()

    return [[storage(a) == storage(b) != 0 for b in others] for a in leaves]


def agrees(function: Callable[..., Any], *inputs: Any, rtol: float = 1e-5, atol: float = 1e-5, **options: Any) -> None:
    """Structure, numbers, strides, types, updates of inputs and sharing of memory, all as in eager."""
    fast = compiled(function, **options)
    for _ in range(2):
        mine, eager = copies(inputs), copies(inputs)
        wanted, found = function(*eager), fast(*mine)
        assert tree_structure(found) == tree_structure(wanted)
        for got, want in zip([*tree_leaves(found), *mine], [*tree_leaves(wanted), *eager], strict=True):
            if not isinstance(want, torch.Tensor):
                assert got == want and type(got) is type(want)
                continue
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            if want.numel() > 1:
                assert got.stride() == want.stride()
            if want.dtype.itemsize == 1 and want.is_floating_point():
                got, want = got.view(torch.uint8), want.view(torch.uint8)
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        assert whose(found, mine) == whose(wanted, eager)


# -- updates in place --------------------------------------------------------------------------------
class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.add_(x.sum(0))
        return x * self.calls


def test_an_input_updated(mode: None) -> None:
    agrees(lambda x: x.add_(1), torch.randn(5))
    agrees(lambda x: (x.add_(1), x[0], x.t())[1:], torch.randn(5, 3))
    agrees(lambda x: (x.add_(1), None)[1], torch.randn(5))
    agrees(lambda x, y: x.copy_(y), torch.randn(5), torch.randn(1, dtype=torch.float64))
    agrees(lambda x: x.mul_(2).relu_().sum(), torch.randn(7, 9).t())
    agrees(lambda x: x.add_(1), torch.randn(8, 8)[::2, 1::3])


def test_a_view_updated(mode: None) -> None:
    agrees(lambda x: x[1:3].mul_(2), torch.randn(5))
    agrees(lambda x: (x[1:3].mul_(2), x.sum())[1], torch.randn(5))
    agrees(lambda x: (x.t()[0].zero_(), x.view(-1)[3:].add_(1)), torch.randn(4, 5))
    agrees(lambda x, i, v: x.index_put_((i,), v), torch.randn(6), torch.tensor([1, 4]), torch.tensor([7.0, 8.0]))


def test_buffers_updated(mode: None) -> None:
    eager, fast = Counter(), Counter()
    run = compiled(fast)
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(run(x), eager(x))
    assert int(fast.calls) == 3
    torch.testing.assert_close(fast.seen, eager.seen)


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm2d(3), lambda: nn.BatchNorm1d(3, momentum=None)])
def test_running_statistics(layer: Callable[[], nn.Module], mode: None) -> None:
    eager, fast = layer().train(), layer().train()
    run = compiled(fast)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 2) if isinstance(eager, nn.BatchNorm2d) else torch.randn(4, 3)
        torch.testing.assert_close(run(x), eager(x), rtol=1e-4, atol=1e-5)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], value)


def test_overlapping_inputs(mode: None) -> None:
    def update(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    fast = compiled(update)
    for first, second in (((0, 6), (3, 10)), ((0, 5), (5, 10)), ((2, 8), (2, 8)), ((3, 10), (0, 6))):
        mine, eager = torch.arange(10.0), torch.arange(10.0)
        found = fast(mine[slice(*first)], mine[slice(*second)])
        wanted = update(eager[slice(*first)], eager[slice(*second)])
        assert torch.equal(found, wanted) and torch.equal(mine, eager)


def test_autograd_learns_of_an_update() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    with torch.no_grad():
        compiled(lambda t: t.add_(1))(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# -- outputs -------------------------------------------------------------------------------------------
def test_outputs_that_are_inputs(mode: None) -> None:
    agrees(lambda x: x, torch.randn(5))
    agrees(lambda x: (x, x + 1, x), torch.randn(5))
    agrees(lambda x: (x.view(5, 1), x[2:], x.t()), torch.randn(5))
    agrees(lambda x: x.expand(3, 5), torch.randn(5))
    x = torch.randn(6)
    out = compiled(lambda x: x[2:4])(x)
    out.fill_(9)
    assert x[2] == x[3] == 9
    assert compiled(lambda x: x.add_(1))(x) is x


def test_outputs_that_share(mode: None) -> None:
    def same_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y

    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y[1:], y.t(), y[:, 0], *y.unbind(0)

    agrees(same_twice, torch.randn(4))
    agrees(parts, torch.randn(3, 4))
    agrees(lambda x: (x + 1)[1:3], torch.randn(5))
    agrees(lambda x: (x + 1)[:, 1], torch.randn(5, 4))
    agrees(lambda x: torch.sort(x + 1)[0].t(), torch.randn(5, 4))


def test_output_strides(mode: None) -> None:
    images = torch.randn(2, 16, 6, 6)
    conv = nn.Conv2d(16, 16, 3, padding=1)
    agrees(lambda x: conv(x).relu(), images, rtol=1e-4, atol=1e-4)
    agrees(lambda x: conv(x).relu(), images.contiguous(memory_format=torch.channels_last), rtol=1e-4, atol=1e-4)
    agrees(lambda x: (x.t() + 1, x.t().exp(), x.t().sum(0)), torch.randn(3, 4))
    agrees(lambda x: (x + 1).expand(3, 4), torch.randn(4))
    agrees(lambda x: (x + 1).permute(2, 0, 1) * 2, torch.randn(3, 4, 5))
    agrees(lambda x: torch.empty_like(x).copy_(x[::2].repeat(2, 1)), torch.randn(6, 5).t().contiguous().t())


def test_outputs_that_are_no_tensors(mode: None) -> None:
    agrees(lambda x: (x + 1, 3, "text", None, 2.5, x.shape[0]), torch.randn(5))
    agrees(lambda x: {"a": [x + 1, (x * 2,)], "b": {"c": x.sum()}, "n": 4}, torch.randn(5))
    agrees(lambda x, n: [x * n, n + 1], torch.randn(5), 3)
    agrees(lambda d: {k: v * 2 for k, v in d.items()}, {"x": torch.randn(3), "y": torch.randn(2)})


def test_no_elements_and_one(mode: None) -> None:
    agrees(lambda x: (x + 1, x.sum(), x.view(1)), torch.tensor(2.5))
    agrees(lambda x: (x + 1, x.sum(0), x.sum(1), x.t(), x.softmax(1)), torch.randn(0, 3))
    agrees(lambda x, y: (x @ y, torch.cat([x, x])), torch.randn(3, 0), torch.randn(0, 4))
    agrees(lambda x: x[:0] * 2, torch.randn(4, 4))


# -- inputs -----------------------------------------------------------------------------------------------
def test_inputs_in_all_layouts(mode: None) -> None:
    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2 + 1, x.sum(-1), x.softmax(0)

    base = torch.randn(20, 30)
    stacked = base.view(2, 10, 30).permute(2, 0, 1)
    for x in (base.t(), base[3:, 5:], base[::2, ::3], base[4], base[:, 4], base[:1].expand(7, 30), stacked):
        torch._dynamo.reset()
        agrees(work, x, atol=1e-4)


def test_one_tensor_twice(mode: None) -> None:
    x = torch.randn(4)
    fast = compiled(lambda a, b: a.add_(b))
    assert torch.equal(fast(x, x), x)
    y = torch.ones(4)
    fast(y, y)
    assert torch.equal(y, torch.full((4,), 2.0))


def test_constants_of_the_function(mode: None) -> None:
    table = torch.randn(4)
    agrees(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + table + torch.arange(4), torch.randn(4))


def test_tied_weights(mode: None) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11, bias=False))
    model[1].weight = model[0].weight
    agrees(model, torch.randint(0, 11, (2, 5)), atol=1e-4)


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype, mode: None) -> None:
    loose = 2e-2 if dtype == torch.bfloat16 else 2e-3 if dtype == torch.float16 else 1e-6
    x = (torch.randn(3, 37) * 4).abs().to(dtype)
    agrees(lambda x: (x + x, x * 3, x.sum(1), x.amax(0), x > 2, x / 3, x.float().exp()), x, rtol=loose, atol=loose)
    agrees(lambda x: (x & True, x | False, ~x, x.any(), x.sum(), x + 1, torch.where(x, 1.0, 2.0)), x > 2)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint16], ids=str)
def test_types_without_kernels(dtype: torch.dtype, mode: None) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    if dtype.is_complex:
        agrees(lambda x: (x * 2, x.abs() + 1, torch.view_as_real(x) * 2, x.conj() + x), x)
    else:
        agrees(lambda x: (x.float() * 2 + 1, x.clone(), x.t()), x)


def test_tensors_that_are_not_plain(mode: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = torch.eye(3).to_sparse()
        torch.testing.assert_close(compiled(lambda x: x * 2)(sparse).to_dense(), 2 * torch.eye(3))
        far = compiled(lambda x: x * 2 + 1)(torch.empty(3, 4, device="meta"))
    assert far.is_meta and far.shape == (3, 4)
    assert any("meta" in note for note in litz.last_report().notes)


def test_an_absolute_place_in_the_storage(mode: None) -> None:
    base = torch.arange(10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(lambda x: x.as_strided((3,), (1,), 0) * 2, base[4:])
    agrees(lambda x: x.as_strided((3,), (1,)) * 2, base[4:])


def test_tensors_on_two_devices_are_left_to_eager() -> None:
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="tensors are on cpu and meta"):
        found = torch.compile(lambda x: (x + 1, torch.zeros(3, device="meta")), backend="litz")(torch.ones(2))
    assert found[0].tolist() == [2.0, 2.0] and found[1].device.type == "meta"
    assert "compiled for one device" in str(litz.last_report().left_to_eager)
