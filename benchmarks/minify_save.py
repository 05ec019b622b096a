"""Saves the graph of a model for `benchmarks/minify.py`: `python -m benchmarks.minify_save bert FOLDER`.

With `training` behind it, of a training step's forward, whose backward goes with it; with `torch` behind it, the model
is compiled as PyTorch's own minifier wants it, which saves what it starts from where the environment says.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import redirect_stdout
from functools import partial

import torch

import litz
from benchmarks.models import build
from benchmarks.process import describe
from benchmarks.training_step import model_in_training


def main(name: str, folder: str, how: str = "inference") -> None:
    warnings.simplefilter("ignore")
    module, kwargs = model_in_training(name) if how == "training" else build(name)
    found: dict[str, object] = {"saved": folder}
    with torch.set_grad_enabled(how == "training"):
        if how == "torch":
            try:
                torch.compile(module, backend="litz")(**kwargs)
            except Exception as error:
                found["raised"] = describe(error)
        else:
            with redirect_stdout(sys.stderr):
                torch.compile(module, backend=partial(litz.debug_compile, folder=folder))(**kwargs)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
