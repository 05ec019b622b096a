"""Operators on which a comparison with eager says nothing about Litz, each with its reason.

`UNINITIALISED`: results whose values eager leaves undefined; their form is compared. `unwritten`: the same of some.
`at_fault`: eager itself is wrong. `DISAGREE`: eager and tracing themselves disagree; `IN_FORWARD_MODE`: on tangents.
The reproducers need no Litz; `test_known.py` runs them.
"""

from __future__ import annotations

from torch.utils import _pytree as pytree

from tests.opinfo.samples import Case

UNINITIALISED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip

# Results that say where random numbers begin: only if there are any, and the last of flash attention's never.
_BEGINNINGS = {"torch.ops.aten._efficient_attention_forward": (2, 3), "torch.ops.aten._flash_attention_forward": (2, 3)}
_NEVER_WRITTEN = {"torch.ops.aten._flash_attention_forward": (3,)}


def unwritten(case: Case) -> tuple[int, ...]:
    """Results that eager's kernels allocate and do not write to."""
    kwargs = pytree.tree_unflatten(case.leaves, case.spec)[1]
    return (_NEVER_WRITTEN if kwargs.get("dropout_p") else _BEGINNINGS).get(case.operator, ())


# Sums of cosines with coefficients of order 1, which cancel at the window's ends: rounding there is of that order,
# and there are no inputs whose last places would show it.
OF_ORDER_ONE = "signal.windows."

# The CUDA just-in-time kernels.
NOT_ON_CPU = {
    "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
    "jiterator_binary_return_by_ref", "jiterator_unary",
}  # fmt: skip

# Operators whose zeros eager signs as it happens.
ZERO_SIGNS: dict[str, str] = {
    "nn.functional.softshrink": "what it shrinks to nothing is 0.0 in vectors, and keeps its sign behind the last",
}

_OWN = "the schema promises results of their own; eager's kernel gives views of one, which autograd may not know of"
# Operators of whose results eager does not say whether they share memory.
SHARING: dict[str, str] = {
    "unsafe_chunk": _OWN,
    "unsafe_split": _OWN,
    "nn.functional.dropout": "traced under autograd it copies where it does nothing, which eager does not",
}

_GAPS = "eager's kernel for GPUs takes rows to be as long as they are apart, and writes over those behind"


def at_fault(case: Case) -> str | None:
    """Why what eager gives is not what the operator says it gives, if that is known."""
    if case.device != "cuda" or pytree.tree_unflatten(case.leaves, case.spec)[1].get("max_norm") is None:
        return None
    tables = [t for t in (case.leaves[i] for i in case.positions) if t.dim() == 2 and t.is_floating_point()]
    return _GAPS if any(not t.is_contiguous() for t in tables) else None


_OUT = "an out= of another dtype: eager refuses it, torch's fake tensors accept it"
# Operator and sample -> reason.
DISAGREE: dict[str, str] = {
    "aminmax e3": _OUT,
    "complex e2": _OUT,
    "multinomial e2": _OUT,
}

IN_FORWARD_MODE: dict[str, str] = {
    "addcdiv 7": "Dynamo makes a product with a number of `value`; of tensors without dimensions torch's tangent "
    "of such a product is float64, whatever the tensors are",
}
