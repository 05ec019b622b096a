"""`offload`: what is kept for the backward waits in files where that costs less time than computing it again."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import litz
from litz import pipeline
from litz.capture.joint import trace_joint
from litz.context import Context
from litz.debug.step import live_bytes
from litz.errors import CallError, OptionError
from litz.graph.partition.offload import Offload
from litz.graph.partition.split import Policy, at_level, plan, split
from litz.graph.signature import Joint
from litz.loop.offload import OFFLOAD, usual_folder
from litz.ops.decompose import decompositions
from litz.options import Options
from litz.runtime.arena import ARENA
from tests.debug.test_pareto import Stack
from tests.partition.test_budget import chosen
from tests.partition.test_mincut import flow, tangents_of

aten = torch.ops.aten


def files_mapped() -> int:
    return sum("(deleted)" in line and "/litz" not in line for line in Path("/proc/self/maps").read_text().splitlines())


# -- the operator -------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_what_comes_back_is_what_went(dtype: torch.dtype) -> None:
    x = (torch.randn(7, 5, 3) * 4).to(dtype).permute(2, 0, 1)
    before = files_mapped()
    away = OFFLOAD(x, usual_folder())
    assert torch.equal(away, x) and away.stride() == x.stride() and away.dtype == dtype
    assert files_mapped() == before + 1
    del away
    gc.collect()
    assert files_mapped() == before, "nobody holds it, and the file is gone"


def test_empty_and_nowhere(tmp_path: Path) -> None:
    assert OFFLOAD(torch.empty(0, 3), str(tmp_path)).shape == (0, 3)
    with pytest.raises(CallError, match=r"12 bytes could not be put in a file in .*\n?.*options="):
        OFFLOAD(torch.ones(3), str(tmp_path / "none"))


# -- the choice ---------------------------------------------------------------------------------
def two_products(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin() * (y @ u).sin()


def joint_of(*shapes: tuple[int, ...]) -> Joint:
    inputs = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    return trace_joint(two_products, inputs, None, decompositions(), True)


SHAPES = ((512, 8), (8, 512), (512, 4), (4, 512))


def policy(fraction: float, rate: float, seconds: dict[int, float]) -> Policy:
    """A product costs the seconds of its depth."""

    def cost(node: fx.Node) -> float:
        return seconds[node.args[0].meta["val"].shape[1]] if node.target is aten.mm.default else 0.0  # type: ignore[union-attr]

    return Policy(fraction=fraction, cost=cost, offload=Offload("/var/tmp", rate))


def treated(joint: Joint, asked: Policy) -> dict[int, str]:
    """What becomes of each product."""
    found = chosen(joint, asked)
    products = [n for n in joint.graph.graph.nodes if n.target is aten.mm.default][:2]
    return {
        n.args[0].meta["val"].shape[1]: "file" if n in found.offloaded else "memory" if n in found.kept else "again"
        for n in products
    }


def test_a_file_is_chosen_where_it_is_the_cheapest() -> None:
    joint, size = joint_of(*SHAPES), 1 << 20  # bytes of each product
    assert treated(joint, policy(1.0, 1e15, {8: 1.0, 4: 1.0})) == {8: "memory", 4: "memory"}
    # Each of them takes a second again, and a hundredth of that from a file; one of them has room.
    dear = {8: 1.0, 4: 1.0}
    assert treated(joint, policy(0.5, 100 * size, dear)) == {8: "file", 4: "memory"}
    assert treated(joint, policy(0.0, 100 * size, dear)) == {8: "file", 4: "file"}
    # A file takes longer than either.
    assert "file" not in treated(joint, policy(0.5, size / 2, dear)).values()
    # Longer than one of them.
    assert treated(joint, policy(0.0, size, {8: 5.0, 4: 0.1})) == {8: "file", 4: "again"}


def test_small_values_stay() -> None:
    joint = joint_of((8, 8), (8, 8), (8, 4), (4, 8))
    assert "file" not in treated(joint, policy(0.0, 1e15, {8: 1.0, 4: 1.0})).values()


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_the_two_sides_are_still_the_whole(fraction: float) -> None:
    joint = joint_of(*SHAPES)
    inputs, tangents = [torch.randn(*shape) for shape in SHAPES], tangents_of(joint)
    want = joint.graph(*inputs, *tangents)
    parts = split(joint, policy(fraction, 1e15, {8: 1.0, 4: 1.0}))
    assert len(parts.offloaded) == (1 if fraction else 2)
    assert len(parts.in_memory) == parts.saved - len(parts.offloaded)
    own, gradients = flow(parts, joint, inputs, tangents)
    torch.testing.assert_close([*own, *gradients], list(want))


def test_levels_for_a_bound_on_the_peak() -> None:
    asked = policy(1.0, 1e15, {8: 1.0, 4: 1.0})
    levels = plan(joint_of(*SHAPES), asked)
    found = [levels.at(level) for level in range(len(levels.bounds))]
    assert [len(level.offloaded) for level in found] == sorted(len(level.offloaded) for level in found)
    assert [level.seconds for level in found] == sorted(level.seconds for level in found)
    last = at_level(levels, len(found) - 1, asked)
    assert last.kept is not None and last.offloaded and last.offloaded <= last.kept
    assert at_level(levels, 0, asked).kept is None


# -- through the front door ---------------------------------------------------------------------
def test_less_memory_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "Offload", lambda folder: Offload(folder, 1e15))  # rather than to compute again
    x, found = torch.randn(8192, 16), []
    for options in ({}, {"memory_budget": 0.3, "offload": True}, {"memory_budget": "14MiB", "offload": usual_folder()}):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Stack().eval()
        step = torch.compile(lambda x, model=model: model(x).square().mean(), backend="litz", options=options)
        loss = step(x)
        loss.backward(retain_graph=True)  # nothing of a file is written over
        once = [p.grad.clone() for p in model.parameters()]
        loss.backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], [2 * g for g in once])
        report = litz.last_report()
        assert report is not None and report.left_to_eager is None and not report.fallbacks

        def run(step: Any = step, model: torch.nn.Module = model) -> None:
            model.zero_grad(set_to_none=True)
            step(x).backward()

        del loss
        run()
        model.zero_grad(set_to_none=True)
        gc.collect()
        ARENA.clear()
        assert abs(live_bytes(run) / report.peak_bytes - 1) < 0.02
        found.append((report.peak_bytes, dict(report.calls).get("litz::offload", 0), once))
    (usual, none, want), *less = found
    assert none == 0
    for peak, files, gradients in less:
        assert peak < 0.75 * usual and files >= 3
        torch.testing.assert_close(gradients, want)


def test_bad_values(tmp_path: Path) -> None:
    for bad in (1, "/no/such/folder", str(tmp_path / "x")):
        with pytest.raises(OptionError, match="True, False or the path of a folder"):
            Options.parse({"offload": bad})
    assert Options.parse({"offload": str(tmp_path)}).offload == str(tmp_path)
    assert Options.parse({"offload": True, "memory_budget": 0.5}).without_effect() == []
    (warning,) = Options.parse({"offload": True}).without_effect()
    assert "without a memory_budget" in warning


def test_a_gpu_is_refused() -> None:
    class Gpu:
        device = "cuda"

    with pytest.raises(OptionError, match="CPU so far"):
        pipeline._offload(Context(Options.parse({"offload": True}), Gpu()))  # type: ignore[arg-type]
