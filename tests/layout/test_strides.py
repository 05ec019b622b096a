"""Results lie as eager lays them out: every operator of torch's database and its gradient, on tensors that lie in
several ways. The operators that they run are asked one by one, fake against real: nothing is compiled here.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from litz.graph.eager_strides import as_eager_lays_out
from tests.opinfo.known import NOT_ON_CPU
from tests.opinfo.samples import Case, cases, dtypes_of, has_gradients
from tests.opinfo.test_slice import ENTRIES


def reversed_dimensions(t: torch.Tensor) -> torch.Tensor:
    back = tuple(reversed(range(t.dim())))
    return t.permute(back).contiguous().permute(back)


def channels_last(t: torch.Tensor) -> torch.Tensor:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=layouts[t.dim()]) if t.dim() in layouts else t


def repeated(t: torch.Tensor) -> torch.Tensor:
    return t[:1].expand(t.shape) if t.dim() > 1 and t.shape[0] else t


def cut_out_of_reversed(t: torch.Tensor) -> torch.Tensor:
    """With gaps, and its dimensions the other way round."""
    if not t.dim() or not t.numel():
        return t
    back = tuple(reversed(range(t.dim())))
    turned = t.permute(back)
    return torch.cat((turned, turned), -1)[..., : turned.shape[-1]].permute(back)


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.mT.contiguous().mT if t.dim() > 1 else t


def with_one(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of which tensors can be said to lie in several ways."""

    def turn(t: torch.Tensor) -> torch.Tensor:
        if t.dim() < 2 or not t.numel():
            return t
        one = t.narrow(dim, 0, 1)
        return channels_last(one) if t.dim() in (4, 5) else reversed_dimensions(one)

    return turn


LAYOUTS = (lambda t: t, reversed_dimensions, channels_last, cut_out_of_reversed, transposed, with_one(0), with_one(1))

# What the fakes themselves get wrong, and where nothing is lost by it.
LIKE = {  # eager's copies the strides of sizes of one too; the fake makes its own
    "aten::ones_like", "aten::zeros_like", "aten::binary_cross_entropy_backward", "aten::empty_like", "aten::full_like",
    "aten::rand_like", "aten::randn_like", "aten::randint_like", "aten::randint_like.low_dtype", "aten::bernoulli.p",
}  # fmt: skip
TAKEN_APART = {
    "aten::ldexp.Tensor": "tracing takes it apart into operators that are right",
    "aten::rot90": "tracing takes it apart into operators that are right",
}
# Entries whose first tensor alone is made narrower by a turn, and that eager takes all the same.
OF_TWO_CHANNELS = {"native_batch_norm", "_batch_norm_with_update"}


