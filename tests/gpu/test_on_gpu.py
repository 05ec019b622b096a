"""What is compiled for a GPU, run on one: `make test-gpu`. Where there is none, the code itself is run by an emulator
(`tests/codegen/test_gpu_code.py`) and the plans by an interpreter (`tests/codegen/test_plans.py`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import litz
from litz.report import HISTORY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")


def given(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def agrees(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> None:
    """Litz's error, against float64, is at most twice eager's."""
    torch._dynamo.reset()
    found = torch.compile(function, backend="litz", dynamic=dynamic)(*args)
    assert litz.last_report().left_to_eager is None
    wanted = function(*args)
    exact = function(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args))
    triples = zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted, exact)), strict=True)
    for got, eager, right in triples:
        assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride())
        errors = [float((x.double() - right.double()).abs().max()) for x in (got, eager)]
        assert errors[0] <= 2 * errors[1] + 1e-6 * float(right.double().abs().max())


HALF = torch.bfloat16
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "pointwise": (lambda x: (x * 2).tanh() + 1, lambda: (given(37, 53),)),
    "flat": (lambda x, y: F.silu(x) * y, lambda: (given(513, 1000, dtype=HALF), given(513, 1000, dtype=HALF))),
    "odd rows": (lambda x: x[:, :50257] * 2, lambda: (given(33, 50264, dtype=HALF),)),
    "layer norm": (
        lambda x, w: F.gelu(F.layer_norm(x, (4096,), w, w)),
        lambda: (given(65, 4096, dtype=HALF), given(4096, dtype=HALF)),
    ),
    "rms norm of small numbers": (
        lambda x, w: F.rms_norm(x * 1e-3, (512,), w), lambda: (given(65, 512, dtype=HALF), given(512, dtype=HALF))
    ),
    "rms norm": (lambda x, w: F.rms_norm(x, (512,), w), lambda: (given(65, 512, dtype=HALF), given(512, dtype=HALF))),
    **{
        f"softmax {n}": (lambda x: torch.softmax(x, -1), lambda n=n: (given(130, n),))
        for n in (1, 7, 64, 100, 1000, 4096, 33333)
    },
    "sums": (lambda x: (x.sum(0), x.sum(1), x.sum()), lambda: (given(300, 700),)),
    "long columns": (
        lambda x: (x.sum(0), x.float().amax(0), x.float().square().sum()), lambda: (given(16411, 96, dtype=HALF),)
    ),
    "few long rows": (lambda x: torch.softmax(x, -1), lambda: (given(3, 200_003),)),
    "batch norm": (
        lambda x, w: F.relu(F.batch_norm(x, None, None, w, w, training=True)),
        lambda: (given(16, 24, 56, 56, dtype=HALF).to(memory_format=torch.channels_last), given(24, dtype=HALF)),
    ),
    "batch norm of planes": (
        lambda x, w: F.batch_norm(x, None, None, w, w, training=True), lambda: (given(16, 24, 56, 56) + 9, given(24))
    ),
    "convolution": (
        lambda x, w, b: F.gelu(F.conv2d(x, w, b, padding=1)),
        lambda: (given(4, 32, 28, 28, dtype=HALF), given(64, 32, 3, 3, dtype=HALF), given(64, dtype=HALF)),
    ),
    "positions": (lambda x: (x.argmax(-1), x.argmin(0)), lambda: (given(100, 1000),)),
    "booleans": (lambda x: ((x > 3).any(-1), (x > -9).all(-1)), lambda: (given(64, 640),)),
    "turned": (lambda x: x.t().contiguous() + 1, lambda: (given(1000, 700),)),
    "gathered": (lambda x, i: x[i].exp(), lambda: (given(100, 64), torch.randint(0, 100, (50,), device="cuda"))),
    "padded": (lambda x: F.pad(x, (1, 2, 3, 0)).exp(), lambda: (given(5, 64, 33),)),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: (given(256, 512), given(128, 512), given(128))),
    "doubles": (lambda x: (x * 2 + 1).sum(1), lambda: (given(64, 64, dtype=torch.float64),)),
    "called": (lambda x: x.cumsum(0).sort(0).values * 2, lambda: (given(64, 64),)),
    "misaligned": (lambda x: x[1:] * 2, lambda: (given(1 << 20),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_eager(name: str) -> None:
    function, make = CASES[name]
    torch.manual_seed(0)
    with torch.no_grad():
        agrees(function, *make())


def test_sizes_that_change() -> None:
    function = lambda x: torch.softmax(x, -1) * x.shape[0]  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", dynamic=True)
    for rows, columns in ((30, 50), (31, 1000), (2, 7)):
        x = given(rows, columns)
        torch.testing.assert_close(compiled(x), function(x))


def test_numbers_that_change() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, scale: x * scale + 1, backend="litz")
    x = given(1000, 300)
    for scale in (0.5, 1.25, -3.0):
        torch.testing.assert_close(compiled(x, scale), x * scale + 1)


def test_an_input_that_lies_anywhere() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="litz")
    whole = given(1 << 20)
    for first in (0, 1, 3, 4):
        part = whole[first : first + (1 << 19)]
        torch.testing.assert_close(compiled(part), part * 2 + 1)


def test_on_another_stream() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.softmax(x, -1) @ x, backend="litz")
    x = given(512, 512)
    wanted = torch.softmax(x, -1) @ x
    compiled(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [compiled(x) for _ in range(5)]
    torch.cuda.current_stream().wait_stream(stream)
    for one in found:
        torch.testing.assert_close(one, wanted)


def test_tensors_on_two_devices_are_left_to_eager() -> None:
    torch._dynamo.reset()
    x, scale = given(8), torch.full((8,), 2.0)
    torch.testing.assert_close(torch.compile(lambda x, s: x * s.to(x.device), backend="litz")(x, scale), x * 2)
    reason = litz.last_report().left_to_eager
    assert reason is not None and "one device" in reason


def test_a_training_step() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.GELU(), torch.nn.Linear(128, 10)
    ).cuda()
    x, labels = given(32, 64), torch.randint(0, 10, (32,), device="cuda")
    gradients = []
    for run in (torch.compile(model, backend="litz"), model):
        model.zero_grad(set_to_none=True)
        F.cross_entropy(run(x), labels).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


class Block(torch.nn.Module):
    """Convolutions of several kinds, norms and a residual."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = torch.nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)
        self.second = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.deep = torch.nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.last = torch.nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = x + F.gelu(self.deep(self.second(x)))
        return self.last(F.max_pool2d(x, 3, 2, 1).mean((2, 3)))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_convolutions_learn(dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Gradients and running statistics, against float64 at most twice as far off as eager's."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Block(32).cuda().to(memory_format=layout)
    x, labels = given(16, 3, 64, 64).to(memory_format=layout), torch.randint(0, 10, (16,), device="cuda")

    def learned(kind: torch.dtype, compiled: bool) -> list[torch.Tensor]:
        own = copy.deepcopy(model).to(dtype).to(kind)  # rounded alike
        run = torch.compile(own, backend="litz") if compiled else own
        loss = F.cross_entropy(run(x.to(dtype).to(kind)).to(torch.promote_types(kind, torch.float32)), labels)
        loss.backward()
        return [*(p.grad for p in own.parameters()), own.norm.running_mean, own.norm.running_var]

    earlier = HISTORY.mark()
    exact, eager, found = learned(torch.float64, False), learned(dtype, False), learned(dtype, True)
    reports = [report for report in HISTORY.since(earlier) if report.built]
    assert reports and not any(report.fallbacks for report in reports)
    for right, theirs, ours in zip(exact, eager, found, strict=True):
        assert ours.stride() == theirs.stride()
        errors = [float((t.double() - right).abs().max()) for t in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] + 1e-2 * float(right.abs().max())


def test_what_operators_allocate_is_given_back() -> None:
    torch._dynamo.reset()
    model = Block(16).cuda()
    run, x = torch.compile(model, backend="litz"), given(8, 3, 64, 64)
    held = []
    for _ in range(6):
        run(x).sum().backward()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert len(set(held[2:])) == 1
