"""Inputs of a graph, described: a line of Python that makes one that will do as well.

In: a tensor or a number. Out: a `Given`, which prints as an expression: `torch.randn(4, 5)`. What a description cannot
say (numbers that matter one by one) is kept as it is, in a file beside or in the line itself.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

_MOST_KEPT = 1 << 24  # bytes of a tensor that is kept as it is: larger ones are described


@dataclass(frozen=True)
class Given:
    """A tensor of these sizes: `fill` makes its numbers, on the CPU and in `sizes` written as `{sizes}`; or, if `kept`,
    the one in that file. A number has its text in `fill`, and no dtype."""

    sizes: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    fill: str = ""
    device: str = "cpu"
    strides: tuple[int, ...] | None = None  # where not contiguous
    requires_grad: bool = False
    kept: str | None = None  # the name of a file

    @property
    def is_tensor(self) -> bool:
        return self.dtype is not None

    def text(self, folder: str = "here") -> str:
        """An expression; `folder` is how it names the one that has the files."""
        if self.dtype is None:
            return self.fill
        found = f"torch.load({folder} / {self.kept!r})" if self.kept is not None else self._described()
        if self.device != "cpu":
            found += f".to({self.device!r})"
        return found + (".requires_grad_()" if self.requires_grad else "")

    def _described(self) -> str:
        sizes = self.sizes
        if self.strides is not None and 0 in self.strides:  # one element, seen many times
            once = tuple(1 if stride == 0 else size for size, stride in zip(sizes, self.strides, strict=True))
            plain = replace(self, sizes=once, strides=None, device="cpu", requires_grad=False)
            return f"{plain.text()}.expand({sizes})"
        found = self.fill.format(sizes=sizes)
        found = f"({found})" if " * " in found or " < " in found else found
        if self.strides is not None:
            found = f"torch.empty_strided({sizes}, {self.strides}, dtype={self.dtype}).copy_({found})"
        return found

    def resized(self, sizes: tuple[int, ...]) -> Given:
        """Of other sizes, laid out in the same order."""
        if self.strides is None:
            return replace(self, sizes=sizes)
        order = sorted(range(len(sizes)), key=lambda d: (self.strides[d], -d))  # type: ignore[index]
        strides, reach = [0] * len(sizes), 1
        for d in order:
            if self.strides[d] != 0:
                strides[d], reach = reach, reach * max(sizes[d], 1)
        return replace(self, sizes=sizes, strides=tuple(strides))

    def within(self, folder: Path) -> str:
        """The expression without a file: what is kept is in the line."""
        if self.kept is None:
            return self.text()
        tensor = torch.load(folder / self.kept)
        there = f".to({self.device!r})" if self.device != "cpu" else ""
        return _literal(tensor) + there + (".requires_grad_()" if self.requires_grad else "")


def describe(value: Any, folder: Path, keep: bool = False) -> Given:
    """`keep`: the tensor itself goes to the folder, if it is not too large for that."""
    if not isinstance(value, torch.Tensor):
        return Given(fill=_number(value))
    plain = value.detach()
    moves = bool(value.requires_grad and (value.is_floating_point() or value.is_complex()))
    sizes = tuple(int(s) for s in plain.shape)
    strides = None if plain.is_contiguous() else tuple(int(s) for s in plain.stride())
    found = Given(sizes, plain.dtype, _fill(plain), str(plain.device), strides, moves)
    if not keep or _is_fake(plain) or plain.numel() * plain.element_size() > _MOST_KEPT:
        return found
    return replace(found, kept=_kept(plain.cpu(), folder))


def _kept(tensor: torch.Tensor, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    digest = blake2b(_bytes(tensor) + repr((tensor.shape, tensor.stride(), tensor.dtype)).encode(), digest_size=6)
    name = f"{digest.hexdigest()}.pt"
    if not (folder / name).exists():
        torch.save(copied(tensor), folder / name)  # what it is a window on stays behind
    return name


def copied(value: Any) -> Any:
    """A tensor of its own, laid out alike, that needs a gradient if the other one does."""
    if not isinstance(value, torch.Tensor):
        return value
    once = _once(value.detach())
    lying = torch.empty_strided(once.shape, once.stride(), dtype=once.dtype, device=once.device).copy_(once)
    return lying.expand(value.shape).requires_grad_(value.requires_grad)


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that share memory, once."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


def _literal(tensor: torch.Tensor) -> str:
    if _once(tensor).shape != tensor.shape:
        return f"{_literal(_once(tensor).contiguous())}.expand({tuple(tensor.shape)})"
    packed = base64.b85encode(zlib.compress(_bytes(tensor), 9)).decode()
    short = repr(tensor.flatten().tolist())
    if len(short) <= 2 * len(packed) + 100 and torch.isfinite(tensor).all() and not tensor.is_complex():
        made = f"torch.tensor({short}, dtype={tensor.dtype})"
    else:
        unpacked = f"zlib.decompress(base64.b85decode({packed!r}))"
        made = f"torch.frombuffer(bytearray({unpacked}), dtype={tensor.dtype})"
    made += f".view({tuple(tensor.shape)})"
    if tensor.is_contiguous():
        return made
    return f"torch.empty_strided({tuple(tensor.shape)}, {tensor.stride()}, dtype={tensor.dtype}).copy_({made})"


def _number(value: Any) -> str:
    if isinstance(value, torch.SymInt):
        value = int(value)
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _is_fake(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _fill(tensor: torch.Tensor) -> str:
    """How its numbers are drawn, so that what was valid is so again: indices in range, positive what was positive."""
    dtype = tensor.dtype
    typed = "" if dtype is torch.float32 else f", dtype={dtype}"
    if _is_fake(tensor) or tensor.numel() == 0:
        return f"torch.ones({{sizes}}{typed})"
    if dtype is torch.bool:
        share = float(tensor.float().mean())
        return f"torch.full({{sizes}}, {bool(share)})" if share in (0, 1) else f"torch.rand({{sizes}}) < {share:.2g}"
    if dtype.is_complex:
        return f"torch.randn({{sizes}}{typed})"
    wide = tensor.double()
    low, high = float(wide.min()), float(wide.max())
    if low == high or not math.isfinite(low) or not math.isfinite(high):
        value = low if math.isfinite(low) and low == high else 1.0
        return f"torch.full({{sizes}}, {value if dtype.is_floating_point else int(value)}, dtype={dtype})"
    if not dtype.is_floating_point:
        return f"torch.randint({int(low)}, {int(high) + 1}, {{sizes}}, dtype={dtype})"
    mean, deviation = float(wide.mean()), float(wide.std())
    if low >= 0:
        made = "torch.rand({sizes})" if high <= 1 else f"torch.rand({{sizes}}) * {high:.3g}"
    elif abs(mean) < deviation and 0.2 < deviation < 5:
        made = "torch.randn({sizes})"
    else:
        made = f"torch.randn({{sizes}}) * {deviation:.3g} + {mean:.3g}"
    return made if dtype is torch.float32 else f"({made}).to({dtype})"


__all__ = ["Given", "copied", "describe"]
