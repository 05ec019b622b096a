"""Which of two ways to compute a product is faster: tried on the device, once.

In: the sizes, strides and type of a product's factors. Out: milliseconds, or None where nothing can be tried: there is
no such device, it is recording a graph of its own, or what it would take is more than a part of its free memory.

What was found holds for the device and the version of torch, and is kept: in the process, and in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from litz.compat import precision_of_products
from litz.context import Lasting

aten = torch.ops.aten

_ROUNDS = 3
_MOST_BYTES = 1 << 29  # of a trial: larger products are tried on fewer rows
_FEWEST = 1024  # rows, and products added up, of which a trial takes half
_COPIED = 1 << 27  # bytes, of the trial that says how fast memory is


@dataclass(frozen=True)
class Matrix:
    """The last two dimensions of it; `batch` are those in front, as one."""

    batch: int
    rows: int
    columns: int
    by_columns: bool  # elements of a column lie side by side, and not those of a row
    step: int  # elements from a row in memory to the next; at least as many as there are in it

    def made(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        rows, columns = (self.columns, self.rows) if self.by_columns else (self.rows, self.columns)
        whole = torch.zeros((self.batch, rows, self.step), dtype=dtype, device=device)[:, :, :columns]
        return whole.transpose(1, 2) if self.by_columns else whole

    def padded(self, rows: int, columns: int) -> Matrix:
        """As it lies in memory of its own."""
        rows, columns = self.rows + rows, self.columns + columns
        return Matrix(self.batch, rows, columns, self.by_columns, rows if self.by_columns else columns)


@dataclass(frozen=True)
class Product:
    a: Matrix
    b: Matrix
    bias: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.a.batch * self.a.rows * self.a.columns * self.b.columns

    @property
    def bytes(self) -> int:
        m, k, n = self.a.rows, self.a.columns, self.b.columns
        return self.a.batch * (m * k + k * n + m * n) * self.dtype.itemsize

    def half(self) -> Product:
        """Of half as many rows, or half as deep: what lies side by side stays whole."""
        a, b = self.a, self.b
        if not a.by_columns and a.rows >= _FEWEST:
            return replace(self, a=replace(a, rows=a.rows // 2))
        if a.by_columns and not b.by_columns and b.rows >= _FEWEST:
            return replace(self, a=replace(a, columns=a.columns // 2), b=replace(b, rows=b.rows // 2))
        raise torch.OutOfMemoryError("a trial would take more memory than it may")

    def padded(self, rows: int, depth: int, columns: int) -> Product:
        a = self.a.padded(rows, depth) if rows or depth else self.a
        return replace(self, a=a, b=self.b.padded(depth, columns) if depth or columns else self.b)


def milliseconds(product: Product, cache: Lasting | None) -> float | None:
    """What one call of the library takes."""
    return _kept(str(product), cache, product.device, lambda: _tried(product))


def milliseconds_a_byte(device: torch.device, cache: Lasting | None) -> float | None:
    """What a kernel takes that reads, or writes, as much as that."""
    return _kept("copy", cache, device, lambda: _copied(device))


def _kept(question: str, cache: Lasting | None, device: torch.device, answer: Callable[[], float]) -> float | None:
    if device.type != "cuda" or not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return None
    about = f"{question} on {torch.cuda.get_device_name(device)}, torch {torch.__version__}, {precision_of_products()}"
    if about in _KNOWN:
        return _KNOWN[about]
    key = blake2b(about.encode(), digest_size=20).hexdigest()
    kept = None if cache is None else cache.load("trial", key)
    if isinstance(kept, float):
        _KNOWN[about] = kept
        return kept
    try:
        with unset_fake_temporarily(), torch.no_grad(), torch.cuda.device(device):
            found = answer()
    except torch.OutOfMemoryError:
        return None  # of memory that the program itself may need
    _KNOWN[about] = found
    if cache is not None:
        cache.store("trial", key, found, {"trial": about})
    return found


_KNOWN: dict[str, float] = {}  # process-wide, as the devices are


def _tried(product: Product) -> float:
    """The time of all of it, from a trial of as much as there is room for."""
    share, room = 1, min(_MOST_BYTES, torch.cuda.mem_get_info(product.device)[0] // 4)
    while product.bytes > room:
        product, share = product.half(), 2 * share
    a, b = (matrix.made(product.dtype, product.device) for matrix in (product.a, product.b))
    if product.bias:
        bias = torch.zeros(product.b.columns, dtype=product.dtype, device=product.device)
        return share * timed(lambda: torch.addmm(bias, a[0], b[0]))
    return share * timed((lambda: torch.bmm(a, b)) if product.a.batch > 1 else (lambda: torch.mm(a[0], b[0])))


def _copied(device: torch.device) -> float:
    source = torch.zeros(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return timed(lambda: target.copy_(source)) / (2 * _COPIED)


def timed(run: Callable[[], Any]) -> float:
    """Milliseconds, as the device counts them, of the fastest of some."""
    run()
    begun, ended = ([torch.cuda.Event(enable_timing=True) for _ in range(_ROUNDS)] for _ in range(2))
    for begin, end in zip(begun, ended, strict=True):
        begin.record()
        run()
        end.record()
    ended[-1].synchronize()
    return min(begin.elapsed_time(end) for begin, end in zip(begun, ended, strict=True))


__all__ = ["Matrix", "Product", "milliseconds", "milliseconds_a_byte", "timed"]
