"""One step of `benchmarks/minify.py` in a process of its own; prints one JSON object.

python -m benchmarks.minify_one save MODEL FOLDER [training]     what `litz.debug_compile` makes of the model
python -m benchmarks.minify_one minify GRAPH [SLOWER_THAN]       what `litz minify` makes of that
python -m benchmarks.minify_one bisect GRAPH                     and `litz bisect`
python -m benchmarks.minify_one torch MODEL                      the model, compiled as torch's minifier wants it
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import torch

import litz
from benchmarks.models import build
from benchmarks.process import describe
from benchmarks.training_step import model_in_training

LIMIT, LIMIT_OF_SLOW = 15.0, 60.0  # seconds of work after which a run has no end
LAYERS = 2  # of each kind that stay: what is searched would be no other with more of them, only longer
_LAYERS = {
    "bert": ("encoder.layer",),
    "gpt2": ("transformer.h",),
    "llama": ("model.layers",),
    "vit": ("layers",),
    "resnet": tuple(f"resnet.encoder.stages.{stage}.layers" for stage in range(4)),
    "convnext": tuple(f"convnext.encoder.stages.{stage}.layers" for stage in range(4)),
}


def model(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """One of the benchmarks' models, at its own width, of fewer layers."""
    module, kwargs = build(name)
    for path in _LAYERS[name]:
        owner, _, last = path.rpartition(".")
        setattr(module.get_submodule(owner), last, module.get_submodule(path)[:LAYERS])
    return module, kwargs


def save(name: str, folder: str, how: str = "inference") -> dict[str, Any]:
    module, kwargs = model_in_training(name) if how == "training" else model(name)
    with torch.set_grad_enabled(how == "training"):
        torch.compile(module, backend=partial(litz.debug_compile, folder=folder))(**kwargs)
    return {"graph": f"{folder}/graph_0"}


def minify(graph: str, slower_than: str | None = None) -> dict[str, Any]:
    from litz.debug.minify import minify

    limit = LIMIT if slower_than is None else LIMIT_OF_SLOW
    found = minify(graph, limit=limit, slower_than=None if slower_than is None else float(slower_than))
    nodes = len(found.reproduction.graph.nodes)
    return {
        "file": str(found.file), "told": str(found.symptom), "calls": found.reproduction.calls, "nodes": nodes,
        "trials": found.trials, "culprit": str(found.culprit) if found.culprit else None,
    }  # fmt: skip


def bisect(graph: str) -> dict[str, Any]:
    from litz.debug.minify import bisect

    symptom, culprit = bisect(graph, limit=LIMIT)
    return {"told": str(symptom), "culprit": str(culprit) if culprit else None}


def torch_(name: str) -> dict[str, Any]:
    module, kwargs = model(name)
    try:
        with torch.no_grad():
            torch.compile(module, backend="litz")(**kwargs)
    except Exception as error:
        return {"raised": describe(error)}
    return {}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    steps = {"save": save, "minify": minify, "bisect": bisect, "torch": torch_}
    with redirect_stdout(sys.stderr):
        made = steps[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(made))
