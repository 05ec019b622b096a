"""Derivatives that eager computes by a look at the data, and a trace by another formula, which has no data to look at.

In: the results of a function that was traced. Out: while they are differentiated, such steps of autograd's give what
eager computes, for all data at once. A product has no zeros, one or more, and eager goes by their number; the best of
all numbers may be one that is no number. The traced formulas make something else of infinities, of NaN and of the signs
of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

aten = torch.ops.aten

# What is to be looked for, if anything: the operators whose steps these are.
OPERATORS = frozenset(
    {
        aten.prod.default, aten.prod.dim_int, aten.cumprod.default,
        aten.max.default, aten.min.default, aten.median.default, aten.nanmedian.default,
    }
)  # fmt: skip
Formula = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]  # step, gradient, what the trace has made of it


@contextmanager
def differentiated_as_in_eager(results: Iterable[torch.Tensor]) -> Iterator[None]:
    with ExitStack() as hooks:
        for step in _steps(results):
            formula = _FORMULAS.get(step.name())
            if formula is not None:
                hooks.callback(step.register_hook(_in_place_of(formula, step)).remove)
        yield


def _steps(results: Iterable[torch.Tensor]) -> Iterator[Any]:
    todo = [r.grad_fn for r in results if r.grad_fn is not None]
    seen = set(todo)
    while todo:
        step = todo.pop()
        yield step
        for following, _ in step.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


def _in_place_of(formula: Formula, step: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    def hook(made: Sequence[Any], given: Sequence[Any]) -> Any:
        if made[0] is None or given[0] is None or made[0].dim() == 0:
            return None
        return (formula(step, given[0], made[0]).to(made[0].dtype),)

    return hook


def _of_product(step: Any, gradient: torch.Tensor, traced: torch.Tensor) -> torch.Tensor:
    """The traced formula multiplies what stands before each factor with what stands behind it; eager takes that for a
    single zero."""
    factors = step._saved_self.to(gradient.dtype)
    zeros = (factors == 0).sum()
    whole = gradient * (step._saved_result / factors).conj()
    return torch.where(zeros == 0, whole, torch.where(zeros == 1, traced, 0))


def _of_products(step: Any, gradient: torch.Tensor, traced: torch.Tensor) -> torch.Tensor:
    """Along one dimension; a zero anywhere is a zero to all."""
    factors, result = step._saved_self.to(gradient.dtype), step._saved_result
    if not step._saved_keepdim:
        dim = _signed(step._saved_dim)
        gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
    whole = gradient * (result / factors).conj()
    return torch.where((factors == 0).any(), traced, whole)


def _of_running_products(step: Any, gradient: torch.Tensor, traced: torch.Tensor) -> torch.Tensor:
    """A factor before the first zero of its row gets what its products add up to, divided by it; the zero itself the
    products without it, up to the next zero; whatever comes behind it nothing."""
    factors, dim = step._saved_self, _signed(step._saved_dim)
    if factors.shape[dim] == 1 or factors.numel() <= 1:
        return traced
    gradient, products = gradient.to(factors.dtype), step._saved_result.conj()
    is_zero = factors == 0
    zeros = is_zero.cumsum(dim)
    added = torch.where(zeros == 0, products * gradient, 0).flip(dim).cumsum(dim).flip(dim)
    factors = factors.conj()
    until_next = torch.where((zeros == 1) & ~is_zero, factors, 1).cumprod(dim) * torch.where(zeros == 1, gradient, 0)
    first, others = products.narrow(dim, 0, 1), products.narrow(dim, 0, products.shape[dim] - 1)
    before = torch.cat([torch.ones_like(first), others], dim)
    of_zero = until_next.sum(dim, keepdim=True) * before
    return torch.where(zeros == 0, added / factors, torch.where(is_zero & (zeros == 1), of_zero, 0))


def _of_best(step: Any, gradient: torch.Tensor, traced: torch.Tensor) -> torch.Tensor:
    """Equal shares to all that are the one found, and to the rest nothing. The traced formula multiplies the rest by
    zero, as eager does on a GPU."""
    if traced.device.type != "cpu":
        return traced
    x, best = step._saved_self, step._saved_result
    found = (x == best) | (x.isnan() & best.isnan())
    return torch.where(found, gradient / found.sum(), 0)


def _signed(dim: int) -> int:
    """What a step keeps as a number without a sign."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim


_FORMULAS: dict[str, Formula] = {
    "ProdBackward0": _of_product,
    "ProdBackward1": _of_products,
    "CumprodBackward0": _of_running_products,
    "MaxBackward1": _of_best,
    "MinBackward1": _of_best,
    "MedianBackward0": _of_best,
    "NanmedianBackward0": _of_best,
}


__all__ = ["OPERATORS", "differentiated_as_in_eager"]
