"""Numbers as people read them."""

from __future__ import annotations

_STEPS = ("", "K", "M", "G", "T")


def in_bytes(count: float) -> str:
    return f"{_short(count, 1024)}iB" if abs(count) >= 1024 else f"{count:.0f} B"


def in_flops(count: float) -> str:
    return _short(count, 1000)


def in_time(microseconds: float | None) -> str:
    if microseconds is None:
        return "–"
    for limit, scale, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{microseconds / scale:.3g} {unit}"
    return f"{microseconds / 1e6:.3g} s"


def _short(count: float, base: int) -> str:
    step = 0
    while abs(count) >= base and step < len(_STEPS) - 1:
        count /= base
        step += 1
    number = f"{count:.0f}" if step == 0 or abs(count) >= 100 else f"{count:.1f}"
    return f"{number} {_STEPS[step]}".rstrip()


__all__ = ["in_bytes", "in_flops", "in_time"]
