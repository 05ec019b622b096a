"""Right or wrong: Litz's results against eager's, with the float64 run of the same operator as referee.

A floating-point element is right if its error, measured against the referee, is at most twice the largest error
eager makes anywhere in that tensor, plus `FLOOR` units in its last place. Where that fails, or where the dtype has no
wider referee, one more chance: the result may be off by as much as the exact result moves when every input moves by
one unit in its last place; such results are counted apart (`conditioned`).

All else is compared exactly: types, shapes, strides, whole numbers, where there is no number, infinities, the signs
of zeros, which tensors share memory, and what nobody wrote to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

FLOOR = 4  # units in the last place
ABSURD = 0.1  # a referee further from eager than this, for the size of the result, is none
NOISE = 64  # units in the last place of the largest number in sight: what cancellation may leave
_NARROW = {torch.bfloat16, torch.float16, torch.float32, torch.complex64}


def compare(
    found: Sequence[Any],
    eager: Sequence[Any],
    referee: Sequence[Any] | None,
    spread: Callable[[], Sequence[Any] | None],
    biggest: float = 0.0,
    zero_signs: bool = True,
) -> tuple[str | None, bool]:
    """What is wrong, or None; and whether the verdict rests on the conditioning of the inputs.

    `spread()`: how far each exact result moves with the inputs' last places; `biggest`: the largest number in sight;
    `zero_signs`: whether the signs of zeros are eager's promise.
    """
    if len(found) != len(eager):
        return f"{len(found)} results instead of {len(eager)}", False
    conditioned = False
    moved: Sequence[Any] | None = None
    for position, (got, want) in enumerate(zip(found, eager, strict=True)):
        if not isinstance(want, torch.Tensor):
            if got != want and not (got != got and want != want):
                return f"result {position} is {got!r} instead of {want!r}", False
            continue
        message = _form(got, want)
        if message is None:
            exact = None if referee is None else referee[position]
            message = _values(got, want, exact, None, biggest)
            if message is not None and (want.is_floating_point() or want.is_complex()):
                moved = spread() if moved is None else moved
                if moved is not None and moved[position] is not None:
                    message = _values(got, want, exact, moved[position], biggest)
                    conditioned = message is None
            if message is None and zero_signs:
                message = _zeros(got, want, exact)
                if message is not None:
                    moved = spread() if moved is None else moved
                    if moved is not None and moved[position] is not None:
                        message = _zeros(got, want, exact, moved[position])
        if message is not None:
            return f"result {position}: {message}", False
    return None, conditioned


def _form(got: Any, want: torch.Tensor) -> str | None:
    if not isinstance(got, torch.Tensor):
        return f"a {type(got).__name__} instead of a tensor"
    if got.device != want.device:
        return f"on {got.device} instead of {want.device}"
    if got.dtype != want.dtype:
        return f"{got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    if want.numel() > 1 and _strides(got) != _strides(want):
        return f"strides {got.stride()} instead of {want.stride()} for {tuple(want.shape)}"
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _values(
    got: torch.Tensor, want: torch.Tensor, exact: Any, spread: torch.Tensor | None, biggest: float
) -> str | None:
    if want.numel() == 0:
        return None
    if not want.is_floating_point() and not want.is_complex():
        return None if torch.equal(got, want) else _worst(got, want, got != want)
    eps = torch.finfo(want.dtype).eps
    tiny = torch.finfo(want.dtype).tiny
    got, want = _real(got), _real(want)
    refereed = _is_referee(exact, want)
    exact = _real(exact) if refereed else want
    same = (got == want) | (got.isnan() & want.isnan())
    usable = exact.isfinite() & want.isfinite()
    error = torch.where(usable, (want - exact).abs(), 0.0)
    noise = NOISE * eps * biggest  # what is left where large terms cancel
    nearer = usable & ((got - exact).abs() <= error)  # than eager, which then has nothing to say
    if bool(error.max() > ABSURD * torch.where(usable, exact.abs(), 0.0).max()) and bool(error.max() > noise):
        # Another program than the one in question: a rounding decided a branch, or other memory was read.
        exact, usable, error = want, want.isfinite(), torch.zeros_like(error)
    allowed = 2 * error.max() + FLOOR * eps * exact.abs().clamp(min=tiny)
    if spread is not None:
        # Without a referee the distance is from eager's result, which has an error of its own; and one unit in the
        # last place of the largest number in sight is what the order of a sum is worth. Where the exact result ceases
        # to be a number, it says nothing of how far it moves.
        allowed = allowed + (2 if refereed else 3) * _real(spread).nan_to_num(0, 0, 0)
        allowed = allowed + (0.0 if refereed else eps * biggest)
    right = same | nearer | (usable & ((got - exact).abs() <= allowed))
    return None if bool(right.all()) else _worst(got, want, ~right, exact)


def _is_referee(exact: Any, want: torch.Tensor) -> bool:
    return isinstance(exact, torch.Tensor) and exact.shape[: want.dim()] == want.shape


def _zeros(got: torch.Tensor, want: torch.Tensor, exact: Any, spread: torch.Tensor | None = None) -> str | None:
    """What is wrong with the signs of zeros. A zero that large terms leave by cancelling has the sign of a rounding,
    and so has one that moves with the inputs; one that eager and the referee sign differently has none."""
    if want.numel() == 0 or not (want.is_floating_point() or want.is_complex()):
        return None
    tiny = torch.finfo(want.dtype).tiny
    got, want = _real(got), _real(want)
    signed = (got == 0) & (want == 0)
    if _is_referee(exact, want):
        exact = _real(exact)
        signed &= (exact.abs() < tiny) & (exact.signbit() == want.signbit())
    if spread is not None:
        signed &= _real(spread).nan_to_num(0, 0, 0) == 0
    wrong = signed & (got.signbit() != want.signbit())
    return f"the signs of zeros: {_worst(got, want, wrong)}" if bool(wrong.any()) else None


def apart(found: Sequence[Any], eager: Sequence[Any]) -> str | None:
    """What is wrong with which tensors share memory."""
    got, want = sharing(found), sharing(eager)
    return None if got == want else f"results and inputs share memory as {got}, with eager as {want}"


def sharing(tensors: Sequence[Any]) -> list[tuple[int, int]]:
    """For each the first that lies in the same memory, and how many bytes behind that it begins; what has no elements
    lies nowhere."""
    first: dict[int, tuple[int, int]] = {}
    found = []
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
            found.append((-1, 0))
            continue
        owner, begin = first.setdefault(tensor.untyped_storage().data_ptr(), (place, tensor.data_ptr()))
        found.append((owner, tensor.data_ptr() - begin))
    return found


def untouched(before: Sequence[Any], eager: Sequence[Any], found: Sequence[Any]) -> str | None:
    """What eager leaves as it was must be left, to the bit."""
    for place, (was, want, got) in enumerate(zip(before, eager, found, strict=True)):
        if identical(was, want) and not identical(was, got):
            return f"input {place} was written to, which eager leaves as it is"
    return None


def identical(a: Any, b: Any) -> bool:
    """Equal to the bit, up to which NaN it is."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and (a == b or (a != a and b != b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.layout is not torch.strided or a.is_quantized:
        return True
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.is_floating_point():
        return torch.equal(a, b)
    numbers = ~a.isnan()
    return torch.equal(numbers, ~b.isnan()) and bool(((a == b) & (a.signbit() == b.signbit()))[numbers].all())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)


def _worst(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor, exact: torch.Tensor | None = None) -> str:
    at = tuple(int(i) for i in wrong.nonzero()[0]) if wrong.dim() else ()
    text = f"{int(wrong.sum())} of {wrong.numel()} elements differ, first at {at}: {got[at].item()!r}"
    text += f", eager {want[at].item()!r}"
    return text if exact is None else f"{text}, referee {exact[at].item()!r}"


PATTERNS = 6


def nudged(narrow: torch.Tensor, wide: torch.Tensor, pattern: int) -> torch.Tensor:
    """`wide` with each element moved by one unit in the last place of `narrow`, up or down as the pattern has it."""
    if not narrow.is_floating_point() and not narrow.is_complex():
        return wide
    eps = torch.finfo(narrow.dtype).eps
    draw = torch.randint(0, 2, narrow.shape, generator=torch.Generator().manual_seed(pattern))
    signs = 2 * draw.to(narrow.device, torch.float64) - 1
    return narrow.detach().to(torch.complex128 if narrow.is_complex() else torch.float64) * (1 + eps * signs)


def is_narrow(dtype: torch.dtype) -> bool:
    return dtype in _NARROW
