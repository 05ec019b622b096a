"""Where torch was changed in this process, nothing is kept for others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table

import litz.eager
from litz.capture.key import Uncacheable, refuse_changes_of_torch
from litz.errors import OptionError


def at_a_prompt() -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def norm(x, *args): return x.sum()", "<stdin>", "exec"), space)
    return space["norm"]


class Norm:
    def __call__(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        return x.sum()


def own(x: torch.Tensor, *args: Any) -> torch.Tensor:
    return x.sum()


OTHERS = {
    "a function of a file": lambda x, *args: x.sum(),
    "a function of a prompt": at_a_prompt(),
    "an object": Norm(),
    "a part of a function": functools.partial(own),
    "a method": Norm().__call__,
    "one whose results are kept": functools.lru_cache(own),
    "one under a decorator of torch's": torch.no_grad()(own),
    "one that says it is torch's": functools.wraps(torch.norm)(lambda x, *args: x.sum()),
    "one that is not to be compiled": torch.compiler.disable(own),
}


def test_torch_as_it_comes_is_no_reason() -> None:
    refuse_changes_of_torch()


@pytest.mark.parametrize("name", OTHERS)
def test_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "norm", OTHERS[name])
    with pytest.raises(Uncacheable, match=r"torch\.norm was replaced"):
        refuse_changes_of_torch()


def test_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decomposition_table, torch.ops.aten.trace.default, lambda x: x.sum())
    with pytest.raises(Uncacheable, match=r"the decomposition of aten\.trace"):
        refuse_changes_of_torch()
    with pytest.raises(OptionError, match=r"the decomposition of aten\.trace"):
        litz.eager.enable("aten::gelu")
