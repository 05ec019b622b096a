"""The persistent cache: values on disk, found again by other processes.

In: a folder. Out: `Cache`: `load(kind, key)` gives what was stored, or None; `store(kind, key, value, entries)` keeps
it.

A value is a file, complete or absent: it is written beside its place and moved there, so processes need no locks, and
one that is killed leaves nothing but a file that nobody reads. A file that is not what was written is deleted and
counts as absent. Beyond a number of bytes the least recently used go. What is wrong with the folder (it cannot be
written, the disk is full) is said once, and the process goes on without.

Object code is among the values: whoever can write to the folder can have his code run. So a folder that others may
write to is refused.
"""

from __future__ import annotations

import json
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from litz.errors import tell
from litz.runtime.container import pack, unpack
from litz.runtime.encode import Unreadable

MOST_BYTES = 4 << 30
OPERATOR = "operator"
KINDS = ("function", "backward", "kernel", "trial", OPERATOR)
_VERSION = "1"  # of the folder's own layout
_LEFT_BEHIND = 3600.0  # seconds after which a file that was never moved to its place is nobody's
_FRESH = 600.0  # seconds during which another use of a value need not be noted
_LONGEST = 8_000  # characters of an entry that are kept to be read
_COMPARED = 64  # values, the latest, that a miss is compared with


class Difference(NamedTuple):
    """An entry of a key, as it was where a value was stored, and as it is now; None where there is none."""

    entry: str
    stored: str | None
    wanted: str | None

    def __str__(self) -> str:
        """The texts from where they part."""
        before, now = self.stored or "", self.wanted or ""
        same = next((i for i, (a, b) in enumerate(zip(before, now)) if a != b), min(len(before), len(now)))
        return f"{self.entry}: {_from(before, same)} -> {_from(now, same)}"


def _from(text: str, same: int) -> str:
    start = max(0, same - 20) if same > 40 else 0
    cut = text[start : start + 80].replace("\n", "; ")
    return ("…" if start else "") + cut + ("…" if start + 80 < len(text) else "") or "nothing"


class Found(NamedTuple):
    """A file of the cache."""

    path: Path
    kind: str
    key: str
    bytes: int
    used: float  # seconds, as of the file system
    made: float


@dataclass(frozen=True)
class Cache:
    folder: Path
    most_bytes: int = MOST_BYTES

    def load(self, kind: str, key: str) -> Any | None:
        path = self.path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            value = unpack(data)
        except Unreadable:
            _discard(path)  # it is made anew, and stored in its place
            return None
        note_use(path)
        return value

    def store(self, kind: str, key: str, value: Any, entries: Mapping[str, str] | None = None) -> None:
        """`Unwritable` where the value has no spelling; all else that may fail is said, and forgotten. `entries`, which
        the key is made of, are kept for `differences`."""
        data = pack(value)
        path = self.path(kind, key)
        try:
            _make_folder(path.parent)
            if entries:
                write_whole(path.with_suffix(".json"), json.dumps(_shortened(entries), indent=1).encode())
            write_whole(path, data)
        except OSError as error:
            _say_once(f"the cache in {self.folder} cannot be written to, and is not used: {error}")
            return
        if _CHANCE.random() < 1 / 32:
            self.trim()

    def differences(self, kind: str, entries: Mapping[str, str]) -> list[Difference]:
        """Why there is nothing stored for these entries: how the nearest of the latest values differs."""
        return _nearest(_shortened(entries), sorted(self.files(kind), key=lambda found: -found.used))

    def differences_among(self, asked: Found, others: Sequence[Found]) -> list[Difference]:
        return _nearest(_entries_beside(asked.path), others)

    def path(self, kind: str, key: str) -> Path:
        if kind == OPERATOR:
            return self.operators / f"{key}.litz"
        return self.folder / _VERSION / kind / key[:2] / f"{key[2:]}.litz"

    @property
    def operators(self) -> Path:
        """Code of operators called one by one; descriptions beside it say which is for what."""
        return self.folder / "eager"

    def files(self, kind: str = "*") -> Iterator[Found]:
        paths = list((self.folder / _VERSION).glob(f"{kind}/*/*.litz"))
        paths += self.operators.glob("*.litz") if kind in ("*", OPERATOR) else ()
        for path in paths:
            try:
                about = path.stat()
            except OSError:
                continue  # another process has deleted it
            is_operator = path.parent == self.operators
            key = path.stem if is_operator else path.parts[-2] + path.stem
            found = OPERATOR if is_operator else path.parts[-3]
            yield Found(path, found, key, about.st_size, about.st_mtime, _made(path, about))

    def trim(self) -> None:
        """Delete the least recently used until what is left fits, and what killed processes left behind."""
        files = sorted(self.files(), key=lambda found: found.used)
        excess = sum(found.bytes for found in files) - self.most_bytes
        for found in files:
            if excess <= 0:
                break
            _delete(found.path)
            excess -= found.bytes
        for path in (self.folder / _VERSION).glob("*/*/*.part"):
            try:
                if time.time() - path.stat().st_mtime > _LEFT_BEHIND:
                    path.unlink(missing_ok=True)
            except OSError:
                continue

    def export(self, file: Path) -> int:
        """All values but those of operators, as one file; how many."""
        files = [found for found in self.files() if found.kind != OPERATOR]  # useless without their descriptions
        held = []
        for found in files:
            beside = found.path.with_suffix(".json")
            entries = beside.read_bytes() if beside.exists() else b""
            held.append((found.kind, found.key, found.path.read_bytes(), entries))
        write_whole(file, pack(tuple(held)))
        return len(held)

    def take_over(self, file: Path) -> int:
        """The values of a file that `export` wrote; how many. `Unreadable` where it is damaged."""
        held = unpack(file.read_bytes())
        if not isinstance(held, tuple) or not all(isinstance(one, tuple) and len(one) == 4 for one in held):
            raise Unreadable(f"{file} is not what `export` writes")
        for kind, key, data, beside in held:
            if kind not in KINDS or not key.replace("-", "").isalnum():
                raise Unreadable(f"{kind}/{key} is no value of a cache")
            unpack(data)
            path = self.path(kind, key)
            _make_folder(path.parent)
            if beside:
                write_whole(path.with_suffix(".json"), beside)
            write_whole(path, data)
        return len(held)

    def clear(self) -> int:
        """Delete everything; how many values that was."""
        files = list(self.files())
        for found in files:
            _delete(found.path)
        return len(files)


