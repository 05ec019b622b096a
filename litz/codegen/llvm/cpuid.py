"""Whether this processor has what code needs, asked by the code itself: x86 tells it by the instruction `cpuid`.

In: names of features, as LLVM spells them. Out: a value of type i1.
"""

from __future__ import annotations

from collections.abc import Iterable

from litz.codegen.llvm.writer import Writer

_EAX, _EBX, _ECX, _EDX = range(4)
# (leaf, its part, register) -> bits. What generated code never uses (timers, cache control) is not among them.
_BITS: dict[tuple[int, int, int], dict[str, int]] = {
    (1, 0, _ECX): {
        "sse3": 0, "pclmul": 1, "ssse3": 9, "fma": 12, "cx16": 13, "sse4.1": 19, "sse4.2": 20, "movbe": 22,
        "popcnt": 23, "aes": 25, "xsave": 26, "avx": 28, "f16c": 29,
    },
    (1, 0, _EDX): {"cx8": 8, "cmov": 15, "mmx": 23, "fxsr": 24, "sse": 25, "sse2": 26},
    (7, 0, _EBX): {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19, "avx512ifma": 21, "avx512cd": 28,
        "sha": 29, "avx512bw": 30, "avx512vl": 31,
    },
    (7, 0, _ECX): {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512vnni": 11,
        "avx512bitalg": 12, "avx512vpopcntdq": 14,
    },
    (7, 0, _EDX): {"avx512vp2intersect": 8, "amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25},
    (7, 1, _EAX): {"sha512": 0, "avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    (0x80000001, 0, _ECX): {"sahf": 0, "lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21},
}  # fmt: skip
_OS_SAVES = 27  # bit of (1, 0, ECX): `xgetbv` tells which registers the system keeps for a thread
# Registers that the system must keep, as bits of `xgetbv`: 256 bits, 512 bits and masks, tiles.
_KEPT = (("avx", 0x06), ("avx512f", 0xE6), ("amx-tile", 0x60000))


def has_all(w: Writer, features: Iterable[str]) -> str:
    wanted = set(features)
    masks = {place: _mask(bits, wanted) for place, bits in _BITS.items() if _mask(bits, wanted)}
    kept = 0
    for feature, mask in _KEPT:
        kept |= mask if feature in wanted else 0
    found = "true"
    if kept:
        masks[1, 0, _ECX] = masks.get((1, 0, _ECX), 0) | 1 << _OS_SAVES
    highest = max((leaf for leaf, _, _ in masks if leaf < 0x80000000), default=0)
    if highest:
        found = _and(w, found, w.let(f"icmp uge i32 {_cpuid(w, 0, 0, _EAX)}, {highest}"))
    for (leaf, part, register), mask in masks.items():
        has = w.let(f"and i32 {_cpuid(w, leaf, part, register)}, {mask}")
        found = _and(w, found, w.let(f"icmp eq i32 {has}, {mask}"))
    return _and_kept(w, found, kept) if kept else found


def _and_kept(w: Writer, found: str, kept: int) -> str:
    """`xgetbv` is an instruction only where the system saves more than it always has."""
    place = w.slot("i32", 4)
    w.emit(f"store i32 0, ptr {place}")
    with w.when(found):
        form = "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"
        asked = w.let(f'call {{ i32, i32 }} asm sideeffect "xgetbv", "{form}"(i32 0)')
        w.emit(f"store i32 {w.let(f'extractvalue {{ i32, i32 }} {asked}, 0')}, ptr {place}")
    saved = w.let(f"and i32 {w.let(f'load i32, ptr {place}')}, {kept}")
    return _and(w, found, w.let(f"icmp eq i32 {saved}, {kept}"))


def _mask(bits: dict[str, int], wanted: set[str]) -> int:
    return sum(1 << bit for name, bit in bits.items() if name in wanted)


def _and(w: Writer, a: str, b: str) -> str:
    return b if a == "true" else w.let(f"and i1 {a}, {b}")


def _cpuid(w: Writer, leaf: int, part: int, register: int) -> str:
    form = "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"
    found = w.let(f'call {{ i32, i32, i32, i32 }} asm sideeffect "cpuid", "{form}"(i32 {leaf}, i32 {part})')
    return w.let(f"extractvalue {{ i32, i32, i32, i32 }} {found}, {register}")


__all__ = ["has_all"]
