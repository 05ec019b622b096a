"""Networks of convolutions on GPUs: channels last from end to end, no copies, few small kernels, native calls."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks.gpu_models import make
from litz.codegen.llvm import shim
from litz.codegen.plan_gpu import plan_for_gpu
from litz.loop.expr import ONE
from litz.loop.ir import Call, Kernel, Load, Program, Reduce, Store, View
from tests.codegen import emulate
from tests.codegen.emulate import run_function
from tests.codegen.scheduled_for_gpu import gpu_programs

CUDA = shim.DEVICES["cuda"]


def programs(name: str, mode: str, layout: torch.memory_format = torch.channels_last) -> list[Program]:
    model, inputs = make(name, mode, "cpu", small=True)
    inputs["pixel_values"] = inputs["pixel_values"].contiguous(memory_format=layout)
    return gpu_programs(model.to(memory_format=layout), inputs, mode == "training")


def copies(program: Program) -> list[Kernel]:
    """Kernels that only move elements, other than into the caller's own memory."""
    moves = [kernel for kernel in program.kernels if all(isinstance(op, (Load, Store)) for op in kernel.body)]
    return [kernel for kernel in moves if any(program.buffers[name].kind != "input" for name in kernel.writes)]


def convolutions(program: Program) -> list[Call]:
    return [call for call in program.calls if "convolution" in call.target]


def lies_channels_last(view: View) -> bool:
    return view.strides[1] is ONE


each = pytest.mark.parametrize("name", ["resnet", "convnext"])


@each
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_channels_last_stays_and_nothing_is_copied(name: str, mode: str) -> None:
    for program in programs(name, mode):
        assert not copies(program)
        for call in convolutions(program):
            images = [arg for arg in call.args[:2] if isinstance(arg, View) and arg.sizes[2] is not ONE]
            assert all(lies_channels_last(view) for view in images[: 1 if call.target == "aten::convolution" else 2])
        assert shim.native_calls(program, CUDA) >= {call.name for call in convolutions(program)}
        assert not [call for call in program.calls if call.why != "library"]


def test_contiguous_images_are_turned_once_where_that_pays() -> None:
    forward, backward = programs("resnet", "training", torch.contiguous_format)
    assert all(lies_channels_last(call.results[0]) for call in convolutions(forward) if call.results[0] is not None)
    assert len(copies(forward)) == 1  # the image
    (program,) = programs("convnext", "inference", torch.contiguous_format)  # convolutions in groups are left alone
    first = convolutions(program)[0].args[0]
    assert isinstance(first, View) and not lies_channels_last(first)


@each
def test_a_bias_is_no_walk_of_its_own(name: str) -> None:
    for program in programs(name, "training"):
        for call in convolutions(program):
            bias = call.args[2] if call.target == "aten::convolution" else call.args[3]
            assert bias is None
            if call.target == "aten::convolution_backward":
                assert call.args[-1][2] is False  # type: ignore[index]


def test_statistics_of_many_small_tensors_are_few_kernels() -> None:
    """Each batch norm counts its batches and writes two statistics back."""
    model, _ = make("resnet", "training", "cpu", small=True)
    norms = sum(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())
    forward, _ = programs("resnet", "training")
    writing = [k for k in forward.kernels if any(forward.buffers[name].kind == "input" for name in k.writes)]
    written = {name for k in writing for name in k.writes if forward.buffers[name].kind == "input"}
    assert len(written) == 3 * norms
    assert len(writing) <= 1 + len({forward.buffers[name].size for name in written})


def test_no_thread_walks_far_alone() -> None:
    """Of large images: what a thread adds up by itself is short, in every kernel."""
    model, _ = make("resnet", "training", "cpu", small=True)
    inputs = {"pixel_values": torch.randn(16, 3, 128, 128).bfloat16(), "labels": torch.zeros(16, dtype=torch.long)}
    inputs["pixel_values"] = inputs["pixel_values"].to(memory_format=torch.channels_last)
    kinds: Counter[str] = Counter()
    for program in gpu_programs(model, inputs, True):
        for kernel in program.kernels:
            if not any(isinstance(op, Reduce) for op in kernel.body):
                continue
            plan = plan_for_gpu(kernel).rows
            length = 1
            for axis in kernel.reduced:
                length *= axis.size.int
            steps = length // (plan.team * plan.lanes) if plan.over_reduced else length
            assert steps <= 512, f"{kernel.name}: {plan}"
            kinds["columns" if not plan.over_reduced else "rows"] += 1
    assert kinds["columns"] > 10 and kinds["rows"] > 10


@each
def test_what_it_computes(name: str) -> None:
    """Each kernel by the emulator, and the whole against eager."""
    model, inputs = make(name, "inference", "cpu", small=True)
    model, x = model.float().requires_grad_(False), inputs["pixel_values"].float()
    run_function(lambda x: model(x).logits, x, rtol=1e-3, atol=1e-4)


def test_the_batch_norm_that_eager_takes_on_gpus() -> None:
    x = torch.randn(3, 5, 8, 8).to(memory_format=torch.channels_last)
    w, b, mean, variance = torch.rand(4, 5).unbind()

    def norm(*given: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.aten.cudnn_batch_norm(*given, False, 0.1, 1e-5)[0])

    program, given = emulate.program_of(norm, [x, w, b, mean, variance])
    ran = emulate.run(program, given)
    assert ran.kernels == 1 and not ran.others
    wanted = torch.relu(torch.nn.functional.batch_norm(x, mean, variance, w, b))
    torch.testing.assert_close(ran.results[0], wanted, rtol=1e-4, atol=1e-5)
