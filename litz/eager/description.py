"""The description of an operator: a JSON file beside the object code that says for which arguments there is some.

    {"operator": "aten::gelu", "device": "cpu", "entries": [
      {"arguments": [{"kind": "tensor", "dtype": "f32", "sizes": [8, 64], "strides": [64, 1]}, …],
       "made_for": "…", "file": "….litz"}, …]}

`made_for` is a digest of the versions, the processor and the options: entries of others are left alone. A description
is replaced as a whole, under a lock; one that is damaged counts as empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litz.codegen.llvm.boxed import KINDS, Given, TensorForm
from litz.runtime.cache import write_whole


@dataclass(frozen=True)
class Entry:
    given: tuple[Given, ...]
    made_for: str
    file: str


@dataclass(frozen=True)
class Description:
    folder: Path
    operator: str
    device: str = "cpu"

    @property
    def path(self) -> Path:
        return self.folder / f"{self.operator.replace('::', '.')}.{self.device}.json"

    def entries(self) -> list[Entry]:
        try:
            found = json.loads(self.path.read_text())
            return [_entry(written) for written in found["entries"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def add(self, entry: Entry) -> None:
        """In place of one for the same arguments."""
        with self._locked():
            others = [e for e in self.entries() if (e.given, e.made_for) != (entry.given, entry.made_for)]
            kept = [e for e in others if (self.folder / e.file).exists()]  # others were deleted to make room
            written = [_written(e) for e in [*kept, entry]]
            whole = {"operator": self.operator, "device": self.device, "entries": written}
            write_whole(self.path, (json.dumps(whole, indent=1) + "\n").encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # which not every system has, and importing this must not fail there

        with open(self.folder / f"{self.path.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _written(entry: Entry) -> dict[str, Any]:
    return {"arguments": list(map(_argument, entry.given)), "made_for": entry.made_for, "file": entry.file}


def _argument(given: Given) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": given.kind, "optional": given.optional}
    if isinstance(given.value, TensorForm):
        form = given.value
        return {**found, "dtype": form.dtype, "sizes": list(form.sizes), "strides": list(form.strides)}
    if isinstance(given.value, float):
        return {**found, "value": given.value.hex()}
    return {**found, "value": list(given.value) if isinstance(given.value, tuple) else given.value}


def _entry(written: dict[str, Any]) -> Entry:
    file = written["file"]
    if Path(file).name != file:
        raise ValueError("code lies beside its description")
    return Entry(tuple(map(_given, written["arguments"])), str(written["made_for"]), file)


def _given(written: dict[str, Any]) -> Given:
    kind, optional = written["kind"], bool(written["optional"])
    if kind not in KINDS:
        raise ValueError(kind)
    if "dtype" in written:
        form = TensorForm(written["dtype"], tuple(map(int, written["sizes"])), tuple(map(int, written["strides"])))
        return Given(kind, optional, form)
    value = written["value"]
    if kind == "float" and value is not None:
        value = float.fromhex(value)
    return Given(kind, optional, tuple(map(int, value)) if isinstance(value, list) else value)


__all__ = ["Description", "Entry"]
