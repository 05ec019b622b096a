"""What a region under `torch.utils.checkpoint` keeps after all: the user's own policy.

In: the graph of a region, with the function of contexts that the user gave to `checkpoint`, if any. Out: a function of
one call that says whether its result is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from litz.compat import selective_context
from litz.errors import CaptureError

Policy = Callable[[Any, Any, Sequence[Any], Mapping[str, Any]], bool]  # operator, result, arguments
_CONTEXTS = "_checkpoint_context_fn"  # where Dynamo puts the user's function in the `meta` of a region's graph
_NEVER_ASKED = frozenset({torch.ops.aten.detach.default})  # eager's mode does not ask about it


def has_policy(region: fx.GraphModule) -> bool:
    return _CONTEXTS in region.meta


def contexts_of(region: fx.GraphModule) -> Callable[[], Any] | None:
    """The user's own function, if there is one."""
    return region.meta.get(_CONTEXTS)


def policy_of(region: fx.GraphModule) -> Policy | None:
    """Of `create_selective_checkpoint_contexts`; other contexts are the user's own code, which runs in eager alone."""
    if not has_policy(region):
        return None
    from torch.utils.checkpoint import CheckpointPolicy

    mode, _ = region.meta[_CONTEXTS]()
    asked = getattr(mode, "policy_fn", None)
    if asked is None:
        raise CaptureError(
            f"a checkpoint enters a {type(mode).__name__}, which a trace cannot follow",
            hint="make its contexts with torch.utils.checkpoint.create_selective_checkpoint_contexts",
        )

    def policy(operator: Any, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if operator in _NEVER_ASKED:
            return False
        said = asked(selective_context(result), operator, *args, **kwargs)
        return said is True or said in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)

    return policy


__all__ = ["Policy", "contexts_of", "has_policy", "policy_of"]
