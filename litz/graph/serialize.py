"""Patterns as a module: plain Python that rebuilds them without tracing.

In: rules, as a rule ones that are made from examples. Out: `litz.save_patterns(path, rules)`, a file with a table
`PATTERNS`, rule's name → pattern. `python -m litz.graph.serialize` writes the built-in rules' own,
`rules/serialized.py`; with `--check` it only says whether that is up to date.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from litz.errors import RuleError
from litz.graph.pattern import source
from litz.graph.rewrite import Rule

FILE = Path(__file__).parent / "rules" / "serialized.py"

_HEADER = '''"""Patterns of the rules made from examples. Written by `{writer}`; do not edit."""

# ruff: noqa
from __future__ import annotations

import operator
from typing import Any

import torch

from litz.graph.pattern import ANY, INSIDE, Arg, Call, ListOf, Outputs, Wild, call

aten = torch.ops.aten

PATTERNS: dict[str, Any] = {{}}
'''
_OWN = "python -m litz.graph.serialize"


def save_patterns(path: str | Path, rules: Sequence[Rule]) -> None:
    """Writes the patterns of these rules to a module, whose `PATTERNS[name]` goes to `register_replacement(pattern=…)`:
    the rule is then registered without tracing."""
    Path(path).write_text(text_of(rules, "litz.save_patterns"))


def text_of(rules: Sequence[Rule], writer: str = _OWN) -> str:
    """The module's text."""
    twice = [name for name, count in Counter(rule.name for rule in rules).items() if count > 1]
    if twice:
        raise RuleError(f"{twice[0]!r} is the name of several rules", hint="give each a name of its own: name=")
    return _HEADER.format(writer=writer) + "".join(map(_entry, rules))


def _entry(rule: Rule) -> str:
    try:
        return f"\nPATTERNS[{rule.name!r}] = {source(rule.pattern)}\n"
    except ValueError as error:
        place = f"{rule.file}:{rule.line}"
        raise RuleError(f"the pattern of the rule {rule.name!r} cannot be saved: {error}", source=place) from error


def current() -> str:
    """The text as tracing makes it now."""
    from litz.graph.rules.activation import build

    return text_of(build({}))


def main() -> int:
    if not FILE.exists():
        FILE.write_text(_HEADER.format(writer=_OWN))
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
