"""The benchmark of the GPU, where there is none: what it judges, what it keeps, and that its contenders run."""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_bars import bars, error
from benchmarks.gpu_kernels import JUDGED
from benchmarks.gpu_models import MASKED, NO_MASK, Contender, contenders, make, measure_model, rows, without_masks
from benchmarks.gpu_profile import profile
from litz.debug.named_kernels import NamedKernels
from litz.report import HISTORY
from litz.target import GpuTarget, detect


def good(row: str) -> dict[str, Any]:
    times = {"eager": 12.0, "inductor": 13.0, NO_MASK: 11.0, "litz": 9.0}
    found: dict[str, Any] = {
        who: {"best": best, "cold": 4.0 if who == "litz" else 20.0, "peak": 100, "errors": {"logits": 0.01}}
        for who, best in times.items()
    }
    if row.split(", ")[0] not in MASKED:
        del found[NO_MASK]
    return found | {"run": {"when": "2026-01-01"}}


def all_good() -> dict[str, Any]:
    kernels = {name: {"copy": 9.0, "litz": 10.0, "inductor": 11.0} for name in JUDGED}
    return {"models": {row: good(row) for row in rows()}, "kernels": kernels}


SWEPT = {"counts": {"right": 10, "wrong": 0, "crashed": 0}, "done": 10, "of": 10}


def test_what_is_good_is_met() -> None:
    assert [str(bar) for bar in bars(all_good(), SWEPT) if bar.met is not True] == []


def test_what_was_not_measured_is_not_met() -> None:
    assert {bar.met for bar in bars({"models": {}, "kernels": {}})} == {None}


def spoilt(row: str, who: str, **figures: Any) -> dict[str, Any]:
    found = all_good()
    found["models"][row][who] = {**found["models"][row][who], **figures}
    return found


@pytest.mark.parametrize(
    ("found", "which"),
    [
        (spoilt("gpt2, training", "litz", best=12.1), "each"),
        (spoilt("bert, inference", NO_MASK, best=8.9), "mask removed"),
        (spoilt("resnet, training", "inductor", best=8.0), "convolutions"),
        (spoilt("llama, one", "inductor", best=8.0), "reduce-overhead"),
        (spoilt("vit, inference", "litz", cold=6.1), "cold"),
        (spoilt("convnext, training", "litz", cold=6.1), "cold"),
        (spoilt("bert, training", "litz", peak=103), "peak"),
        (spoilt("vit, training", "litz", errors={"loss": 0.0, "weight": 0.03, "logits": 0.0}), "error"),
        (spoilt("gpt2, inference", "litz", errors={"logits": math.nan}), "error"),
        (spoilt("gpt2, inference", "eager", best=None), "each"),
        (all_good() | {"kernels": {**all_good()["kernels"], "softmax": {"copy": 8.0, "litz": 10.0}}}, "kernels"),
    ],
)
def test_what_is_bad_is_missed(found: dict[str, Any], which: str) -> None:
    for who in ("litz", "eager"):  # whatever one of them has an error for, the other has
        for row in found["models"].values():
            row[who].setdefault("errors", {})
    found["models"]["vit, training"]["eager"]["errors"] |= {"loss": 0.0, "weight": 0.01}
    missed = [bar for bar in bars(found, SWEPT) if bar.met is False]
    assert any(which in bar.name for bar in missed)


@pytest.mark.parametrize("counts", [{"wrong": 1}, {"crashed": 1}])
def test_operators_that_are_wrong_are_missed(counts: dict[str, int]) -> None:
    assert [bar.name for bar in bars(all_good(), {**SWEPT, "counts": counts}) if not bar.met] == [
        "operators on the device"
    ]
    (open_,) = [bar for bar in bars(all_good(), {**SWEPT, "done": 9}) if not bar.met]
    assert open_.met is None  # as long as some were not run, nothing is met


def test_a_loss_may_be_right_by_luck_and_nothing_else() -> None:
    models = {"a": {"eager": {"errors": {"loss": 1e-7, "w": 0.01}}, "litz": {"errors": {"loss": 1e-3, "w": 0.015}}}}
    assert error(models, "a") == pytest.approx(1.5)
    models["a"]["litz"]["errors"]["loss"] = 0.1
    assert (error(models, "a") or 0) > 2
    models["a"]["eager"]["errors"]["w"] = 0.0
    assert error(models, "a") == math.inf


