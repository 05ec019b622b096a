"""What a kernel may find wrong with the data it is given, and what eager raises then."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    code: int  # what native code writes down
    error: type[Exception]
    message: str


FAULTS = {
    "index": Fault(1, IndexError, "index out of range in self"),
    "place": Fault(2, RuntimeError, "index out of bounds"),  # of a gather or a scatter
    "zero": Fault(3, RuntimeError, "ZeroDivisionError"),  # a whole number divided by it
    "probability": Fault(4, RuntimeError, "all elements of input and target should be between 0 and 1"),
}
LAST_FAULT = max(fault.code for fault in FAULTS.values())


def raised_for(code: int) -> Exception | None:
    return next((fault.error(fault.message) for fault in FAULTS.values() if fault.code == code), None)


__all__ = ["FAULTS", "Fault", "LAST_FAULT", "raised_for"]
