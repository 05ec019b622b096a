"""Trials: reproductions are run in processes of their own, with a limit on their time, and their symptoms come back.

In: a `Reproduction`. Out: its `Symptom`. What was tried is written down in the folder, so that a search which was
stopped, and begins again, goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from litz.debug.reproduce import Symptom
from litz.debug.reproduction import Reproduction
from litz.debug.runner import Runner
from litz.source import source_digest

_PROCESSORS = 4  # that a trial keeps busy, more or less: kernels are built on all there are


class Trials:
    def __init__(self, folder: Path, limit: float, width: int | None = None):
        """`limit`: seconds of work after which a trial has no end. `width`: how many are tried side by side."""
        self.folder, self.limit = folder, limit
        self.run = 0  # not counting what was known
        folder.mkdir(parents=True, exist_ok=True)
        self._ledger = folder / "tried.jsonl"
        self._known = dict(self._read())
        usual = max(1, min(2, (os.cpu_count() or 1) // _PROCESSORS))
        self._runners = [Runner() for _ in range(width or usual)]

    @property
    def width(self) -> int:
        """How many are worth asking about at once."""
        return len(self._runners)

    def __enter__(self) -> Trials:
        for runner in self._runners:
            runner.begin()  # they have much to load, which takes as long as to read what is to be tried
        return self

    def __exit__(self, *_: Any) -> None:
        for runner in self._runners:
            runner.end()

    def __call__(self, reproduction: Reproduction, limit: float | None = None, again: bool = False) -> Symptom:
        """`limit`: less than the usual one, where that is known to be enough. `again`: with other options it will be
        tried again, for which its results in eager are kept."""
        return self.together([reproduction], limit, again)[0]

    def together(
        self, reproductions: list[Reproduction], limit: float | None = None, again: bool = False
    ) -> list[Symptom]:
        """Side by side, as far as there are processors: times mean nothing then."""
        limit = min(limit or self.limit, self.limit)
        texts = [reproduction.text() for reproduction in reproductions]
        keys = [blake2b(f"{source_digest()} {text}".encode(), digest_size=12).hexdigest() for text in texts]
        new = {key: place for place, key in enumerate(keys) if not self._is_known(key, limit)}
        for first in range(0, len(new), len(self._runners)):
            some = list(new.items())[first : first + len(self._runners)]
            for runner_number, (_, place) in enumerate(some):
                self._file(runner_number).write_text(texts[place])
            kept = [self._results_of(reproductions[place]) if again else None for _, place in some]
            found = self._run([(self._file(number), known, limit) for number, known in enumerate(kept)])
            for (key, _), symptom in zip(some, found, strict=True):
                self._known[key] = symptom, limit
                self.run += 1
                with open(self._ledger, "a") as ledger:
                    ledger.write(json.dumps([key, limit, asdict(symptom)]) + "\n")
        return [self._known[key][0] for key in keys]

    def _run(self, tasks: list[tuple[Path, Path | None, float]]) -> list[Symptom]:
        if len(tasks) == 1:
            return [self._runners[0].run(*tasks[0])]
        with ThreadPoolExecutor(len(tasks)) as pool:
            waiting = [pool.submit(runner.run, *task) for runner, task in zip(self._runners, tasks, strict=False)]
            try:
                return [one.result() for one in waiting]
            except BaseException:  # who asks is interrupted: nobody waits for the answers
                for runner in self._runners:
                    runner.kill()
                raise

    def _is_known(self, key: str, limit: float) -> bool:
        found, given = self._known.get(key, (None, 0.0))
        return found is not None and not (found.kind == "hang" and given < limit / 2)  # then it has not had its time

    def _file(self, number: int) -> Path:
        return self.folder / f"trial_{number}.py"

    def _read(self) -> Iterator[tuple[str, tuple[Symptom, float]]]:
        if not self._ledger.exists():
            return
        text = self._ledger.read_text()
        if text and not text.endswith("\n"):  # a search that was killed while it wrote
            text = text[: text.rfind("\n") + 1]
            self._ledger.write_text(text)
        for line in text.splitlines():
            row = json.loads(line)
            if len(row) != 3:
                continue  # by another version
            key, limit, found = row
            yield key, (Symptom(**{**found, "spent": tuple(found["spent"])}), limit)

    def _results_of(self, reproduction: Reproduction) -> Path:
        text = replace(reproduction, options={}).text()
        return self.folder / f"results_{blake2b(text.encode(), digest_size=6).hexdigest()}.pt"


__all__ = ["Trials"]
