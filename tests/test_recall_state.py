"""What is recalled is for this program, in this process's state, and leaves that state alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import litz
from litz.errors import CacheError
from litz.runtime.cache import Cache

pytestmark = pytest.mark.usefixtures("folder")


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", **how)


def _cache() -> tuple[str, ...]:
    report = litz.last_report()
    assert report is not None
    return report.cache


# -- the backward goes with its forward ------------------------------------------------------------
@pytest.mark.parametrize("first, second", [(11, 13), (13, 11)])
def test_programs_with_one_key_have_each_its_own_backward(first: int, second: int) -> None:
    """`cumprod` is made for one size: 11 and 13 are about as large, and have the same key."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).cumprod(0).sin()

    for n, train in ((first, True), (second, False), (second, True)):
        w = torch.ones(4, requires_grad=True)
        run = compiled(scaled)
        for rows in (7, n):
            x = torch.linspace(0.5, 1.5, rows * 4).view(rows, 4)
            found = run(x, w)
        if train:
            wanted = torch.autograd.grad(scaled(x, w).sum(), w)
            torch.testing.assert_close(torch.autograd.grad(found.sum(), w), wanted)


def test_a_view_of_something_computed_is_written_to() -> None:
    def writes(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a.mul_(2)
        return a.sin(), (a * b).exp()

    for which in (0, 1):
        gradients = []
        for run in (compiled(writes), writes):
            leaf = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
            computed = leaf * 1
            run(computed[0], computed[1])[which].sum().backward()
            assert leaf.grad is not None
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)


class _Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.ops.aten.sin.default else found


def test_a_mode_around_the_backward_is_not_around_its_compile() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), x.cos()

    for which in (0, 1):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        found = compiled(two)(x)[which].sum()
        with _Doubling():
            found.backward()
        torch.testing.assert_close(x.grad, x.detach().exp() if which == 0 else -x.detach().sin())


# -- what a name means -----------------------------------------------------------------------------
@pytest.mark.parametrize("home, name", [(torch.Tensor, "square"), (F, "silu")], ids=["method", "function"])
def test_what_was_put_in_the_place_of_a_function_of_torchs_is_not_kept(
    home: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calls(x: torch.Tensor) -> torch.Tensor:
        return (x.square() if home is torch.Tensor else F.silu(x)) + 1

    x = torch.linspace(-2, 2, 5)
    compiled(calls)(x)
    for factor in (2, 3):
        mine = torch._dynamo.allow_in_graph(lambda x, n=factor: x * n)
        mine.__name__ = name
        monkeypatch.setattr(home, name, mine)
        assert torch.equal(compiled(calls)(x), x * factor + 1)
        assert "from the cache" not in _cache()


def test_an_operator_of_torchs_with_another_kernel_is_not_kept() -> None:
    x = torch.linspace(-2, 2, 5)
    compiled(F.hardswish)(x)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("hardswish", lambda x: x * 3, "CompositeImplicitAutograd")
        compiled(lambda x: F.hardswish(x))(x)
        assert any("hardswish" in text for text in _cache())
    finally:
        library._destroy()


def test_transforms_are_kept() -> None:
    w = torch.randn(3)

    def per_row(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.grad(lambda row: (row * w).sin().sum()))(x)

    x = torch.randn(5, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(per_row)(x), per_row(x))
    assert "from the cache" in _cache()


def test_whether_autocast_casts_a_parameter_once_is_in_the_key() -> None:
    weight = torch.randn(8, 8, requires_grad=True)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight) @ weight

    for once in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=once):
            compiled(twice)(torch.randn(4, 8)).sum().backward()
    assert any("mode.autocast" in text for text in _cache())


# -- the state of the process ----------------------------------------------------------------------
def test_chance_is_the_users() -> None:
    drawn = []
    for _ in range(2):
        random.seed(0)
        x = torch.randn(5, requires_grad=True)
        compiled(torch.sin)(x).sum().backward()
        drawn.append(random.random())
    assert drawn[0] == drawn[1] == random.Random(0).random()


def test_settings_are_as_they_were_after_a_backward_was_compiled_again() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), x.cos()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for which in (0, 1):
            compiled(two)(torch.randn(5, requires_grad=True))[which].sum().backward()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_checks_are_not_recalled() -> None:
    for _ in range(2):
        compiled(torch.sin, options={"verify": True})(torch.randn(5))
        assert any("not asked" in text for text in _cache())


def test_a_file_that_is_no_export_is_refused(folder: Path, tmp_path: Path) -> None:
    compiled(torch.sin)(torch.randn(5))
    (entry,) = Cache(folder).files("function")
    with pytest.raises(CacheError, match="export"):
        Cache(tmp_path / "other").take_over(entry.path)
