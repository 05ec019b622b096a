"""What a compile ends in: native programs as plain data.

In: a rendered program and its object code. Out: an `Artifact`, frozen; and `Compiled`, all of a captured function.
Nothing in them is a function of this process, so they can be written to disk (`encode.py`), carried to another process
and loaded there (`executable.py` runs them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from litz.codegen.gpu_code import GpuCode
from litz.codegen.plan import HostPlan
from litz.graph.recipe import Recipe
from litz.graph.signature import Signature, Training
from litz.loop.formula import Formula
from litz.ops.held import Held, InPanels
from litz.report import Built, Told
from litz.runtime.in_panels import in_panels
from litz.target import Machine


@dataclass(frozen=True)
class Artifact:
    plan: HostPlan
    objects: tuple[bytes, ...]  # object code: the kernels, each in a file of its own, then the host functions
    # The plan's last inputs; `with_constants` puts tensors in for all.
    constants: tuple[torch.Tensor | Held | InPanels, ...]
    target: Machine
    built: Built  # what the report says of it
    kernels: tuple[GpuCode, ...] = ()  # where they are a GPU's: in the order in which host functions number them

    def private_outputs(self) -> frozenset[int]:
        """Outputs whose memory nobody else has."""
        return self.plan.private_outputs()

    def with_constants(self, values: Sequence[torch.Tensor]) -> Artifact:
        """`values`: what the recipe gives, in its order."""

        def value(constant: torch.Tensor | Held | InPanels) -> torch.Tensor:
            if isinstance(constant, InPanels):
                return in_panels(values[constant.number], constant)
            return values[constant.number] if isinstance(constant, Held) else constant

        return replace(self, constants=tuple(map(value, self.constants)))


@dataclass(frozen=True)
class Compiled:
    """A captured function: its forward, and what it takes to call it as the user's own. A backward is an artefact by
    itself, one for each choice of results that are used."""

    signature: Signature
    forward: Artifact
    training: Training | None = None
    recipe: Recipe | None = None  # where it is frozen: how its constants come about, and which arguments are left


@dataclass(frozen=True)
class Kept:
    """A captured function as it is kept for other processes: `answers` are what was found to hold of the sizes that
    vary, and must hold wherever it is used."""

    compiled: Compiled
    answers: tuple[Formula, ...]
    told: Told


__all__ = ["Artifact", "Compiled", "Kept"]
