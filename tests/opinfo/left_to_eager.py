"""What of the operator database may be left to eager, each entry with its reason; anything else left to eager fails.

In: an operator, the kind of run (see `LEFT`) and a result. Out: what is wrong with how it was run, or None. An entry
that is no longer needed fails as well, so that the list only ever gets shorter. `called.txt` is the same for operators
that are called where kernels could be generated: `python -m tests.opinfo.left_to_eager [OPERATOR …]` writes it anew.

The slice asks this of the first sample of an operator (`treated`), the sweep of every one (`may_be_left`).
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import torch

from litz.target import detect
from tests.opinfo.check import Result

_DYNAMO = "Dynamo makes no graph of it: its result's size depends on data, or Python looks at a value"
_SIZE = "Dynamo makes no graph of it where sizes vary, whatever the backend"
_SPARSE = "sparse tensors are not compiled"
_PIECES = "an operator in it looks at data, and the pieces around that one would cost more than they save"
_STORAGE = "it counts from the start of the storage, which the compiled code does not see"
_WHOLE = "it looks at data, and a derivative is not cut in pieces around that"
_READ_AS = "its result is memory of an input, read as another type, and autograd's record of that cannot be made anew"

_OF_DYNAMO = dict.fromkeys(("histogram", "histogramdd", "resize_", "resize_as_"), _SIZE)
# Operators by the kind of run: "" is inference, "grad" results and gradients, "jvp" results and their tangents,
# "symbolic" one program for many sizes, "litz.jvp" tangents by way of it and of Dynamo, "cuda" any of these on a GPU.
LEFT: dict[str, dict[str, str]] = {
    "": {
        "allclose": _DYNAMO,
        "argwhere": _DYNAMO,
        "bincount": _DYNAMO,
        "bucketize": _PIECES,
        "combinations": _DYNAMO,
        "corrcoef": _DYNAMO,
        "cov": _DYNAMO,
        "equal": _DYNAMO,
        "istft": _PIECES,
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
    "jvp": {
        "as_strided.partial_views": _STORAGE,
        "nanquantile": _WHOLE,
        "quantile": _WHOLE,
    },
    "litz.jvp": dict.fromkeys(("as_strided", "as_strided_copy", "as_strided_scatter"), _STORAGE),
    "symbolic": {
        **dict.fromkeys(("as_strided", "as_strided_copy", "as_strided_scatter"), _STORAGE),
        "geqrf": _DYNAMO,
        **_OF_DYNAMO,
    },
    "cuda": {},
}
# The same for operators of which the first sample is compiled, and others are not.
_WARNS = "where its options do not apply it warns, and Dynamo makes no graph of that, whatever the backend"
_UNIQUE = "the gradient of the number that is filled in looks for indices that differ, and how many there are is data"
_ANOTHER_DEVICE = "it makes a tensor of the CPU like one of the GPU, and a graph is compiled for one device"
_FACTORIES = (
    "empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones_like",
    "rand_like", "randint_like", "randn_like", "zeros_like",
)  # fmt: skip
_FAKE = "torch's fake of its backward takes no scale"
SOME_LEFT: dict[str, dict[str, str]] = {
    "": {
        "repeat_interleave": _DYNAMO,  # by a tensor of counts
    },
    "grad": {
        "index_fill": _UNIQUE,
    },
    "jvp": {
        "narrow": _WHOLE,  # from where a tensor says
    },
    "litz.jvp": {},
    "symbolic": {
        "__getitem__": _DYNAMO,  # by a mask
        "as_strided.partial_views": _STORAGE,
        "nn.functional.linear_cross_entropy.chunked": _WARNS,
        "nn.functional.linear_cross_entropy.chunked_none": _WARNS,
    },
    "cuda": {
        "as_strided_copy": _STORAGE,
        **dict.fromkeys(_FACTORIES, _ANOTHER_DEVICE),
        "torch.ops.aten._efficient_attention_forward": _FAKE,
    },
}


def may_be_left(operator: str, dtype: str, way: str = "", device: str = "cpu") -> bool:
    """Whether samples of an operator may be left to eager in a sweep: what is left with its sizes known is left when
    they vary, what is left without gradients is left with them, and what is left on a CPU is left on a GPU. `way`: as
    in the sweep."""
    kinds = ["", *(["grad"] if dtype.startswith("grad-") else []), *(["symbolic"] if way == "symbolic" else [])]
    kinds += ["jvp"] if dtype.startswith("jvp-") else []
    kinds += ["litz.jvp"] if way == "jvp" else []
    kinds += ["cuda"] if device == "cuda" else []
    return any(operator in LEFT[kind] or operator in SOME_LEFT[kind] for kind in kinds)


def treated(operator: str, kind: str, result: Result) -> str | None:
    """What is wrong with how the first sample of an operator was run: less compiled than the lists say, or more."""
    listed = LEFT[kind].get(operator)
    if result.status == "eager":
        return None if listed else f"left to eager, and not listed: {result.message}"
    if listed and result.status == "right":
        return "no longer left to eager: take it off the list in left_to_eager.py"
    if result.status != "right" or not is_written_here():
        return None
    found, expected = set(result.calls), set(called().get((operator, kind), ()))
    if found - expected:
        return f"called instead of generated, and not listed in called.txt: {', '.join(sorted(found - expected))}"
    if expected - found:
        return f"no longer called: take {', '.join(sorted(expected - found))} off its line in called.txt"
    return None


# -- operators that are called ----------------------------------------------------------------
_FILE = Path(__file__).parent / "called.txt"


@lru_cache(maxsize=1)
def called() -> dict[tuple[str, str], list[str]]:
    found = {}
    for line in _FILE.read_text().splitlines()[1:]:
        name, _, calls = line.partition(": ")
        operator, _, kind = name.partition(" ")
        found[operator, kind] = calls.split()
    return found


def _machine() -> str:
    """What decides, besides Litz itself, which operators are taken apart and which products are generated."""
    return f"torch {torch.__version__.split('+')[0]}, {detect(None).isa}"


def is_written_here() -> bool:
    """Whether the file speaks of this version of torch and this instruction set."""
    return _FILE.read_text().splitlines()[0] == _machine()


def main() -> None:
    """Writes `called.txt`, or in it the lines of the operators named as arguments."""
    from tests.opinfo.check import check
    from tests.opinfo.test_slice import DIFFERENTIABLE, OPERATORS, first_case, first_with_gradients

    wanted = sys.argv[1:] or OPERATORS
    lines = {key: " ".join(calls) for key, calls in called().items() if key[0] not in wanted} if sys.argv[1:] else {}
    for kind, names, first in (("", OPERATORS, first_case), ("grad", DIFFERENTIABLE, first_with_gradients)):
        for name in names:
            case = first(name) if name in wanted else None
            if case is not None:
                lines[name, kind] = " ".join(sorted(check(case).calls))
    listed = [f"{' '.join(filter(None, key))}: {calls}" for key, calls in sorted(lines.items()) if calls]
    _FILE.write_text("\n".join([_machine(), *listed]) + "\n")


if __name__ == "__main__":
    main()
