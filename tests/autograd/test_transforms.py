"""`torch.func` transforms inside a compiled function: what eager gives, through both doors, and compiled."""

from __future__ import annotations

import pytest
import torch

from tests.autograd.both import ROUTES, Route, agrees, both, left_to_eager
from tests.autograd.transforms import PROGRAMS

TRACES_WITHIN = ("linearized",)  # by tracing the function itself, which a trace cannot see into; Dynamo breaks there


@both
@pytest.mark.parametrize("name", PROGRAMS)
def test_transforms_inside(name: str, route: Route) -> None:
    torch.manual_seed(0)
    function, make = PROGRAMS[name]()
    if name in TRACES_WITHIN and route is ROUTES["directly"]:
        agrees(route, function, make, compiled=False)
        assert left_to_eager()
        return
    agrees(route, function, make, rtol=1e-4, atol=1e-5)
