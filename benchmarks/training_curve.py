"""200 steps of a small GPT on a fixed text with AdamW, eager and Litz from the same weights and batches.

`python -m benchmarks.training_curve [steps]` prints one JSON object: both curves, and a third of eager in float64,
which says how far two right answers drift apart.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from benchmarks.process import THREADS, litz_backend

STEPS = 200
BATCH, LENGTH = 8, 32
TEXT = (
    "A litz wire is woven of many fine strands, each insulated from the others, so that the current of a high "
    "frequency, which keeps to the skin of a conductor, finds much skin to keep to. It is wound into inductors. "
    "A compiler that weaves many small kernels into few has the same end in view: less is lost on the way. "
) * 8


def curve(backend: str, steps: int, dtype: torch.dtype = torch.float32) -> list[float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(THREADS)
    torch._dynamo.reset()
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    codes = torch.tensor([letters.index(c) for c in TEXT])
    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=len(letters), n_positions=LENGTH, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(input_ids=ids).logits.flatten(0, 1), following.flatten())

    loss = loss_of if backend == "eager" else torch.compile(loss_of, backend=backend)
    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        starts = torch.randint(0, len(codes) - LENGTH - 1, (BATCH,), generator=draw).tolist()
        windows = torch.stack([codes[s : s + LENGTH + 1] for s in starts])
        optimizer.zero_grad()
        value = loss(windows[:, :-1], windows[:, 1:])
        value.backward()
        optimizer.step()
        found.append(float(value))
    return found


def measure(steps: int = STEPS) -> dict[str, Any]:
    curves = {
        "eager": curve("eager", steps),
        "litz": curve(litz_backend(), steps),
        "eager in float64": curve("eager", steps, torch.float64),
    }
    apart = {
        name: max(abs(a - b) for a, b in zip(curves[name], curves["eager in float64"], strict=True))
        for name in ("eager", "litz")
    }
    return {"steps": steps, "curves": curves, "apart_from_float64": apart}


if __name__ == "__main__":
    print(json.dumps(measure(*(int(n) for n in sys.argv[1:]))))
