"""What the caller has switched on around a call, or around its backward: the same program all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import litz


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def switched(switch: Callable[[Any], None], on: Any, off: Any) -> Iterator[None]:
    switch(on)
    try:
        yield
    finally:
        switch(off)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "a device": lambda: torch.device("meta"),
    "a mode that sees functions": Functions,
    "a mode that sees operators": Operators,
    "doubles by default": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "determinism": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
}


def images(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Laid out anew, rewritten, partly called as it is, with a constant in it."""
    y = F.conv2d(x, w, padding=1).relu()
    products = y.flatten(2).transpose(1, 2) @ m
    return products * torch.tensor([0.5, 2.0], device="cpu").repeat(8) + products.cumsum(1).sort(1)[0]


def inputs(training: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    sizes = ((2, 3, 8, 8), (32, 3, 3, 3), (32, 16))
    return [torch.randn(size, device="cpu").requires_grad_(training) for size in sizes]


@pytest.mark.parametrize("name", MODES)
def test_around_a_call(name: str) -> None:
    torch._dynamo.reset()
    found = []
    for run in (images, litz.compile(images)):
        given = inputs(False)
        with MODES[name]():
            found.append(run(*given))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODES if name not in ("inference mode", "determinism")])
def test_around_a_backward(name: str) -> None:
    """Which is compiled then. Determinism has to be asked for at the forward: tests/test_front_door.py."""
    torch._dynamo.reset()
    found = []
    for run in (images, litz.compile(images)):
        given = inputs(True)
        loss = run(*given).square().mean()
        with MODES[name]():
            loss.backward()
        found.append([x.grad for x in given])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_autocast_switched_off_inside(training: bool) -> None:
    """Types are those of the region, not of the place where it is compiled."""

    def function(*given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return images(*given)

    torch._dynamo.reset()
    found = []
    for run in (function, litz.compile(function)):
        given = inputs(training)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = run(*given)
        if training:
            result.square().mean().backward()
        found.append([result.detach(), *(x.grad for x in given if training)])
    assert litz.last_report().left_to_eager is None
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("computed", [False, True])
def test_views_require_grad_where_nothing_is_recorded(mode: Callable[[], Any], computed: bool) -> None:
    def views(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, x.view(-1), x.mT, x[0], x.detach(), x.detach().view(-1), x.contiguous(), x.expand(2, 3, 4)]

    torch._dynamo.reset()
    leaf = torch.randn(3, 4, requires_grad=True)
    x = leaf * 2 if computed else leaf
    with mode():
        wanted, found = views(x), torch.compile(views, backend="litz")(x)
    for a, b in zip(found, wanted, strict=True):
        assert (a.requires_grad, a.is_inference()) == (b.requires_grad, b.is_inference())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_memory_that_nobody_wrote_is_noticed_where_eager_fills_it(dtype: torch.dtype) -> None:
    def made(x):
        return torch.empty(4, dtype=dtype), torch.empty_like(x), x + 1

    with switched(torch.use_deterministic_algorithms, True, False):
        torch._dynamo.reset()
        found = torch.compile(made, backend="litz")(torch.zeros(3, dtype=dtype))
        for mine, eager in zip(found, made(torch.zeros(3, dtype=dtype)), strict=True):
            torch.testing.assert_close(mine, eager, equal_nan=True)
