"""Convolutions, what follows them in networks, and operators that see how a tensor lies in memory."""

from __future__ import annotations

import math

import torch

from tests.fuzz.build import Build
from tests.fuzz.eager import Refused

# Spelled so that the referee, the same source in float64, draws the same numbers.
_DRAWN = "dtype=getattr(torch, 'float32')"
_RANDOM = (
    *("torch.rand_like({x}, {d})", "torch.randn_like({x}, {d})", "torch.randint_like({x}, 7, {d})"),
    *("torch.empty_like({x}, {d}).uniform_()", "torch.empty_like({x}, {d}).exponential_()"),
    *("torch.empty_like({x}, {d}).bernoulli_(0.5)", "torch.empty_like({x}, {d})[..., 1:].bernoulli_(0.5)"),
    "torch.empty_like({x}, {d})[::2].mT.bernoulli_(0.5)",
)


def _image(t: torch.Tensor) -> bool:
    return t.dim() == 4 and t.is_floating_point() and t.dtype is not torch.float16 and t.numel() > 0


def convolve(b: Build) -> None:
    x = b.pick(lambda t: _image(t) and t.dtype is not torch.bfloat16)
    if not b.is_fixed(x, 1):
        raise Refused("the weight's channels are fixed")
    channels, dtype = b[x].shape[1], str(b[x].dtype).removeprefix("torch.")
    groups = b.one((1, 1, 1, channels))
    # Whole vectors of channels are laid out last; others are not.
    out = b.one((16, 16, 32, 3)) if groups == 1 else channels * b.one((1, 2))
    rows, columns = b.one(((3, 3), (3, 3), (1, 1), (2, 3), (1, 2)))
    weight = b.add_input(f"numbers({dtype!r}, {(out, channels // groups, rows, columns)}, {b.number(0, 99)})")
    more = f", stride={b.one((1, 1, 2))}, padding={b.one((0, 1, 1))}, groups={groups}"
    b.define(f"torch.nn.functional.conv2d({x}, {weight}, None{more})", x, weight, rounds=True)


def follow(b: Build) -> None:
    """What a network does to an image."""
    x = b.pick(_image)
    kind = b.number(0, 7)
    name = "torch.nn.functional."
    if kind == 0:
        b.define(f"{name}max_pool2d({x}, {b.one((2, 3))}, stride={b.one((1, 2))})", x)
    elif kind == 1:
        b.define(f"{name}avg_pool2d({x}, 2, stride={b.one((1, 2))}, padding={b.one((0, 1))})", x, rounds=True)
    elif kind == 2:
        code = f"{name}batch_norm({x}, None, None, training=True)"
        b.define(code, x, rounds=True, rows=(0, 2, 3))
    elif kind == 3:
        code = b.one(("scale_factor=2", "scale_factor=2, mode='bilinear'", "size=(5, 3)", "scale_factor=1.5"))
        b.define(f"{name}interpolate({x}, {code})", x, rounds=True)
    elif kind == 4:
        b.define(f"{name}adaptive_avg_pool2d({x}, {b.one(('1', '2', '(3, 2)'))})", x, rounds=True)
    elif kind == 5:
        if not b.is_fixed(x, 1) or b[x].shape[1] % 4:
            raise Refused("channels in fours")
        b.define(b.one((f"{name}pixel_shuffle({x}, 2)", f"{name}group_norm({x}, 2)")), x, rounds=True)
    elif kind == 6:
        x = b.sure(_image)
        pool = b.one(("max_pool2d({}, 2, stride=1", "max_pool2d({}, 3, 2, padding=1", "adaptive_max_pool2d({}, 2"))
        b.define(f"{name}{pool.format(x)}, return_indices=True)[1]", x, decides=(x,))
    else:
        b.define(f"{name}pad({x}, (1, 1, 1, 1), value={b.one(('0.0', '-0.0', '1.0'))})", x)


def see(b: Build) -> None:
    """What depends on strides."""
    x = b.floating(lambda t: t.numel() > 0)
    tensor = b[x]
    kind = b.number(0, 12)
    if kind <= 2:
        sizes, strides = _window(b, x)
        code = b.one(("torch.as_strided", "torch.as_strided_copy", "torch.ops.aten.as_strided"))
        offset = b.one(("", "", ", 0")) if not tensor.storage_offset() else ""
        b.define(f"{code}({x}, {sizes}, {strides}{offset})", x)
    elif kind == 3:
        sizes, strides = _window(b, x)
        b.define(f"torch.as_strided_scatter({x}, torch.zeros({sizes}, dtype={x}.dtype), {sizes}, {strides})", x)
    elif kind == 4 and not b.state.training:
        b.define(f"torch.ops.aten.resize({x}, ({b.number(1, min(tensor.numel(), 4))},))", x)
    elif kind == 5:
        b.define(f"torch.empty_like({x}).copy_({x})", x)
    elif kind == 6:
        shape = b.one(("(-1,)", f"({b.extent(x, 0)}, -1)" if tensor.dim() else "(1,)"))
        b.define(f"torch.ops.aten.view_copy({x}, {shape})", x)
    elif kind == 7:
        code = b.one(_RANDOM)
        b.define(f"{code.format(x=x, d=_DRAWN)}.to({x}.dtype)", x, rounds=True)
    elif kind == 8:
        if not tensor.dim():
            raise Refused("no strides")
        b.define(f"{x} * {x}.stride({b.dim(x)})", x, rounds=True)
    elif kind == 9:
        b.define(f"{x} + int({x}.is_contiguous())", x, rounds=True)
    elif kind == 10 and tensor.dim() == 4:
        code = b.one((".contiguous(memory_format=torch.channels_last)", ".to(memory_format=torch.channels_last)"))
        b.define(x + code, x)
    elif kind == 11:
        code = b.one(("torch.zeros_like({x})", "torch.full_like({x}, 0.5)", "torch.empty_like({x}).fill_(2)"))
        b.define(code.format(x=x), x)
    else:
        sizes, strides = _window(b, x)
        b.define(f"{x}.clone().as_strided({sizes}, {strides})", x)


def _window(b: Build, x: str) -> tuple[str, str]:
    """Sizes and strides that stay within the tensor's memory, if that has no gaps."""
    count = min(math.prod(state.tensor(x).shape) for state in b.states if x in state.values)
    for _ in range(4):
        sizes, strides = (b.number(1, 3), b.number(1, 3)), (b.number(1, 9), b.number(1, 5))
        if (sizes[0] - 1) * strides[0] + (sizes[1] - 1) * strides[1] < count:
            return str(sizes), str(strides)
    raise Refused("no window")


__all__ = ["convolve", "follow", "see"]
