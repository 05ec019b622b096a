"""Operators on lists of tensors, and the fused steps of optimisers."""

from __future__ import annotations

import torch

from tests.ops.lowering import Case, case

aten = torch.ops.aten
torch.manual_seed(6)


def _parameters() -> list[torch.Tensor]:
    return [torch.randn(4, 5), torch.randn(7), torch.randn(3, 2, 2).bfloat16()]


LISTS = [_parameters(), _parameters(), [p.abs() + 0.1 for p in _parameters()]]
FLAT = [t for one in LISTS for t in one]
STATE = [torch.rand(4, 5) + 0.1, torch.rand(7) + 0.1]
PLAIN = [torch.randn(4, 5), torch.randn(7)]


def _list(name: str, overload: str, lists: int, *rest, **kwargs) -> Case:
    operator = getattr(getattr(aten, f"_foreach_{name}"), overload)

    def call(*tensors):
        given = [list(tensors[3 * k : 3 * k + 3]) for k in range(lists)]
        return operator(*given[:1], *given[1:], *rest, **kwargs)

    label = f"foreach-{name}-{overload}"
    return case(label, call, *(FLAT if name not in ("sqrt", "log") else FLAT[6:] * 3), rtol=1.6e-2, atol=1e-2)


def _steps(*tensors):
    return aten._foreach_pow.ScalarAndTensor(0.9, list(tensors))


def _fused(operator, states, counts, **options):
    """The fused step on two parameters; every result but the gradients, which are as they were."""

    def call(*tensors):
        given = [list(tensors[2 * k : 2 * k + 2]) for k in range(2 + states)]
        counting = [[tensors[-2], tensors[-1]]] if counts else []
        spare = [[]] if counts and states == 2 else []
        made = operator(*given, *spare, *counting, **options)
        return [t for k, some in enumerate(made) if k != 1 for t in some]

    return call


COUNTS = [torch.tensor(3.0), torch.tensor(4.0)]
ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
SGD = {"lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.2, "maximize": False, "is_first_step": False}
CASES = [
    _list("add", "List", 2, alpha=0.5),
    _list("add", "Scalar", 1, 2.0),
    _list("add", "ScalarList", 1, [1.0, 2.0, 3.0]),
    _list("mul", "List", 2),
    _list("mul", "Scalar", 1, 0.3),
    _list("div", "ScalarList", 1, [2.0, 4.0, 5.0]),
    _list("sub", "List", 2),
    _list("neg", "default", 1),
    _list("sqrt", "default", 1),
    _list("abs", "default", 1),
    _list("maximum", "List", 2),
    _list("clamp_min", "Scalar", 1, 0.1),
    _list("minimum", "Scalar", 1, 0.1),
    _list("addcmul", "Scalar", 3, 0.5),
    _list("addcdiv", "ScalarList", 3, [1.0, 2.0, 3.0]),
    _list("addcdiv", "Scalar", 3, -0.5),
    _list("lerp", "Scalar", 2, 0.1),
    _list("lerp", "List", 3),
    _list("pow", "Scalar", 1, 2),
    _list("norm", "Scalar", 1, 2),
    _list("zero", "default", 1),
    *([_list("clone", "default", 1)] if hasattr(aten, "_foreach_clone") else []),  # torch 2.11 has none
    _list("copy", "default", 2),
    _list("reciprocal", "default", 1),
    case("foreach-pow-number", _steps, *COUNTS),
    case("foreach-mul-tensor", lambda x, y, s: aten._foreach_mul.Tensor([x, y], s), *PLAIN, torch.tensor(0.3)),
    case(
        "adamw",
        _fused(aten._fused_adamw.default, 2, True, amsgrad=False, **ADAM),
        *PLAIN,
        *[p.sin() for p in PLAIN],
        *PLAIN,
        *STATE,
        *COUNTS,
    ),
    case(
        "adam",
        _fused(aten._fused_adam.default, 2, True, amsgrad=False, **ADAM),
        *PLAIN,
        *[p.sin() for p in PLAIN],
        *PLAIN,
        *STATE,
        *COUNTS,
    ),
    case(
        "adamw-amsgrad",
        _fused(aten._fused_adamw.default, 3, True, amsgrad=True, **ADAM),
        *PLAIN,
        *[p.sin() for p in PLAIN],
        *PLAIN,
        *STATE,
        *[s * 1.1 for s in STATE],
        *COUNTS,
    ),
    case(
        "sgd",
        _fused(aten._fused_sgd.default, 1, False, nesterov=False, **SGD),
        *PLAIN,
        *[p.sin() for p in PLAIN],
        *PLAIN,
    ),
    case(
        "sgd-nesterov",
        _fused(aten._fused_sgd.default, 1, False, nesterov=True, **{**SGD, "dampening": 0}),
        *PLAIN,
        *[p.sin() for p in PLAIN],
        *PLAIN,
    ),
]
