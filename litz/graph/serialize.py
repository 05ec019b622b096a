"""`python -m litz.graph.serialize`: writes the traced patterns of the built-in rules to a module.

In: the rules that are made from examples. Out: `rules/serialized.py`, plain Python that rebuilds their patterns
without tracing. `--check` only says whether the file is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from litz.graph.pattern import source
from litz.graph.rewrite import Rules

FILE = Path(__file__).parent / "rules" / "serialized.py"

_HEADER = '''"""Patterns of the rules made from examples. Written by `python -m litz.graph.serialize`; do not edit."""

# ruff: noqa
from __future__ import annotations

import operator
from typing import Any

import torch

from litz.graph.pattern import ANY, INSIDE, Arg, Call, ListOf, Outputs, Wild, call

aten = torch.ops.aten

PATTERNS: dict[str, Any] = {}
'''


def text_of(rules: Rules) -> str:
    """The module's text."""
    return _HEADER + "".join(f"\nPATTERNS[{rule.name!r}] = {source(rule.pattern)}\n" for rule in rules)


def current() -> str:
    """The text as tracing makes it now."""
    from litz.graph.rules.activation import build

    return text_of(build({}))


def main() -> int:
    if not FILE.exists():
        FILE.write_text(_HEADER)
    text = current()
    if "--check" in sys.argv:
        stale = FILE.read_text() != text
        print(f"{FILE} is {'stale: run python -m litz.graph.serialize' if stale else 'up to date'}")
        return int(stale)
    FILE.write_text(text)
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
