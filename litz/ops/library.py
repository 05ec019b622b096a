"""Heavy operators that PyTorch's libraries do as well: called on purpose, and not a fallback."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.ops.builder import Builder
from litz.ops.registry import LOWERINGS, lowers

aten = torch.ops.aten

_NAMES = (
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math_for_mps", "sort", "topk", "kthvalue",
    "median", "mode", "_fft_c2c", "_fft_r2c", "_fft_c2r", "_linalg_det", "_linalg_eigh", "_linalg_svd", "linalg_qr",
    "linalg_lu_factor_ex", "linalg_inv_ex", "linalg_cholesky_ex", "linalg_solve_triangular", "_linalg_solve_ex",
    "triangular_solve", "cholesky", "cholesky_inverse", "cholesky_solve", "lu_unpack", "geqrf", "ormqr", "linalg_eig",
    "linalg_householder_product", "linalg_lstsq", "mkldnn_rnn_layer", "_cdist_forward", "_embedding_bag",
)  # fmt: skip


def call(b: Builder, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
    return b.library(node, args, kwargs)


for _name in _NAMES:
    _packet = getattr(aten, _name, None)
    for _overload in _packet.overloads() if _packet is not None else ():
        _target = getattr(_packet, _overload)
        if "out" not in _overload and _target not in LOWERINGS:
            lowers(_target)(call)