# -- rows that are kept ---------------------------------------------------------------------------
def test_rows_of_several_runs_are_one_table() -> None:
    found: dict[str, Any] = {"models": {}, "kernels": {}}
    gpu.merge(found, "bert, inference", good("bert, inference"), 61.0)
    gpu.merge(found, "vit, inference", good("vit, inference") | {"run": {"when": "2025-12-31"}}, 60.0)
    gpu.merge(found, "vit, inference", {"failed": "no result"}, 900.0)
    assert found["took"] == {"bert, inference": 61.0, "vit, inference": 60.0}
    assert found["models"]["vit, inference"]["litz"]["best"] == 9.0  # and it is said that the last try failed
    assert found["models"]["vit, inference"]["failed"] == "no result"
    wanted = ["bert, inference", "vit, inference", "gpt2, one", gpu.KERNELS]
    assert gpu.in_turn(wanted, found) == ["gpt2, one", gpu.KERNELS, "vit, inference", "bert, inference"]
    gpu.merge(found, gpu.KERNELS, {"rows": all_good()["kernels"], "run": {"when": "2026-01-02"}}, 50.0)
    assert gpu.in_turn(wanted, found)[-1] == gpu.KERNELS
    text = gpu.report(found)
    assert "bert, inference" in text and "2026-01-01" in text and "softmax" in text and "bars:" in text


def test_a_part_is_what_was_asked_for() -> None:
    asked = argparse.Namespace(models="bert,resnet", modes="training", only=None)
    assert gpu.wanted(asked) == ["bert, training", "resnet, training"]
    assert gpu.wanted(argparse.Namespace(models="", modes="", only=None)) == [gpu.KERNELS, *rows()]
    assert gpu.wanted(argparse.Namespace(models="", modes="", only=gpu.KERNELS)) == [gpu.KERNELS]


def test_what_takes_too_long_is_left() -> None:
    assert gpu.seconds_of("bert, training", {"took": {"bert, training": 50.0}}, True) == pytest.approx(55.0)
    assert gpu.seconds_of("bert, training", {}, True) > gpu.seconds_of("bert, training", {}, False)


# -- contenders -----------------------------------------------------------------------------------
def test_attention_is_not_told_a_mask() -> None:
    told: list[Any] = []

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        nodes = [n for n in graph_module.graph.nodes if "scaled_dot_product" in str(n.target)]
        told.extend((node.kwargs.get("attn_mask"), node.args[3:]) for node in nodes)
        return graph_module.forward

    model, inputs = make("bert", "inference", "cpu", small=True)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        torch.compile(model, backend=backend)(**inputs)
        masked = len(told)
        assert masked and all(mask is not None for mask, _ in told)
        torch._dynamo.reset()
        with without_masks():
            torch.compile(model, backend=backend)(**inputs)
    assert len(told) == 2 * masked and all(mask is None and not rest for mask, rest in told[masked:])


def test_who_takes_part() -> None:
    assert [c.name for c in contenders("bert", "training", True)] == ["eager", "litz", "inductor", NO_MASK]
    assert [c.name for c in contenders("bert", "one", True)] == ["eager", "litz", "inductor"]
    assert [c.name for c in contenders("resnet", "training", False)] == ["eager", "litz"]


def test_a_row_is_measured() -> None:
    HISTORY.clear()  # a row has a process of its own

    def broken(model: Any) -> Any:
        raise RuntimeError("no such compiler")

    taking_part = [*contenders("convnext", "training", False), Contender("inductor", broken)]
    found = measure_model("convnext", "training", taking_part, "cpu", small=True)
    assert found["inductor"] == {"failed": "RuntimeError: no such compiler"}
    for who in ("eager", "litz"):
        assert found[who]["best"] > 0 and found[who]["cold"] > 0 and "loss" in found[who]["errors"]
    assert found["litz"]["kernels"] and not found["litz"]["left"]
    quotient = error({"row": found}, "row")
    assert quotient is not None and quotient <= 2


# -- names of kernels -----------------------------------------------------------------------------
def test_a_name_stands_for_loops() -> None:
    names = NamedKernels()
    torch.compile(lambda x: x.softmax(-1), backend="litz", options={"after": names.hooks})(torch.randn(3, 50))
    (name,) = names._found
    assert name in names and "k_none" not in names
    assert names.line(name).startswith("[3 over 50] ")
    text = names.text(name, detect())
    assert "reduce max" in text and "grid" not in text
    assert "grid" in names.text(name, GpuTarget(detect(), "sm_90", "+ptx80", 132))


def test_a_profile_shows_the_dearest(capsys: pytest.CaptureFixture[str]) -> None:
    text = profile("llama", "inference", ["litz", "eager"], top=5, device="cpu", small=True)
    assert text.count("a step, of which") == 2 and text.count("µs in all") == 2
    with pytest.raises(SystemExit, match="nobody is called"):
        profile("llama", "inference", ["triton"], device="cpu", small=True)
