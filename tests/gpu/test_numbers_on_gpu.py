"""Single numbers on the CPU beside tensors of a GPU, as eager takes them and as Dynamo passes floats that vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import litz

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Function, mode: str = "default", dynamic: bool | None = None) -> Function:
    return torch.compile(function, backend="litz", dynamic=dynamic, options={"never_slower": False, "mode": mode})


def given(*shape: int, dtype: torch.dtype = torch.float32, learns: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(learns)


def was_compiled() -> None:
    report = litz.last_report()
    assert report is not None and report.left_to_eager is None


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_a_number_of_the_callers(mode: str, dtype: torch.dtype) -> None:
    """The same tensor with another number each time, and captured or not, the number is that of the call."""
    function = lambda x, s: (x * s + 1, torch.where(x > s, x, s), x.masked_fill(x < 0, s))  # noqa: E731
    run, cell, x = compiled(function, mode), torch.zeros(3, dtype=dtype), given(513, 77)
    for number in (1, 0, -3, 2, 1, 2) * 5:
        cell[1] = number
        for found, wanted in zip(run(x, cell[1]), function(x, cell[1]), strict=True):
            torch.testing.assert_close(found, wanted)
    was_compiled()


def test_numbers_go_on_where_the_host_goes_on() -> None:
    """The host reads a number as it starts a kernel: what it holds later is not seen."""
    run, x, s = compiled(lambda x, s: x * s), given(1 << 24), torch.zeros(())
    results = [run(x, s.fill_(number)) for number in range(8)]
    for number, result in enumerate(results):
        torch.testing.assert_close(result, x * number)


def test_what_is_made_of_numbers() -> None:
    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x * (s * 2 + torch.tensor(0.5)).exp() + torch.full((), 3.0) + s.to("cuda").sin()

    x = given(64, 1000)
    for number in (0.25, 1.5):
        s = torch.tensor(number, dtype=torch.float64)
        torch.testing.assert_close(compiled(function)(x, s), function(x, s), rtol=1e-5, atol=1e-5)
    was_compiled()


def step(run: Function, x: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
    x.grad = None
    out = run(x, *rest)
    out.square().sum().backward()
    return [out.detach(), x.grad]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_with_numbers(mode: str) -> None:
    function = lambda x, s, n: torch.softmax((x * s).sin(), -1) / n  # noqa: E731
    run, x = compiled(function, mode), given(512, 300, learns=True)
    for number in (1.5, -0.25, 1.5) * 4:
        rest = torch.tensor(number), torch.tensor(7)
        torch.testing.assert_close(step(run, x, *rest), step(function, x, *rest), rtol=1e-4, atol=1e-5)
    was_compiled()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("learns", [False, True])
def test_floats_that_vary(mode: str, learns: bool) -> None:
    function = lambda x, t: torch.softmax(x.sin() / t, -1) * (t + x.shape[0])  # noqa: E731
    run = compiled(function, mode, dynamic=True)
    for rows, number in ((33, 0.5), (34, 0.25), (33, 0.5), (35, -1.5)) * 4:
        x = given(rows, 300, learns=learns)
        if learns:
            torch.testing.assert_close(step(run, x, number), step(function, x, number), rtol=1e-4, atol=1e-4)
        else:
            torch.testing.assert_close(run(x, number), function(x, number), rtol=1e-4, atol=1e-4)
    was_compiled()


LAYERS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(64), (33, 64)),
    "dropout": (lambda: nn.Dropout(0.0), (33, 64)),
    "leaky relu": (lambda: nn.LeakyReLU(0.2), (33, 64)),
    "batch norm": (lambda: nn.BatchNorm1d(64), (33, 64)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), (3, 17, 64)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_floats_that_are_attributes(name: str) -> None:
    """With `dynamic=True` Dynamo takes a layer's epsilon, slope or momentum for a float that varies."""
    make, shape = LAYERS[name]
    layer, x = make().cuda(), given(*shape, learns=True)
    results = []
    for run in (compiled(layer, dynamic=True), layer):
        layer.zero_grad()
        results.append([*step(run, x), *(p.grad.clone() for p in layer.parameters())])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
    was_compiled()


def test_no_number_waits_for_the_device() -> None:
    run, x, s = compiled(lambda x, s: (x * s).sin()), given(1 << 20), torch.tensor(0.5)
    run(x, s)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            run(x, s.mul_(1.5))
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- what is as in eager --------------------------------------------------------------------------
LEFT: dict[str, Function] = {
    "written to": lambda x, s: x * s.add_(1),
    "from the device": lambda x, s: (x * s)[0].cpu() + s,
    "a result": lambda x, s: (x * s, s * 2),
    "drawn": lambda x, s: x * s + torch.rand(()) * 0,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT)
def test_numbers_that_change_or_come_back_are_left_to_eager(name: str) -> None:
    function = LEFT[name]
    x, mine, eager = given(8), torch.tensor(0.5), torch.tensor(0.5)
    found = compiled(function)(x, mine)
    reason = litz.last_report().left_to_eager
    torch.testing.assert_close(found, function(x, eager))
    assert mine == eager and reason is not None and "tensors are on cpu and cuda:0" in reason


@pytest.mark.filterwarnings("ignore")
def test_a_vector_of_the_cpu_is_an_error_as_in_eager() -> None:
    x, s = given(8), torch.ones(8)
    with pytest.raises(RuntimeError, match="device"):
        x * s
    with pytest.raises(Exception, match="device"):
        compiled(lambda x, s: x * s)(x, s)


@pytest.mark.filterwarnings("ignore")
def test_a_parameter_of_one_number_on_the_cpu_learns_as_in_eager() -> None:
    x, mine, eager = given(8, 8), torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    function = lambda x, s: (x * s).sin().sum()  # noqa: E731
    compiled(function)(x, mine).backward()
    function(x, eager).backward()
    assert mine.grad is not None and mine.grad.device.type == "cpu"
    torch.testing.assert_close(mine.grad, eager.grad)
