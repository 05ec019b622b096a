"""Reductions, variances, norms and scans: shapes, layouts, types, and what NaN and emptiness do."""

from __future__ import annotations

import torch

from tests.ops.lowering import Case, case

torch.manual_seed(0)
NAN, INF = float("nan"), float("inf")
X = torch.randn(3, 4, 5)
TRANSPOSED = torch.randn(5, 4, 3).permute(2, 0, 1)
SLICED = torch.randn(6, 8, 5)[::2, 1:7:2]
LAST = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
EXPANDED = torch.randn(3, 1, 5).expand(3, 4, 5)
ONES = torch.randn(3, 1, 5, 1)
SCALAR = torch.tensor(2.5)
INTS = torch.randint(-9, 9, (3, 4, 5))
BOOLS = torch.rand(3, 4, 5) > 0.7
BYTES = torch.randint(0, 200, (4, 6), dtype=torch.uint8)
HALF = torch.randn(4, 33).bfloat16()
HOLES = torch.tensor([[1.0, NAN, 3.0, NAN], [2.0, 5.0, 5.0, -1.0], [-INF, -INF, -INF, -INF]])
LONG = torch.randn(48, 4000)
EMPTY = torch.randn(3, 0, 5)

LAYOUTS = {
    "plain": X, "transposed": TRANSPOSED, "sliced": SLICED, "channels_last": LAST, "expanded": EXPANDED, "ones": ONES,
}  # fmt: skip


def _folds() -> list[Case]:
    made = []
    folds = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin}
    for name, f in folds.items():
        for layout, x in LAYOUTS.items():
            made += [
                case(f"{name}-{layout}-last", lambda x, f=f: f(x, -1), x),
                case(f"{name}-{layout}-first-keepdim", lambda x, f=f: f(x, 0, keepdim=True), x),
                case(f"{name}-{layout}-two", lambda x, f=f: f(x, (-2, 0)), x),
            ]
        made += [
            case(f"{name}-all", lambda x, f=f: f(x), X),
            case(f"{name}-all-transposed", lambda x, f=f: f(x), TRANSPOSED),
            case(f"{name}-scalar", lambda x, f=f: f(x), SCALAR),
            case(f"{name}-scalar-dim", lambda x, f=f: f(x, 0), SCALAR),
            case(f"{name}-size-1", lambda x, f=f: f(x, 1), ONES),
            case(f"{name}-bf16", lambda x, f=f: f(x, 1), HALF),
            case(f"{name}-f16", lambda x, f=f: f(x, 1), HALF.half()),
            case(f"{name}-f64", lambda x, f=f: f(x, 1), X.double()),
            case(f"{name}-nan", lambda x, f=f: f(x, 1), HOLES),
            case(f"{name}-long", lambda x, f=f: f(x), LONG, atol=1e-4, rtol=1e-5),
            case(f"{name}-long-few", lambda x, f=f: f(x, (0, 2)), LONG.view(24, 2, 4000), atol=1e-4, rtol=1e-5),
            case(f"{name}-long-transposed", lambda x, f=f: f(x), LONG.t(), atol=1e-4, rtol=1e-5),
        ]
    return made


