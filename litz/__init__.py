"""Litz compiles PyTorch programs: `torch.compile(model, backend="litz")` or `litz.compile(model)`.

Importing this package loads nothing heavy: each name is fetched from its module when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from litz.context import Report, last_report
    from litz.errors import (
        CallError,
        CaptureError,
        CompileError,
        LitzError,
        LoweringError,
        OptionError,
        ParseError,
        UnsupportedPlatform,
        VerifyError,
    )
    from litz.frontdoor import compile
    from litz.options import Options

_HOME = {
    "compile": "litz.frontdoor",
    "last_report": "litz.context",
    "Report": "litz.context",
    "Options": "litz.options",
    "LitzError": "litz.errors",
    "OptionError": "litz.errors",
    "UnsupportedPlatform": "litz.errors",
    "CaptureError": "litz.errors",
    "LoweringError": "litz.errors",
    "VerifyError": "litz.errors",
    "ParseError": "litz.errors",
    "CompileError": "litz.errors",
    "CallError": "litz.errors",
}

__all__ = [
    "CallError",
    "CaptureError",
    "CompileError",
    "LitzError",
    "LoweringError",
    "OptionError",
    "Options",
    "ParseError",
    "Report",
    "UnsupportedPlatform",
    "VerifyError",
    "__version__",
    "compile",
    "last_report",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'litz' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
