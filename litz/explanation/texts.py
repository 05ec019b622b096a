"""`Texts`: many texts that share most of their lines, each line kept once."""

from __future__ import annotations


class Texts:
    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._texts: dict[tuple[int, ...], int] = {}

    def add(self, text: str) -> int:
        """The number of the text; equal ones have the same."""
        numbers = tuple(self._lines.setdefault(line, len(self._lines)) for line in text.rstrip("\n").split("\n"))
        return self._texts.setdefault(numbers, len(self._texts))

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    @property
    def texts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._texts)


__all__ = ["Texts"]