def _places() -> list[Case]:
    made = []
    for name, f in {"argmax": torch.argmax, "argmin": torch.argmin}.items():
        made += [case(f"{name}-{layout}-all", lambda x, f=f: f(x), x) for layout, x in LAYOUTS.items()]
        made += [case(f"{name}-{layout}-dim", lambda x, f=f: f(x, 1), x) for layout, x in LAYOUTS.items()]
        made += [
            case(f"{name}-keepdim", lambda x, f=f: f(x, -1, keepdim=True), X),
            case(f"{name}-all-keepdim", lambda x, f=f: f(x, None, keepdim=True), X),
            case(f"{name}-scalar", lambda x, f=f: f(x), SCALAR),
            case(f"{name}-ties", lambda x, f=f: f(x, 0), torch.tensor([[1.0, 2.0], [1.0, 2.0]])),
            case(f"{name}-nan", lambda x, f=f: f(x, 1), HOLES),
            case(f"{name}-int", lambda x, f=f: f(x, 1), INTS),
            case(f"{name}-bf16", lambda x, f=f: f(x, 1), HALF),
        ]
    for name, f in {"max": torch.max, "min": torch.min}.items():
        made += [case(f"{name}.dim-{layout}", lambda x, f=f: tuple(f(x, 1)), x) for layout, x in LAYOUTS.items()]
        made += [
            case(f"{name}.dim-keepdim", lambda x, f=f: tuple(f(x, -1, keepdim=True)), X),
            case(f"{name}.dim-nan", lambda x, f=f: tuple(f(x, 1)), HOLES),
            case(f"{name}.dim-int", lambda x, f=f: tuple(f(x, 0)), INTS),
            case(f"{name}.dim-bool", lambda x, f=f: tuple(f(x, 2)), BOOLS),
            case(f"{name}.dim-scalar", lambda x, f=f: tuple(f(x, 0)), SCALAR),
            case(f"{name}-default", lambda x, f=f: f(x), TRANSPOSED),
            case(f"{name}-default-bool", lambda x, f=f: f(x), BOOLS),
        ]
    return made


def _truths() -> list[Case]:
    made = []
    for name, f in {"any": torch.any, "all": torch.all}.items():
        made += [
            case(f"{name}-default", lambda x, f=f: f(x), BOOLS),
            case(f"{name}-dim", lambda x, f=f: f(x, 1), BOOLS),
            case(f"{name}-dims", lambda x, f=f: f(x, dim=(0, -1), keepdim=True), BOOLS),
            case(f"{name}-int", lambda x, f=f: f(x, -1), INTS),
            case(f"{name}-u8", lambda x, f=f: f(x, -1), BYTES),
            case(f"{name}-nan", lambda x, f=f: f(x, -1), HOLES),
            case(f"{name}-transposed", lambda x, f=f: f(x > 0, 0), TRANSPOSED),
            case(f"{name}-empty", lambda x, f=f: f(x, 1), EMPTY),
            case(f"{name}-scalar", lambda x, f=f: f(x > 0), SCALAR),
            case(f"{name}-long", lambda x, f=f: f(x > -4), LONG),
        ]
    return made


def _moments() -> list[Case]:
    made = []
    for name, f in {"var": torch.var, "std": torch.std, "var_mean": torch.var_mean, "std_mean": torch.std_mean}.items():
        made += [case(f"{name}-{layout}", lambda x, f=f: f(x, 1, correction=0), x) for layout, x in LAYOUTS.items()]
        made += [
            case(f"{name}-all", lambda x, f=f: f(x), X),
            case(f"{name}-dims", lambda x, f=f: f(x, (0, 2), keepdim=True), X),
            case(f"{name}-correction", lambda x, f=f: f(x, -1, correction=1.5), X),
            case(f"{name}-one-element", lambda x, f=f: f(x, 1), ONES),
            case(f"{name}-bf16", lambda x, f=f: f(x, 1), HALF),
            case(f"{name}-long", lambda x, f=f: f(x + 10), LONG, rtol=1e-5, atol=1e-5),
            case(f"{name}-long-few", lambda x, f=f: f(x, (0, 2)), LONG.view(24, 2, 4000), rtol=1e-5, atol=1e-5),
        ]
    for p in (0, 1, 2, 3, -1, 0.5, INF, -INF):
        made.append(case(f"vector_norm-{p}", lambda x, p=p: torch.linalg.vector_norm(x, p, dim=1), TRANSPOSED))
        made.append(case(f"vector_norm-{p}-all", lambda x, p=p: torch.linalg.vector_norm(x, p), SLICED))
    made += [
        case("vector_norm-dtype", lambda x: torch.linalg.vector_norm(x, dtype=torch.float32), HALF),
        case("vector_norm-long", lambda x: torch.linalg.vector_norm(x), LONG),
        case("logsumexp", lambda x: torch.logsumexp(x, -1), X),
        case("logsumexp-dims-keepdim", lambda x: torch.logsumexp(x, (0, 1), keepdim=True), TRANSPOSED),
        case("logsumexp-infinite", lambda x: torch.logsumexp(x, 1), HOLES),
        case("logsumexp-plus-infinite", lambda x: torch.logsumexp(x, 0), torch.tensor([INF, 1.0, INF])),
        case("aminmax", lambda x: tuple(torch.aminmax(x, dim=1)), X),
        case("aminmax-all", lambda x: tuple(torch.aminmax(x)), TRANSPOSED),
    ]
    return made


