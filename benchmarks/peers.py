"""Those that inference is compared with, each prepared as its own documents say, in float32 and on torch's threads.

In: a model and its keyword arguments. Out: a callable of the same arguments, which gives the model's tensors in order.
ONNX Runtime and OpenVINO run what `torch.onnx` exports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Call = Callable[..., Any]


def inductor_frozen(module: torch.nn.Module, kwargs: dict[str, Any]) -> Call:
    """It shares compiled code with `inductor` in one process: this one needs a process without it."""
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return torch.compile(module, backend="inductor")


def onnxruntime(module: torch.nn.Module, kwargs: dict[str, Any]) -> Call:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        path = exported(module, kwargs, folder)
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def call(**given: torch.Tensor) -> list[torch.Tensor]:
        arrays = {name: value.numpy() for name, value in zip(names, given.values(), strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, arrays)]

    return call


def openvino(module: torch.nn.Module, kwargs: dict[str, Any]) -> Call:
    """In float32, as the others: by itself it rounds to bfloat16 where the processor multiplies those."""
    import openvino as vino

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    with tempfile.TemporaryDirectory() as folder:
        core = vino.Core()
        compiled = core.compile_model(core.read_model(exported(module, kwargs, folder)), "CPU", settings)
    request = compiled.create_infer_request()

    def call(**given: torch.Tensor) -> list[torch.Tensor]:
        arrays = dict(enumerate(value.numpy() for value in given.values()))
        found = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(found[result]) for result in compiled.outputs]

    return call


def exported(module: torch.nn.Module, kwargs: dict[str, Any], folder: str) -> str:
    """The model as a file of ONNX."""
    path = Path(folder) / "model.onnx"
    torch.onnx.export(module, (), str(path), kwargs=kwargs, dynamo=True, optimize=True, verbose=False)
    return str(path)


PREPARE: dict[str, Callable[[torch.nn.Module, dict[str, Any]], Call]] = {
    "inductor frozen": inductor_frozen,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}
