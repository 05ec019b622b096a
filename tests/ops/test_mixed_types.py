"""Numbers beside half precisions: eager brings arguments to the common type first, which rounds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.codegen.compiled import compiled

OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "add", "sub", "rsub", "mul", "div", "maximum", "fmax", "remainder", "fmod", "atan2", "eq", "lt", "hypot",
        "xlogy",
    )
}  # fmt: skip
OPERATORS["trunc_div"] = lambda x, y: torch.div(x, y, rounding_mode="trunc")
OPERATORS["addcdiv"] = lambda x, y: torch.addcdiv(x, x, y, value=0.5)
OPERATORS["addcmul"] = lambda x, y: torch.addcmul(y, x, y)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(("dtype", "whole"), [(torch.float16, 2049), (torch.bfloat16, 257)])
def test_whole_numbers(name: str, dtype: torch.dtype, whole: int) -> None:
    halves = torch.tensor([0.75, whole - 1.0, -3.0] * 7, dtype=dtype)
    for numbers in (torch.full_like(halves, whole, dtype=torch.int64), torch.tensor([whole]), torch.tensor(whole)):
        for x, y in ((numbers, halves), (halves, numbers)):
            made, report = compiled(OPERATORS[name], (x, y))
            assert not report.calls
            torch.testing.assert_close(made(x, y)[0], OPERATORS[name](x, y), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [0.1, -0.3, 257, 2049, 60000.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_python_numbers(dtype: torch.dtype, number: float) -> None:
    halves = torch.tensor([0.1, -0.1, -0.3, 1.7, 2048.0, 256.0, -5.0, 0.75] * 4, dtype=dtype)

    def formulas(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x + number, number - x, x * number, x / number, x == number, x < number, torch.fmod(x, number), x**number,
            torch.div(x, number, rounding_mode="trunc"), torch.lerp(x, x * 2, number), torch.isin(x, number),
            torch.nn.functional.hardshrink(x, number), torch.where(x > 0, x, number), x.clamp(max=number),
        ]  # fmt: skip

    made, _ = compiled(formulas, (halves,))
    for place, (found, wanted) in enumerate(zip(made(halves), formulas(halves), strict=True)):
        torch.testing.assert_close(
            found, wanted, rtol=0, atol=0, equal_nan=True, msg=lambda m, place=place: f"formula {place}: {m}"
        )


def test_a_number_beyond_the_type_is_infinite() -> None:
    halves = torch.tensor([1.0, -2.0], dtype=torch.float16)
    made, _ = compiled(lambda x: [x + 70000, x < 70000, x * -70000], (halves,))
    for found, wanted in zip(made(halves), (halves + 70000, halves < 70000, halves * -70000), strict=True):
        assert torch.equal(found, wanted)
