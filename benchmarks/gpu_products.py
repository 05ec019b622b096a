"""Products of odd sizes on one GPU: as they are, with a result in aligned rows, and padded.

`python -m benchmarks.gpu_products` times the three on the heads of GPT-2 and BERT, forward and backward, in bfloat16;
then an activation after a product, and in it. The second way, of a result whose rows are aligned though they are not
longer, takes no copies: it is what to do if it is as fast as the third.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.table import figure, render

HEADS = {"gpt2": (16384, 768, 50257), "bert": (16384, 768, 30522)}


def ways(rows: int, size: int, classes: int) -> dict[str, dict[str, Callable[[], Any]]]:
    import torch

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    wide = -(-classes // 8) * 8
    x, w, w_padded = made(rows, size), made(classes, size), made(wide, size)
    tangent, tangent_padded = made(rows, classes), made(rows, wide)
    window = tangent_padded[:, :classes]
    room = torch.empty(rows, wide, device="cuda", dtype=torch.bfloat16)[:, :classes]
    return {
        "logits": {
            "as it is": lambda: torch.mm(x, w.t()),
            "aligned": lambda: torch.mm(x, w.t(), out=room),
            "padded": lambda: torch.mm(x, w_padded.t()),
        },
        "to the input": {
            "as it is": lambda: torch.mm(tangent, w),
            "aligned": lambda: torch.mm(window, w),
            "padded": lambda: torch.mm(tangent_padded, w_padded),
        },
        "to the weight": {
            "as it is": lambda: torch.mm(tangent.t(), x),
            "aligned": lambda: torch.mm(window.t(), x),
            "padded": lambda: torch.mm(tangent_padded.t(), x),
        },
    }


def activations() -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn import functional as F

    def made(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, w, b = made(16384, 768), made(768, 3072), made(3072)
    return {
        "product and bias": lambda: torch.addmm(b, x, w),
        "gelu after it": lambda: F.gelu(torch.addmm(b, x, w), approximate="tanh"),
        "gelu in it": lambda: torch.ops.aten._addmm_activation(b, x, w, use_gelu=True),
        "relu in it": lambda: torch.ops.aten._addmm_activation(b, x, w, use_gelu=False),
    }


def main() -> None:
    from litz.graph.trials import timed

    rows = []
    for head, sizes in HEADS.items():
        for product, runs in ways(*sizes).items():
            rows.append([f"{head}, {product}", *(figure(timed(run)) for run in runs.values())])
    print(render(["ms", "as it is", "aligned", "padded"], rows))
    print(render(["ms", ""], [[name, figure(timed(run))] for name, run in activations().items()]))


if __name__ == "__main__":
    main()
