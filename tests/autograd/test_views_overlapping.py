"""Gradients of views of a tensor that is several elements in one place."""

from __future__ import annotations

import pytest
import torch

VIEWS = {
    "sliced": lambda x: x[..., 1:],
    "split": lambda x: x.split([1, 2], -1)[1],
    "unbound": lambda x: x.unbind(-1)[2],
    "turned": lambda x: x.transpose(0, 1)[1:],
    "selected": lambda x: x[0].unsqueeze(1).expand(-1, 2, -1)[:, 0],
    "two": lambda x: (x[..., :2], x[..., 1:]),
}
INPUTS = {
    "expanded": lambda: torch.randn(2, 3, 1).expand(2, 3, 3).detach(),
    "windows": lambda: torch.randn(2, 5).unfold(1, 3, 1).detach(),
    "plain": lambda: torch.randn(2, 3, 3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_the_gradient_is_that_of_each_element(view, given, dynamic):
    torch._dynamo.reset()
    function, x = VIEWS[view], INPUTS[given]()
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    assert torch.equal(_gradient(compiled, x), _gradient(function, x))


def _gradient(function, x):
    x = x.detach().requires_grad_()
    made = function(x)
    for each in made if isinstance(made, tuple) else (made,):
        assert each._base is not None
        (each * torch.arange(1.0, 1 + each.numel()).view(each.shape)).sum().backward(retain_graph=True)
    return x.grad
