"""What reads memory around an argument is not compiled where it may be given a copy of the argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from litz.context import Context
from litz.errors import CaptureError
from litz.options import Options
from litz.pipeline import trace
from litz.target import detect
from tests.codegen.emulate import gpu_target

WHOLE = torch.arange(40.0)

AROUND: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor]] = {
    "before": (lambda x: x.as_strided((2,), (1,), 0) * 2, WHOLE[1:5]),
    "behind": (lambda x: x.as_strided((3, 3), (1, 2)) * 2, WHOLE[1:5]),
    "of a view": (lambda x: x[1:].as_strided((4,), (1,)) * 2, WHOLE[1:5]),
    "through a view": (lambda x: x.as_strided((3, 3), (1, 2)).mT.flatten() + 1, WHOLE[1:5]),
    "copied": (lambda x: torch.as_strided_copy(x, (6,), (1,)), WHOLE[1:5]),
}
WITHIN: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor]] = {
    "elements": (lambda x: x.as_strided((2, 2), (1, 2)) * 2, WHOLE[1:5]),
    "gaps": (lambda x: x.as_strided((7,), (1,)) * 2, WHOLE[1:9:2]),
    "handed back": (lambda x: x.as_strided((3, 3), (1, 2)), WHOLE[1:5]),
    "its own": (lambda x: torch.cat([x, x]).as_strided((3, 3), (1, 2)) * 2, WHOLE[1:5]),
}


def traced(case: tuple[Callable[..., torch.Tensor], torch.Tensor], on_gpu: bool) -> None:
    function, x = case
    ctx = Context(Options(), gpu_target() if on_gpu else detect(threads=1))
    with torch.no_grad():
        trace(lambda x: function(x), [x], None, ctx, False)


@pytest.mark.parametrize("case", AROUND.values(), ids=AROUND)
def test_around_an_argument(case: tuple[Callable[..., torch.Tensor], torch.Tensor]) -> None:
    traced(case, False)
    with pytest.raises(CaptureError, match="around an argument"):
        traced(case, True)


@pytest.mark.parametrize("case", WITHIN.values(), ids=WITHIN)
def test_within_an_argument(case: tuple[Callable[..., torch.Tensor], torch.Tensor]) -> None:
    traced(case, True)
