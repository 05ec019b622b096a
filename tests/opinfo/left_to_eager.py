"""What of the operator database may be left to eager, each entry with its reason; anything else left to eager fails.

In: an operator, the kind of run (see `LEFT`) and a result. Out: what is wrong with how it was run, or None. An entry
that is no longer needed fails as well, so that the list only ever gets shorter.
"""

from __future__ import annotations

from tests.opinfo.check import Result

_DYNAMO = "Dynamo makes no graph of it: its result's size depends on data, or Python looks at a value"
_SPARSE = "sparse tensors are not compiled"
_READ_AS = "its result is memory of an input, read as another type, and autograd's record of that cannot be made anew"

# Operators by the kind of run: "" is inference, "grad" results and gradients, "symbolic" one program for many sizes.
LEFT: dict[str, dict[str, str]] = {
    "": {
        "allclose": _DYNAMO,
        "argwhere": _DYNAMO,
        "bincount": _DYNAMO,
        "combinations": _DYNAMO,
        "corrcoef": _DYNAMO,
        "cov": _DYNAMO,
        "equal": _DYNAMO,
        "item": _DYNAMO,
        "linalg.lstsq": _DYNAMO,
        "linalg.lstsq.grad_oriented": _DYNAMO,
        "masked_select": _DYNAMO,
        "nn.functional.ctc_loss": _DYNAMO,
        "nn.functional.gaussian_nll_loss": _DYNAMO,
        "nn.functional.one_hot": _DYNAMO,
        "nonzero": _DYNAMO,
        "sparse.mm.reduce": _SPARSE,
        "sparse.sampled_addmm": _SPARSE,
        "tensor_split": _DYNAMO,
        "to_sparse": _SPARSE,
        "unique": _DYNAMO,
        "unique_consecutive": _DYNAMO,
    },
    "grad": {
        "combinations": _DYNAMO,
        "corrcoef": _DYNAMO,
        "cov": _DYNAMO,
        "linalg.lstsq": _DYNAMO,
        "linalg.lstsq.grad_oriented": _DYNAMO,
        "masked_select": _DYNAMO,
        "nn.functional.gaussian_nll_loss": _DYNAMO,
        "sparse.sampled_addmm": _SPARSE,
        "tensor_split": _DYNAMO,
        "to_sparse": _SPARSE,
        "view_as_complex": _READ_AS,
    },
    "symbolic": {},
}


def treated(operator: str, kind: str, result: Result) -> str | None:
    """What is wrong with how the first sample of an operator was run: less compiled than the list says, or more."""
    listed = LEFT[kind].get(operator)
    if result.status == "eager":
        return None if listed else f"left to eager, and not listed: {result.message}"
    if listed and result.status == "right":
        return "no longer left to eager: take it off the list in left_to_eager.py"
    return None


__all__ = ["LEFT", "treated"]
