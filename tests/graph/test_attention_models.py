"""Models no one here wrote, with their attention spelled out: every attention becomes one fused operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz.capture.joint import trace_joint
from litz.graph.rewrite_joint import rewrite_joint
from litz.graph.rewrite_pre_grad import rewrite_pre_grad
from tests.graph.attention_models import MODELS, with_dropout
from tests.graph.rewriting import context, results

pytest.importorskip("transformers")

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rewritten(model: torch.nn.Module, arguments: dict[str, Any]) -> list[torch.fx.Node]:
    """The fused attentions after rewriting; the numbers are compared on the way."""
    found: list[torch.fx.Node] = []

    def backend(graph_module, inputs):
        joint = trace_joint(graph_module.forward, inputs, None, {}, False)
        given = [i.detach() for i in inputs]
        before = results(joint.graph, given)
        rewrite_joint(joint, context())
        for old, new in zip(before, results(joint.graph, given), strict=True):
            assert old.stride() == new.stride()
            torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5)
        nodes = list(joint.graph.graph.nodes)
        found.extend(n for n in nodes if n.target is FLASH)
        assert not any("softmax" in str(n.target) for n in nodes), "an attention was not recognised"
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(**arguments)
    return found


FUSED_ALREADY = ("bert", "distilbert", "gpt2", "llama", "t5", "whisper")


@pytest.mark.parametrize(
    ("name", "attention"), [*((name, "eager") for name in MODELS), *((name, "sdpa") for name in FUSED_ALREADY)]
)
def test_without_a_mask(name: str, attention: str) -> None:
    model, arguments, _, attentions, causal = MODELS[name](attention)
    nodes = rewritten(model, arguments)
    assert len(nodes) == attentions
    assert sum(len(n.args) > 4 and n.args[4] is True for n in nodes) == causal
    if name != "t5":
        assert not any(n.kwargs.get("attn_mask") is not None for n in nodes), "a mask that hides nothing was kept"


@pytest.mark.parametrize("name", [name for name in MODELS if name != "vit"])
def test_with_a_mask(name: str) -> None:
    model, arguments, mask, attentions, _ = MODELS[name]("eager")
    nodes = rewritten(model, {**arguments, **mask})
    assert len(nodes) == attentions
    assert any(n.kwargs.get("attn_mask") is not None for n in nodes)


def compiled(model: torch.nn.Module, arguments: dict[str, Any], backend: Any) -> None:
    def captured(graph_module, inputs):
        if any("softmax" in str(n.target) for n in graph_module.graph.nodes):
            backend(graph_module, inputs)
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=captured)(**arguments)


def numbers(function: Any, inputs: list[Any]) -> list[torch.Tensor]:
    """Results and gradients, with the same random numbers each time."""
    torch.manual_seed(5)
    found = [r for r in function(*inputs) if isinstance(r, torch.Tensor)]
    moving = [r for r in found if r.requires_grad]
    weights = [torch.linspace(-1, 1, r.numel()).reshape(r.shape) for r in moving]
    learned = [i for i in inputs if isinstance(i, torch.Tensor) and i.requires_grad]
    gradients = torch.autograd.grad(moving, learned, weights, allow_unused=True) if moving else ()
    return [r.detach() for r in found] + [g for g in gradients if g is not None]


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("name", MODELS)
def test_training_with_dropout(name: str, masked: bool) -> None:
    """Eager's random numbers, results and gradients; autograd itself differentiates the new operator.

    A mask that may hide a row whole is no mask for that operator; where there is none, each attention is one.
    """
    model, arguments, mask, attentions, causal = MODELS[name]("eager")
    if masked and not mask:
        pytest.skip("it takes no mask")
    fired, left = [], []

    def backend(graph_module, inputs):
        ctx = context()
        function = rewrite_pre_grad(graph_module.forward, inputs, ctx)
        nodes = list(function.__self__.graph.nodes)
        found = [n for n in nodes if n.target is SDPA]
        assert all(n.args[4] == 0.25 for n in found), "the share that is dropped"
        assert sum(f.times for f in ctx.firings if f.rule == "attention_pre_grad") == len(found)
        fired.extend(found)
        left.extend(n for n in nodes if "softmax" in str(n.target))
        for old, new in zip(numbers(graph_module, inputs), numbers(function, inputs), strict=True):
            torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-5)

    compiled(with_dropout(model, 0.25), {**arguments, **(mask if masked else {})}, backend)
    assert len(fired) + len(left) == attentions
    if not masked and not causal and name != "t5":
        assert not left


@pytest.mark.parametrize("name", MODELS)
def test_training_without_dropout(name: str) -> None:
    """Forward and backward of every attention are fused, and the numbers of both stay; not where a bias is learned."""
    model, arguments, _, attentions, _ = MODELS[name]("eager")
    found: list[torch.fx.Node] = []

    def backend(graph_module, inputs):
        function = rewrite_pre_grad(graph_module.forward, inputs, context())
        joint = trace_joint(function, inputs, None, {}, True)
        placeholders = [n for n in joint.graph.graph.nodes if n.op == "placeholder"]
        given = [i.detach() for i in inputs]
        given += [torch.randn(n.meta["val"].shape) for n in placeholders[len(given) :]]
        before = results(joint.graph, given)
        rewrite_joint(joint, context())
        for old, new in zip(before, results(joint.graph, given), strict=True):
            torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-4)
        found.extend(n for n in joint.graph.graph.nodes if "_scaled_dot_product_" in str(n.target))

    compiled(with_dropout(model, 0.0), arguments, backend)
    assert len(found) == 2 * (attentions - (2 if name == "t5" else 0))


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_a_step_of_training(name: str) -> None:
    """The whole compiler: eager's loss and gradients, from the same seed."""
    import litz

    model, arguments, mask, _, _ = MODELS[name]("eager")
    with_dropout(model, 0.25)
    torch._dynamo.reset()
    found = []
    for run in (model, litz.compile(model)):
        torch.manual_seed(5)
        model.zero_grad()
        output = run(**arguments, **mask).last_hidden_state
        (output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).sum().backward()
        found.append([output.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-4)