def _nearest(wanted: Mapping[str, str], others: Sequence[Found]) -> list[Difference]:
    compared = (_apart(_entries_beside(found.path), wanted) for found in others[:_COMPARED])
    return min((apart for apart in compared if apart), key=len, default=[])


def _made(path: Path, about: os.stat_result) -> float:
    """When it was stored: what lies beside it is not touched when it is used."""
    try:
        return path.with_suffix(".json").stat().st_mtime
    except OSError:
        return about.st_mtime


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)


def _shortened(entries: Mapping[str, str]) -> dict[str, str]:
    """Long texts by their beginning, and a digest that tells them apart."""
    return {name: text if len(text) <= _LONGEST else _beginning(text) for name, text in entries.items()}


def _beginning(text: str) -> str:
    return f"{text[:_LONGEST]}… (digest {blake2b(text.encode(), digest_size=8).hexdigest()})"


def _entries_beside(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _apart(stored: Mapping[str, str], wanted: Mapping[str, str]) -> list[Difference]:
    if not stored:
        return []
    names = dict.fromkeys((*wanted, *stored))
    return [Difference(n, stored.get(n), wanted.get(n)) for n in names if stored.get(n) != wanted.get(n)]


def _make_folder(folder: Path) -> None:
    """For its owner alone, and so each folder above it that is not there yet."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _discard(path: Path) -> None:
    with suppress(OSError):  # of a folder that can only be read
        path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """The file, complete or not at all."""
    handle, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def note_use(path: Path) -> None:
    try:
        if time.time() - path.stat().st_mtime > _FRESH:
            os.utime(path)
    except OSError:
        pass  # a folder that can only be read is of use too


# -- which folder ----------------------------------------------------------------------------------
def cache_of(environ: Mapping[str, str]) -> Cache | None:
    """The cache in `LITZ_CACHE_DIR`, or the user's own; none with `LITZ_CACHE=0`."""
    if environ.get("LITZ_CACHE") == "0":
        return None
    try:
        folder = _folder(environ)
    except RuntimeError as error:  # there is no home
        _say_once(f"there is no cache: {error} (`LITZ_CACHE_DIR` names a folder for one)")
        return None
    try:
        _make_folder(folder)
        why = _not_ours(folder)
    except OSError as error:
        why = str(error)
    if why is not None:
        _say_once(f"the cache in {folder} is not used: {why}")
        return None
    return Cache(folder)


def _folder(environ: Mapping[str, str]) -> Path:
    named = environ.get("LITZ_CACHE_DIR")
    return Path(named).expanduser() if named else Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "litz"


def _not_ours(folder: Path) -> str | None:
    about = folder.stat()
    if not hasattr(os, "getuid"):
        return None
    if about.st_uid not in (os.getuid(), 0):
        return "it belongs to someone else, whose code would be run"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it, and what they write would be run as code (`chmod go-w` makes it yours)"
    return None


_CHANCE = random.Random()  # not the one that users seed
_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        tell(text)


__all__ = ["MOST_BYTES", "Cache", "Difference", "Found", "cache_of", "note_use", "write_whole"]
