"""Heavy operators that PyTorch's libraries do as well: called on purpose, and not a fallback."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from litz.loop.offload import OFFLOAD
from litz.ops.builder import Builder
from litz.ops.registry import LOWERINGS, lowers

aten = torch.ops.aten

_NAMES = (
    "sort", "topk", "kthvalue", "median", "mode", "_fft_c2c", "_fft_r2c",
    "_fft_c2r", "_linalg_det", "_linalg_eigh", "_linalg_svd", "linalg_qr", "linalg_lu_factor_ex", "linalg_inv_ex",
    "linalg_cholesky_ex", "linalg_solve_triangular", "_linalg_solve_ex", "triangular_solve", "cholesky",
    "cholesky_inverse", "cholesky_solve", "lu_unpack", "geqrf", "ormqr", "linalg_eig", "linalg_householder_product",
    "linalg_lstsq", "mkldnn_rnn_layer", "_cdist_forward",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_embedding_bag_dense_backward",
    "_embedding_bag_per_sample_weights_backward", "_cdist_backward", "grid_sampler_2d_backward",
    "grid_sampler_3d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
    "masked_scatter_backward", "mkldnn_rnn_layer_backward", "rrelu_with_noise_backward", "_ctc_loss",
    "_ctc_loss_backward", "_weight_norm_interface", "_weight_norm_interface_backward", "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward",
    "multi_margin_loss_backward", "multilabel_margin_loss_backward", "_pdist_backward", "_segment_reduce_backward",
    "_embedding_bag_backward", "masked_scatter", "linalg_lu_solve", "_linalg_check_errors", "_trilinear", "i0",
    # Torch's way to take it apart counts what follows the end of a row's targets.
    "multilabel_margin_loss_forward",
    "special_i1", "nanmedian", "_linalg_slogdet", "linalg_lu", "linalg_matrix_exp", "_pdist_forward", "addbmm",
    "segment_reduce", "_addmm_activation", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
)  # fmt: skip


def call(b: Builder, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
    return b.library(node, args, kwargs)


def called(*names: str) -> None:
    """Have every functional overload of these operators called, unless it is lowered otherwise."""
    for name in names:
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            target = getattr(packet, overload)
            if "out" not in overload and overload != "grad_input" and target not in LOWERINGS:
                lowers(target)(call)


called(*_NAMES)
lowers(OFFLOAD)(call)
