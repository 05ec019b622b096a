"""Seconds to trace the joint graph of a 24-layer GPT-2, against PyTorch's own ahead-of-time tracing.

`python -m benchmarks.training_trace [layers]` prints one JSON object. Both trace the same graph from Dynamo in one
process, taking turns. PyTorch's figure ends when it hands its forward graph to a compiler, so its partitioning
is in it and nothing is compiled; Litz's own partitioning is measured with its trace for that reason.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

LAYERS = 24
ROUNDS = 3


def measure(layers: int = LAYERS) -> dict[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=256, n_head=4, vocab_size=1024, use_cache=False)
    model = GPT2LMHeadModel(config).eval()
    found: dict[str, Any] = {"layers": layers, "litz": [], "pytorch": []}

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        for _ in range(ROUNDS):
            found["litz"].append(_litz(graph_module, inputs, found))
            found["pytorch"].append(_pytorch(graph_module, inputs))
        return graph_module.forward

    torch.compile(model, backend=backend)(input_ids=torch.randint(0, 1024, (1, 64)))
    best = {name: min(found[name]) for name in ("litz", "pytorch")}
    return {**found, "ratio": best["litz"] / best["pytorch"]}


def _litz(graph_module: torch.fx.GraphModule, inputs: list[Any], found: dict[str, Any]) -> float:
    from litz.capture.joint import trace_joint
    from litz.graph.partition.split import split
    from litz.ops.decompose import decompositions

    start = time.perf_counter()
    joint = trace_joint(graph_module.forward, inputs, None, decompositions(), True)
    found["nodes"] = len(joint.graph.graph.nodes)
    split(joint)
    return time.perf_counter() - start


def _pytorch(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> float:
    from functorch.compile import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified

    reached: list[float] = []

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        reached.append(time.perf_counter())
        return make_boxed_func(graph.forward)

    start = time.perf_counter()
    aot_module_simplified(graph_module, inputs, fw_compiler=compiler, bw_compiler=compiler)
    return reached[0] - start


if __name__ == "__main__":
    print(json.dumps(measure(*(int(n) for n in sys.argv[1:]))))
