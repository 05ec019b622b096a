"""Litz compiles PyTorch programs: `torch.compile(model, backend="litz")` or `litz.compile(model)`.

Importing this package loads nothing heavy: each name is fetched from its module when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from litz.aot.compile import aot_compile
    from litz.aot.load import Loaded, load
    from litz.debug.debug_compile import debug_compile
    from litz.debug.explain_match import explain_match
    from litz.debug.pareto import Pareto, pareto
    from litz.debug.ts_compile import ts_compile
    from litz.errors import (
        CacheError,
        CallError,
        CaptureError,
        CompileError,
        LitzError,
        LoweringError,
        OptionError,
        ParseError,
        RuleError,
        UnsupportedPlatform,
        VerifyError,
    )
    from litz.explanation.explain import explain
    from litz.explanation.explanation import Explanation
    from litz.frontdoor import compile, jvp
    from litz.graph.partition.pytorch_convention import min_cut_rematerialization_partition
    from litz.graph.replacement import register_replacement
    from litz.graph.rewrite import rule
    from litz.graph.serialize import save_patterns
    from litz.options import Options
    from litz.report import Report, last_report, reports

_HOME = {
    "aot_compile": "litz.aot.compile",
    "load": "litz.aot.load",
    "Loaded": "litz.aot.load",
    "compile": "litz.frontdoor",
    "jvp": "litz.frontdoor",
    "debug_compile": "litz.debug.debug_compile",
    "explain": "litz.explanation.explain",
    "Explanation": "litz.explanation.explanation",
    "explain_match": "litz.debug.explain_match",
    "pareto": "litz.debug.pareto",
    "Pareto": "litz.debug.pareto",
    "min_cut_rematerialization_partition": "litz.graph.partition.pytorch_convention",
    "ts_compile": "litz.debug.ts_compile",
    "register_replacement": "litz.graph.replacement",
    "rule": "litz.graph.rewrite",
    "save_patterns": "litz.graph.serialize",
    "last_report": "litz.report",
    "reports": "litz.report",
    "Report": "litz.report",
    "Options": "litz.options",
    "LitzError": "litz.errors",
    "OptionError": "litz.errors",
    "UnsupportedPlatform": "litz.errors",
    "CaptureError": "litz.errors",
    "LoweringError": "litz.errors",
    "VerifyError": "litz.errors",
    "ParseError": "litz.errors",
    "RuleError": "litz.errors",
    "CompileError": "litz.errors",
    "CallError": "litz.errors",
    "CacheError": "litz.errors",
}

__all__ = [
    "CacheError",
    "CallError",
    "CaptureError",
    "CompileError",
    "Explanation",
    "LitzError",
    "Loaded",
    "LoweringError",
    "OptionError",
    "Options",
    "Pareto",
    "ParseError",
    "Report",
    "RuleError",
    "UnsupportedPlatform",
    "VerifyError",
    "__version__",
    "aot_compile",
    "compile",
    "debug_compile",
    "eager",
    "explain",
    "explain_match",
    "jvp",
    "last_report",
    "load",
    "min_cut_rematerialization_partition",
    "pareto",
    "register_replacement",
    "reports",
    "rule",
    "save_patterns",
    "ts_compile",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "eager":
        return import_module("litz.eager")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'litz' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
