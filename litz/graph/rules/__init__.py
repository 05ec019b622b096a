"""The built-in rules: one file a subject, and here which of them run where."""

from __future__ import annotations

from litz.graph.rewrite import Rules
from litz.graph.rules.attention import ATTENTION
from litz.graph.rules.noop import NOOP

JOINT: Rules = ATTENTION + NOOP
POST_GRAD: Rules = NOOP

SUBJECTS: dict[str, Rules] = {"attention": ATTENTION, "noop": NOOP}
