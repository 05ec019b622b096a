"""Gradients of convolutions, channels last: generated, and as exact as eager's."""

from __future__ import annotations

import pytest
import torch

import litz

aten = torch.ops.aten
# batch, channels in, image, channels out, window, padding, dilation, groups, what is called, stride
CASES = {
    "one by one": (4, 64, (7, 7), 48, (1, 1), 0, 1, 1, (), 1),
    "one by one, a line": (3, 64, (50,), 32, (1,), 0, 1, 1, (), 1),
    "depthwise": (2, 32, (9, 11), 32, (7, 7), 3, 1, 32, (), 1),
    "depthwise, dilated": (2, 48, (12, 9), 48, (3, 5), 1, 2, 48, (), 1),
    "depthwise, no padding": (2, 16, (8, 8), 16, (3, 3), 0, 1, 16, (), 1),
    "one by one, few rows": (2, 48, (1, 1), 20, (1, 1), 0, 1, 1, (), 1),
    "depthwise, strided": (2, 32, (9, 11), 32, (5, 5), 2, 1, 32, (), 2),
    "depthwise, strided, no padding": (2, 16, (11, 8), 16, (3, 3), 0, 1, 16, (), 2),
    "depthwise, far apart": (1, 16, (17, 10), 16, (3, 2), 1, 1, 16, (), 3),
    "depthwise, strided and dilated": (2, 16, (9, 9), 16, (3, 3), 1, 2, 16, ("aten::convolution_backward",), 2),
    "dense": (2, 32, (8, 8), 32, (3, 3), 1, 1, 1, ("aten::convolution_backward",), 1),
    "too much padding": (2, 16, (8, 8), 16, (3, 3), 4, 1, 16, ("aten::convolution_backward",), 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, False)])
def test_gradients_of_a_convolution(name: str, wanted: tuple[bool, bool, bool]) -> None:
    n, c, image, o, k, padding, dilation, groups, called, stride = CASES[name]
    torch.manual_seed(0)
    spatial = len(image)

    def last(t: torch.Tensor) -> torch.Tensor:
        return t.movedim(1, -1).contiguous().movedim(-1, 1)

    x, weight = last(torch.randn(n, c, *image)), torch.randn(o, c // groups, *k)
    settings = ([stride] * spatial, [padding] * spatial, [dilation] * spatial, False, [0] * spatial, groups)
    tangent = last(torch.randn_like(aten.convolution(x, weight, None, *settings)))

    def gradients(tangent: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        found = aten.convolution_backward(tangent, x, weight, [o], *settings, list(wanted))
        return [g for g in found if g is not None]

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = litz.compile(gradients, verify=True, matmul="generate")(tangent, x, weight)
        eager = gradients(tangent, x, weight)
        exact = gradients(tangent.double(), x.double(), weight.double())
    assert tuple(name for name, _ in litz.last_report().calls) == called
    for mine, theirs, true in zip(compiled, eager, exact, strict=True):
        assert mine.stride() == theirs.stride()
        allowed = 2 * (theirs - true).abs().max() + 8 * torch.finfo(torch.float32).eps * true.abs().max()
        assert (mine - true).abs().max() <= allowed


@pytest.mark.parametrize(
    "stride, dilation, padding", [((2, 1), (1, 2), (1, 2)), ((1, 2), (2, 1), (1, 1)), ((3, 1), (1, 3), (1, 3))]
)
def test_depthwise_windows_that_are_strided_one_way_and_dilated_the_other(stride, dilation, padding):
    torch._dynamo.reset()
    x, weight = torch.randn(2, 32, 9, 11, requires_grad=True), torch.randn(32, 1, 3, 3, requires_grad=True)

    def function(x, weight):
        return torch.nn.functional.conv2d(x, weight, None, stride, padding, dilation, 32)

    want = torch.autograd.grad(function(x, weight).square().sum(), (x, weight))
    found = torch.autograd.grad(torch.compile(function, backend="litz")(x, weight).square().sum(), (x, weight))
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-3)
