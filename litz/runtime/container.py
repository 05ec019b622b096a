"""One value in one run of bytes, with what it takes to know that nothing of it was lost or changed.

    magic, format version (4 bytes), length of the head (8), head, blobs, digest of all before (32)

The head is JSON: the value as `encode.py` writes it, and the length of each blob. Blobs begin at multiples of 64 bytes,
so that a file can be mapped and tensors in it used where they lie.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from typing import Any, NamedTuple

from litz.runtime.encode import Unreadable, decode, encode

MAGIC = b"\x7fLITZ\r\n\0"
FORMAT = 1
ALIGNMENT = 64
_DIGEST = 32
_START = struct.Struct(f"<{len(MAGIC)}sIQ")


class Packed(NamedTuple):
    data: bytes
    places: dict[int, int]  # of the value's tensors, by `id`: where their memory begins


def pack(value: Any) -> bytes:
    return packed(value).data


def packed(value: Any) -> Packed:
    written, blobs = encode(value)
    head = json.dumps([[len(blob) for blob in blobs], written], separators=(",", ":")).encode()
    parts = [_START.pack(MAGIC, FORMAT, len(head)), head]
    size = sum(map(len, parts))
    places = []
    for blob in blobs:
        gap = -size % ALIGNMENT
        parts += [b"\0" * gap, blob]
        places.append(size + gap)
        size += gap + len(blob)
    body = b"".join(parts)
    data = body + blake2b(body, digest_size=_DIGEST).digest()
    return Packed(data, {tensor: places[number] for tensor, number in blobs.tensors.items()})


def unpack(data: bytes | memoryview) -> Any:
    """The value; `Unreadable`, before anything is made of it, where the bytes are not those that were written."""
    if len(data) < _START.size + _DIGEST or data[: len(MAGIC)] != MAGIC:
        raise Unreadable("it does not begin as something that Litz has written")
    _, version, length = _START.unpack_from(data)
    if version != FORMAT:
        raise Unreadable(f"it is written in format {version}, and this is format {FORMAT}")
    view = memoryview(data)
    if blake2b(view[:-_DIGEST], digest_size=_DIGEST).digest() != view[-_DIGEST:]:
        raise Unreadable("it is damaged: what it says of itself is not what it is")
    at = _START.size + length
    try:
        lengths, written = json.loads(bytes(view[_START.size : at]))
    except (ValueError, TypeError, RecursionError) as error:  # written so by somebody else
        raise Unreadable(f"its head is none of Litz's: {type(error).__name__}: {error}") from error
    blobs = []
    for size in lengths:
        at += -at % ALIGNMENT
        blobs.append(view[at : at + size])
        at += size
    return decode(written, blobs)


__all__ = ["ALIGNMENT", "FORMAT", "MAGIC", "Packed", "pack", "packed", "unpack"]
