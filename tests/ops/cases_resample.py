"""Interpolation, sampling and bent padding: gradients that add up where positions were read, and grids of positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.ops.lowering import Case, case

torch.manual_seed(9)
aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
G = torch.randn(2, 3, 8, 10)
LAST = G.to(memory_format=torch.channels_last)
LINE, VOLUME = torch.randn(2, 3, 10), torch.randn(2, 3, 4, 8, 10)
IMAGE = torch.randn(2, 3, 5, 7)

BACKWARD = [
    case("nearest1d", lambda g: aten.upsample_nearest1d_backward(g, [10], [2, 3, 4]), LINE),
    case("nearest2d", lambda g: aten.upsample_nearest2d_backward(g, [8, 10], [2, 3, 4, 5]), G),
    case("nearest2d-scales", lambda g: aten.upsample_nearest2d_backward(g, [8, 10], [2, 3, 3, 4], 2.9, 2.7), G),
    case("nearest3d", lambda g: aten.upsample_nearest3d_backward(g, [4, 8, 10], [2, 3, 9, 3, 4]), VOLUME),
    case("nearest-exact-back", lambda g: aten._upsample_nearest_exact2d_backward(g, [8, 10], [2, 3, 3, 7]), G),
    case("linear1d", lambda g: aten.upsample_linear1d_backward(g, [10], [2, 3, 4], False), LINE),
    case("bilinear2d", lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [2, 3, 3, 4], False), G),
    case("bilinear2d-corners", lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [2, 3, 3, 1], True), G),
    case("bilinear2d-smaller", lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [2, 3, 20, 31], False), G),
    case("bilinear2d-last", lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [2, 3, 3, 4], False), LAST),
    case("bilinear2d-f64", lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [2, 3, 3, 4], True), G.double()),
    case("trilinear3d", lambda g: aten.upsample_trilinear3d_backward(g, [4, 8, 10], [2, 3, 2, 3, 4], False), VOLUME),
    case("bicubic2d", lambda g: aten.upsample_bicubic2d_backward(g, [8, 10], [2, 3, 4, 6], False), G),
    case("bicubic2d-corners", lambda g: aten.upsample_bicubic2d_backward(g, [8, 10], [2, 3, 4, 6], True), G),
    case("reflection1d", lambda g, x: aten.reflection_pad1d_backward(g, x, [2, 3]), LINE, torch.randn(2, 3, 5)),
    case("reflection2d", lambda g, x: aten.reflection_pad2d_backward(g, x, [2, 1, 0, 3]), G, IMAGE),
    case("reflection3d", lambda g, x: aten.reflection_pad3d_backward(g, x, [1] * 6), VOLUME, torch.ones(2, 3, 2, 6, 8)),
    case("replication1d", lambda g, x: aten.replication_pad1d_backward(g, x, [4, 3]), LINE, torch.randn(2, 3, 3)),
    case("replication2d", lambda g, x: aten.replication_pad2d_backward(g, x, [2, 1, 0, 3]), LAST, IMAGE),
    case("adaptive_max", lambda g, x, i: aten.adaptive_max_pool2d_backward(g, x, i), G[..., :2, :3].contiguous(), IMAGE,
         torch.randint(0, 35, (2, 3, 2, 3))),
]  # fmt: skip

GRID, GRID_3D = torch.randn(2, 6, 5, 2), torch.randn(2, 3, 6, 5, 3)
BROKEN = GRID.clone()
BROKEN[0, 0, 0], BROKEN[0, 1, 0, 0], BROKEN[1, 2, 3, 1] = NAN, INF, 1e30


def _sampled(x: torch.Tensor, *positions: torch.Tensor) -> list[Case]:
    """Every way to mix and to pad that the operator has."""
    found = []
    for mode in ("bilinear", "nearest", "bicubic") if x.dim() == 4 else ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):

                def sample(x, grid, mode=mode, padding=padding, corners=corners):
                    return F.grid_sample(x, grid, mode, padding, corners)

                name = f"grid-{x.dim() - 2}d-{mode}-{padding}{'-corners' if corners else ''}"
                found.append(case(name, sample, x, *positions, rtol=1e-4, atol=1e-5))
    return found


GRIDS = [
    *_sampled(IMAGE, GRID),
    *_sampled(torch.randn(2, 3, 4, 5, 7), GRID_3D),
    case("grid-broken", lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, BROKEN),
    case("grid-broken-border", lambda x, g: F.grid_sample(x, g, "nearest", "border", False), IMAGE, BROKEN),
    case("grid-f64", lambda x, g: F.grid_sample(x, g, align_corners=True), IMAGE.double(), GRID.double()),
]

CASES: list[Case] = [*BACKWARD, *GRIDS]