class Compare(TorchDispatchMode):
    """Runs each operator on fakes as well, and notes those that then lie otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.differ: dict[str, str] = {}
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        fake = self._on_fakes(func, args, kwargs)
        real = func(*args, **kwargs)
        for mine, theirs in zip(tree_leaves(fake), tree_leaves(real), strict=False):
            if isinstance(mine, torch.Tensor) and mine.shape == theirs.shape and theirs.numel():
                ours, wanted = (_strides(t, func.name() not in LIKE) for t in (mine, theirs))
                if ours != wanted:
                    given = [(tuple(t.shape), t.stride()) for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
                    self.differ[func.name()] = f"{given} gives {wanted}, the fake {ours}"
        return real

    def _on_fakes(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        key = (func, *((t.shape, t.stride()) for t in given if t.layout is torch.strided))
        views = any(a.alias_info is not None for a in func._schema.arguments)
        if key in self.seen or views or any(t.layout is not torch.strided for t in given):
            return ()
        self.seen.add(key)
        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def fake(value: Any) -> Any:
            return mode.from_tensor(value.detach()) if isinstance(value, torch.Tensor) else value

        with _disable_current_modes(), torch.no_grad():
            try:
                args, kwargs = tree_map(fake, (args, kwargs))
                with mode:
                    return as_eager_lays_out(func, args, func(*args, **kwargs))
            except Exception:  # has no fake, or one that refuses what eager does not: then nothing is compiled
                return ()


def _strides(t: torch.Tensor, of_ones: bool) -> list[int]:
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if of_ones or size > 1]


def run(case: Case, turn: Callable[[torch.Tensor], torch.Tensor], gradients: bool) -> None:
    def turned(leaf: Any) -> Any:
        return turn(leaf.detach()) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else leaf

    leaves = [turned(leaf) for leaf in case.leaves]
    learns = leaves[case.positions[0]] if case.positions else None
    if gradients and isinstance(learns, torch.Tensor) and learns.is_floating_point():
        learns.requires_grad_()
    args, kwargs = tree_unflatten(leaves, case.spec)
    found = [t for t in tree_leaves(case.call(*args, **kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if found:
        torch.autograd.grad([(t * torch.ones_like(t)).sum() for t in found], [learns], allow_unused=True)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - NOT_ON_CPU))
def test_fakes_lie_as_eager_lays_out(name: str) -> None:
    gradients = has_gradients(ENTRIES[name], "float32")
    compare = Compare()
    drawn = [(case, gradients) for case in itertools.islice(cases(ENTRIES[name], "float32", 4), 4)]
    if "int64" in dtypes_of(ENTRIES[name]):  # which many results are computed from in another type
        drawn += [(case, False) for case in itertools.islice(cases(ENTRIES[name], "int64", 2), 2)]
    if "complex64" in dtypes_of(ENTRIES[name]):  # some of whose kernels are others
        drawn += [(case, False) for case in itertools.islice(cases(ENTRIES[name], "complex64", 2), 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case, differentiates in drawn:
            for turn in LAYOUTS[:-1] if name in OF_TWO_CHANNELS else LAYOUTS:
                try:
                    with compare:
                        run(case, turn, differentiates)
                except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
                    continue  # takes no tensors that lie so, or has no gradient there
    wrong = {operator: how for operator, how in compare.differ.items() if operator not in TAKEN_APART}
    assert not wrong, wrong


def test_a_fake_that_lies_otherwise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.layout.test_strides.as_eager_lays_out", lambda func, args, result: result)
    with Compare() as compare:
        norm(reversed_dimensions(torch.randn(3, 4, 5)))
    assert list(compare.differ) == ["aten::native_batch_norm"]


BESIDE = {"aten::isinf"}  # tracing takes it apart into operators that are right


def pointwise() -> list[Any]:
    packets = [getattr(torch.ops.aten, name) for name in sorted(dir(torch.ops.aten)) if not name.startswith("__")]
    packets = [packet for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket)]
    found = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [op for op in found if torch.Tag.pointwise in op.tags and not op._schema.is_mutable]


@pytest.mark.long
def test_sizes_of_one_beside_numbers() -> None:
    """A number that is made a tensor has the loop look for an order, where strides of sizes of one count."""
    seen, given = 0, {"Tensor": None, "number": 2, "Scalar": 2, "int": 1, "float": 2.0}
    with warnings.catch_warnings(), Compare() as compare:
        warnings.simplefilter("ignore")
        for op, dtype in itertools.product(pointwise(), (torch.int64, torch.float32, torch.bool)):
            x = torch.as_strided((torch.arange(60) % 5 + 1).to(dtype), (5, 1), (1, 10))
            wanted = [str(a.type) for a in op._schema.arguments if not a.kwarg_only and not a.has_default_value()]
            if "Tensor" in wanted and all(kind in given for kind in wanted):
                with contextlib.suppress(RuntimeError, NotImplementedError):  # not of such a type
                    op(*(x if kind == "Tensor" else given[kind] for kind in wanted))
                    seen += 1
    assert seen > 300
    assert not {op: how for op, how in compare.differ.items() if op not in BESIDE}


@pytest.mark.parametrize("shape", [(3, 3, 1, 16), (4, 3, 1, 1), (1, 3, 2, 1), (2, 1, 3, 1), (1, 1, 3, 3)], ids=str)
@pytest.mark.parametrize("gap", [False, True])
def test_norms_of_images_with_sizes_of_one(shape: tuple[int, ...], gap: bool) -> None:
    for order in itertools.permutations(range(4)):
        x = torch.randn([shape[dim] for dim in order])
        x = F.pad(x, (0, 1))[..., :-1] if gap else x
        x = x.permute([order.index(dim) for dim in range(4)]).requires_grad_()
        with Compare() as compare:
            y = F.batch_norm(x, torch.zeros(shape[1]), torch.ones(shape[1]), training=False)
            torch.autograd.grad(y, x, torch.randn_like(y))
            norm(x.detach())
        assert not compare.differ, order


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "batch norm of a transposed tensor": (norm, reversed_dimensions),
    "batch norm of images": (norm, channels_last),
    "sum of squares, channels last": (lambda x: (x * 2).square().sum(), channels_last),
    "weighted sum, channels last": (lambda x: (x * torch.ones_like(x)).sum(), channels_last),
    "squared error": (lambda x: F.mse_loss(x, x.detach() + 1, reduction="none"), reversed_dimensions),
    "cross entropy": (lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid()), reversed_dimensions),
    "powers of two": (lambda x: 2**x, reversed_dimensions),
    "repeated times channels last": (lambda x: repeated(x.detach()) * x, channels_last),
    "log of sigmoid": (F.logsigmoid, reversed_dimensions),
    "rolled": (lambda x: x.roll(1, 1), channels_last),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_lie_as_eagers(name: str) -> None:
    function, turn = PROGRAMS[name]

    def strides(f: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        x = turn(torch.randn(2, 3, 4, 5)).requires_grad_()
        y = f(x)
        (slope,) = torch.autograd.grad((y * y.detach()).sum(), x)
        return [y.stride(), slope.stride()]

    assert strides(torch.compile(function, backend="litz")) == strides(function)


DRAWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "poisson": lambda x: torch.poisson(x.abs()),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 0.5),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in evaluation": lambda x: F.rrelu(x),
    "normal around": lambda x: torch.normal(x, 2.0),
    "normal by": lambda x: torch.normal(1.0, x.abs()),
    "normal around and by": lambda x: torch.normal(x, x.abs()),
    "binomial": lambda x: torch.binomial((x * 0 + 5), x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.abs()[:, 0, 0] + 0.1, 2),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "dropout": F.dropout,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "gumbel": F.gumbel_softmax,
    "filled": lambda x: (x * 1).exponential_(),
}


@pytest.mark.parametrize("turn", [reversed_dimensions, channels_last, lambda x: channels_last(x[:1, :, :1])])
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_lies_as_eagers(name: str, turn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Of these torch's database has few, as nobody knows what they give: values and layout are a seed's."""
    function, x = DRAWN[name], turn(torch.randn(2, 3, 4, 5))
    torch._dynamo.reset()
    found = []
    for each in (function, torch.compile(function, backend="litz")):
        torch.manual_seed(0)
        found.append(each(x))
    want, got = found
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_sizes_of_one_are_eagers(dynamic: bool) -> None:
    """They are of no memory, and yet padding asks them whether channels come last."""
    x, scalar = channels_last(torch.randn(1, 2, 1, 1)), torch.randn(1, dtype=torch.bfloat16)
    for function in (lambda x, s: s / x, lambda x, s: x * 2, lambda x, s: F.pad(s / x, (1, 1))):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="litz", dynamic=dynamic)
        assert compiled(x, scalar).stride() == function(x, scalar).stride()
