"""Operators on which a comparison with eager says nothing about Litz, each with its reason.

`UNINITIALISED`: results whose values eager leaves undefined; their form is compared.
`DISAGREE`: eager and tracing themselves disagree. The reproducers need no Litz; `test_known.py` runs them.
"""

from __future__ import annotations

UNINITIALISED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip

# Sums of cosines with coefficients of order 1, which cancel at the window's ends: rounding there is of that order,
# and there are no inputs whose last places would show it.
OF_ORDER_ONE = "signal.windows."

# The CUDA just-in-time kernels.
NOT_ON_CPU = {
    "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
    "jiterator_binary_return_by_ref", "jiterator_unary",
}  # fmt: skip

_OUT = "an out= of another dtype: eager refuses it, torch's fake tensors accept it"
# Operator and sample -> reason.
DISAGREE: dict[str, str] = {
    "aminmax e3": _OUT,
    "complex e2": _OUT,
    "multinomial e2": _OUT,
}

# Operator, kind and sample -> reason. Sums that cancel, where eager's order of adding happens to round once less.
ORDER_OF_ADDING: dict[str, str] = {
    "nn.functional.scaled_dot_product_attention grad-float32 4": (
        "one weight is all but 1: its gradient is what is left of two numbers 1,000 times as large. Eager adds the six "
        "products of a row in order, Litz in pairs: 5 of 96 elements are off by 3 units in the last place of those"
    ),
}
