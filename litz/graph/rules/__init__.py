"""The built-in rules: one file a subject, and here which of them run where."""

from __future__ import annotations

from litz.graph.rewrite import Rules
from litz.graph.rules.activation import ACTIVATION
from litz.graph.rules.attention import ATTENTION
from litz.graph.rules.attention_masks_pre_grad import ATTENTION_MASKS_PRE_GRAD
from litz.graph.rules.attention_pre_grad import ATTENTION_PRE_GRAD
from litz.graph.rules.attention_training import ATTENTION_TRAINING
from litz.graph.rules.binary_folding import BINARY_FOLDING
from litz.graph.rules.conv_bn import CONV_BN
from litz.graph.rules.conv_bn_pre_grad import CONV_BN_PRE_GRAD
from litz.graph.rules.gpu import GPU
from litz.graph.rules.int8_weights import INT8_WEIGHTS
from litz.graph.rules.joined_products import JOINED_PRODUCTS
from litz.graph.rules.loss import LOSS
from litz.graph.rules.noop import NOOP
from litz.graph.rules.padding import PADDING
from litz.graph.rules.quantised import QUANTISED
from litz.graph.rules.softmax import SOFTMAX
from litz.graph.rules.softmax_pre_grad import SOFTMAX_PRE_GRAD
from litz.graph.rules.split_cat import SPLIT_CAT
from litz.graph.rules.split_cat_pre_grad import SPLIT_CAT_PRE_GRAD
from litz.graph.rules.unique_index import UNIQUE_INDEX

_ATTENTION_PRE_GRAD: Rules = ATTENTION_PRE_GRAD + ATTENTION_MASKS_PRE_GRAD
PRE_GRAD: Rules = SOFTMAX_PRE_GRAD + _ATTENTION_PRE_GRAD + SPLIT_CAT_PRE_GRAD + CONV_BN_PRE_GRAD
JOINT: Rules = SOFTMAX + ATTENTION + ACTIVATION + INT8_WEIGHTS + NOOP + SPLIT_CAT + UNIQUE_INDEX
FOLDING: Rules = CONV_BN + BINARY_FOLDING  # where inputs are frozen; and then JOINED_PRODUCTS
POST_GRAD: Rules = NOOP + GPU
# Of the whole step, by device: sets of rules, one after the other.
FOR_TARGET: dict[str, tuple[Rules, ...]] = {"cpu": (), "cuda": (PADDING, LOSS)}

SUBJECTS: dict[str, Rules] = {
    "activation": ACTIVATION,
    "attention": ATTENTION + ATTENTION_TRAINING + _ATTENTION_PRE_GRAD,
    "binary_folding": BINARY_FOLDING,
    "conv_bn": CONV_BN + CONV_BN_PRE_GRAD,
    "gpu": GPU + LOSS + PADDING,
    "int8_weights": INT8_WEIGHTS,
    "joined_products": JOINED_PRODUCTS,
    "noop": NOOP,
    "quantised": QUANTISED,
    "softmax": SOFTMAX + SOFTMAX_PRE_GRAD,
    "split_cat": SPLIT_CAT + SPLIT_CAT_PRE_GRAD,
    "unique_index": UNIQUE_INDEX,
}

__all__ = [
    "ATTENTION_TRAINING", "FOLDING", "FOR_TARGET", "GPU", "JOINED_PRODUCTS", "JOINT", "NOOP", "POST_GRAD", "PRE_GRAD",
    "QUANTISED", "SUBJECTS",
]  # fmt: skip
