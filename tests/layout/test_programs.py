"""What can see a layout sees eager's, before and after: values, strides, the stream of random numbers, gradients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import litz
from tests.layout.programs import IMAGE, INFERENCE_ONLY, PROGRAMS, Layers, after, conv


def seen(function: Callable[..., Any], x: torch.Tensor, training: bool) -> dict[str, Any]:
    """All that the user can see of one call."""
    torch.manual_seed(7)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(training)
    given = x * 1 if training else x  # no leaf, so that it may be written to
    results = [r for r in tree_leaves(function(given)) if isinstance(r, torch.Tensor)]
    found: dict[str, Any] = {"results": [r.detach() for r in results], "random": torch.get_rng_state()}
    total = sum((r.float().mean() + r.float().square().sum() for r in results if r.requires_grad), torch.zeros(()))
    if total.requires_grad:
        (found["gradient"],) = torch.autograd.grad(total, x, retain_graph=True)
        total.backward()
        found["accumulated"] = x.grad
    found["input"] = given.detach()
    return found


def same(got: Any, want: Any, name: str = "") -> None:
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            same(got[key], want[key], key)
    elif isinstance(want, list):
        assert len(got) == len(want)
        for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            same(mine, theirs, f"{name} {number}")
    else:
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        assert got.stride() == want.stride(), f"{name} of shape {tuple(want.shape)}"
        assert got.storage_offset() == want.storage_offset(), name
        atol = 1e-4 * (1.0 + float(want.nan_to_num().abs().max())) if want.is_floating_point() and want.numel() else 0.0
        torch.testing.assert_close(got, want, rtol=1e-4, atol=atol, equal_nan=True, msg=lambda text: f"{name}: {text}")
        if want.is_floating_point():
            zero = (got == 0) & (want == 0)
            assert torch.equal(got[zero].signbit(), want[zero].signbit()), f"signs of zeros: {name}"


def agrees(function: Callable[..., Any], x: torch.Tensor, training: bool, **options: Any) -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = seen(function, x, training)
        got = seen(torch.compile(function, backend="litz", **options), x, training)
    same(got, want)
    report = litz.last_report()
    assert report is not None and not [note for note in report.notes if "left to eager" in note], report.notes


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape or IMAGE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", PROGRAMS)
def test_inference(name: str) -> None:
    with torch.no_grad():
        agrees(PROGRAMS[name], image(), False)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in INFERENCE_ONLY])
def test_training(name: str) -> None:
    agrees(PROGRAMS[name], image(), True)


# -- whose layout it is -----------------------------------------------------------------------------------
LAYOUTS = {
    "rows": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "columns": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda x: torch.cat([x, x], 3)[..., ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


@pytest.mark.parametrize("name", ["randn_like", "as_strided_between", "result_and_its_view", "copies_of_all_kinds"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_that_lie_otherwise(name: str, layout: str) -> None:
    x = LAYOUTS[layout](image())
    if (name, layout) == ("result_and_its_view", "channels last"):
        name = "only_views"  # eager refuses that one, whose channels are innermost
    with torch.no_grad():
        agrees(lambda given: PROGRAMS[name](LAYOUTS[layout](given)), image(), False)
        agrees(PROGRAMS[name], x, False)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last], ids=["of rows", "of channels last"])
def test_modules(training: bool, layout: torch.memory_format, given: torch.memory_format) -> None:
    torch.manual_seed(0)
    ours = Layers().to(memory_format=layout).train(training)
    theirs = copy.deepcopy(ours)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="litz")
    for call in range(2):
        x = image(2, 3, 16, 16).add(call).contiguous(memory_format=given)
        same(seen(compiled, x, True), seen(theirs, x, True))
    mine = {name: p.grad for name, p in ours.named_parameters()} | dict(ours.named_buffers())
    same(mine, {name: p.grad for name, p in theirs.named_parameters()} | dict(theirs.named_buffers()))


def test_other_peoples_operators_see_eagers_strides() -> None:
    @torch.library.custom_op("layouts::strides", mutates_args=())
    def strides(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([*x.stride(), x.storage_offset()])

    strides.register_fake(lambda x: torch.empty(x.dim() + 1, dtype=torch.int64))

    def function(x: torch.Tensor) -> Any:
        y = conv(x).relu()
        return strides(y), strides(y[:, 2:]), strides(after(y).transpose(1, 2)), strides(F.max_pool2d(y, 2))

    with torch.no_grad():
        agrees(function, image(), False)


def test_their_gradients_too() -> None:
    @torch.library.custom_op("layouts::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.stride(1)

    @torch.library.custom_op("layouts::scaled_back", mutates_args=())
    def scaled_back(g: torch.Tensor) -> torch.Tensor:
        return g * g.stride(3)

    scaled.register_fake(torch.empty_like)
    scaled_back.register_fake(torch.empty_like)
    scaled.register_autograd(lambda ctx, g: scaled_back(g))
    agrees(lambda x: after(scaled(conv(x))), image(), True)


@pytest.mark.parametrize(
    "name", ["randn_like", "view", "as_strided_copy", "tokens", "squeeze_and_excite", "result_and_its_view", "dropout"]
)
def test_sizes_that_vary(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_sizeless(name), backend="litz", dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (8, 10, 13):
            same(seen(compiled, image(2, 3, size, size), False), seen(_sizeless(name), image(2, 3, size, size), False))


def _sizeless(name: str) -> Callable[..., Any]:
    return {"view": lambda x: conv(x).view(x.shape[0], -1).sin()}.get(name, PROGRAMS[name])


@pytest.mark.parametrize("name", ["squeeze_and_excite", "dropout", "group_norm", "tokens"])
def test_sizes_that_vary_in_training(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="litz", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (8, 10, 13):
            same(seen(compiled, image(2, 3, size, size), True), seen(PROGRAMS[name], image(2, 3, size, size), True))


def test_a_view_that_eager_refuses() -> None:
    x = image().contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), pytest.raises(RuntimeError, match="view size is not compatible"):
        PROGRAMS["view"](x)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(RuntimeError, match="Cannot view"):
        torch.compile(PROGRAMS["view"], backend="litz")(x)


def test_turns_are_optimisations() -> None:
    """Without fuel a convolution keeps its layout; the report says where it was turned."""
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda x: after(conv(x)), backend="litz", options={"fuel": 0})(image())
        assert not [f for f in litz.last_report().firings if f.rule == "channels_last"]
        torch._dynamo.reset()
        torch.compile(lambda x: after(conv(x)), backend="litz")(image())
        assert [f.times for f in litz.last_report().firings if f.rule == "channels_last"] == [1]


@pytest.mark.parametrize("height, width", [(1, 9), (9, 1), (1, 1), (2, 3)])
@pytest.mark.parametrize("shape", [(2, -1), (-1,), (2, 32, -1), (64, -1)])
def test_views_of_flat_images(height, width, shape):
    """Fakes allow views of images one row high that no tensor does."""
    torch._dynamo.reset()

    def function(x, weight):
        return torch.relu(torch.nn.functional.conv2d(x, weight, padding=(0, 1))).reshape(shape) + 1

    x, weight = torch.randn(2, 16, height, width), torch.randn(32, 16, 1, 3)
    torch.testing.assert_close(torch.compile(function, backend="litz")(x, weight), function(x, weight))