CASES = [
    *_folds(), *_places(), *_truths(), *_moments(),
    case("sum-int", lambda x: x.sum(1), INTS),
    case("sum-int32", lambda x: x.sum(), INTS.int()),
    case("sum-bool", lambda x: x.sum((0, 1)), BOOLS),
    case("sum-u8", lambda x: x.sum(0), BYTES),
    case("sum-dtype", lambda x: x.sum(1, dtype=torch.float64), X),
    case("sum-int-dtype", lambda x: x.sum(dtype=torch.float32), INTS),
    case("sum-empty", lambda x: x.sum(1), EMPTY),
    case("sum-empty-result", lambda x: x.sum(2), EMPTY),
    case("mean-empty", lambda x: x.mean(1), EMPTY),
    case("mean-dtype", lambda x: x.mean(-1, dtype=torch.float32), HALF),
    case("prod", lambda x: x.prod(), X),
    case("nansum", lambda x: torch.nansum(x, 1), HOLES),
    case("nansum-bf16", lambda x: torch.nansum(x), HOLES.bfloat16()),
    case("prod-dim", lambda x: x.prod(1, keepdim=True), TRANSPOSED),
    case("prod-int", lambda x: x.prod(-1), INTS),
    case("prod-empty", lambda x: x.prod(1), EMPTY),
    case("count_nonzero", lambda x: torch.count_nonzero(x), INTS),
    case("count_nonzero-dim", lambda x: torch.count_nonzero(x, dim=(0, 2)), INTS),
    case("amax-int", lambda x: x.amax(1), INTS),
    case("amax-bool", lambda x: x.amax(1), BOOLS),
    case("amax-no-dims", lambda x: torch.amax(x, ()), X),
    case("cumsum", lambda x: x.cumsum(1), X),
    case("cumsum-transposed-last", lambda x: x.cumsum(-1), TRANSPOSED),
    case("cumsum-int", lambda x: x.cumsum(0), INTS),
    case("cumsum-bool", lambda x: x.cumsum(0), BOOLS),
    case("cumsum-nan", lambda x: x.cumsum(1), HOLES),
    case("cumsum-bf16", lambda x: x.cumsum(1), HALF),
    case("cumsum-scalar", lambda x: x.cumsum(0), SCALAR),
    case("cumsum-size-1", lambda x: x.cumsum(1), ONES),
    case("cumsum-dtype", lambda x: x.cumsum(1, dtype=torch.float64), X),
    case("cumsum-long", lambda x: x.cumsum(1), LONG),
    case("cumprod", lambda x: x.cumprod(1), X),
    case("cumprod-int", lambda x: x.cumprod(2), INTS),
    case("dot", lambda x, y: x.dot(y), torch.randn(70), torch.randn(140)[::2]),
    case("dot-bf16", lambda x: torch.vdot(x, x), torch.randn(70).bfloat16()),
    case("logcumsumexp", lambda x: x.logcumsumexp(1), TRANSPOSED),
    case("logcumsumexp-nan", lambda x: x.logcumsumexp(0), HOLES),
    case("cummax", lambda x: x.cummax(1), X),
    case("cummax-nan", lambda x: x.cummax(0), HOLES),
    case("cummax-int", lambda x: x.cummax(-1), INTS),
    case("cummin-bool", lambda x: x.cummin(1), BOOLS),
    case("cummin-places", lambda x: x.cummin(1)[1], HALF),
    case("any-no-dims", lambda x: torch.any(x, dim=()), BOOLS, calls=("aten::any.dims",)),
]  # fmt: skip
