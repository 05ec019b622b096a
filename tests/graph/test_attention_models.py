"""Models no one here wrote, with their attention spelled out: every attention becomes one fused operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.capture.joint import trace_joint
from litz.graph.rewrite_joint import rewrite_joint
from tests.graph.rewriting import context, results

transformers = pytest.importorskip("transformers")

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
VOCABULARY = 100
# module, arguments, the arguments of a mask, attentions, of them causal when there is no mask
Case = tuple[torch.nn.Module, dict[str, Any], dict[str, Any], int, int]

_TOKENS = {"input_ids": torch.randint(5, VOCABULARY - 1, (2, 12), generator=torch.Generator().manual_seed(0))}
_PADDING = {"attention_mask": torch.ones(2, 12, dtype=torch.long).index_fill(1, torch.arange(9, 12), 0)}
_IMAGE = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_CODERS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DECODED = {"decoder_input_ids": _TOKENS["input_ids"][:, :7]}


def make(model: str, config: str, attention: str, **fields: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**fields)
    return getattr(transformers, model)._from_config(settings, attn_implementation=attention).eval()


def encoder(name: str) -> Callable[[str], Case]:
    return lambda a: (
        make(f"{name}Model", f"{name}Config", a, vocab_size=VOCABULARY, **_SMALL),
        _TOKENS,
        _PADDING,
        2,
        0,
    )


def decoder(name: str) -> Callable[[str], Case]:
    fields = {**_SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    return lambda a: (
        make(f"{name}ForCausalLM", f"{name}Config", a, vocab_size=VOCABULARY, **fields),
        _TOKENS,
        _PADDING,
        2,
        2,
    )


def gpt2(a: str) -> Case:
    fields = {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    return make("GPT2LMHeadModel", "GPT2Config", a, vocab_size=VOCABULARY, **fields), _TOKENS, _PADDING, 2, 2


def distilbert(a: str) -> Case:
    fields = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    return make("DistilBertModel", "DistilBertConfig", a, vocab_size=VOCABULARY, **fields), _TOKENS, _PADDING, 2, 0


def t5(a: str) -> Case:
    fields = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "use_cache": False}
    # The position bias is a mask to the fused operator, so nothing is purely causal here.
    return make("T5Model", "T5Config", a, vocab_size=VOCABULARY, **fields), {**_TOKENS, **_DECODED}, _PADDING, 6, 0


def bart(a: str) -> Case:
    return (
        make("BartModel", "BartConfig", a, vocab_size=VOCABULARY, max_position_embeddings=30, **_CODERS),
        {**_TOKENS, **_DECODED},
        _PADDING,
        6,
        2,
    )


def whisper(a: str) -> Case:
    fields = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30, "decoder_start_token_id": 1}
    model = make("WhisperModel", "WhisperConfig", a, vocab_size=VOCABULARY, **fields, **_CODERS)
    sound = {"input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(0))}
    return model, {**sound, **_DECODED}, {"decoder_attention_mask": torch.ones(2, 7, dtype=torch.long)}, 6, 2


def opt(a: str) -> Case:
    fields = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "max_position_embeddings": 40,
    }
    return (
        make("OPTModel", "OPTConfig", a, vocab_size=VOCABULARY, word_embed_proj_dim=32, use_cache=False, **fields),
        _TOKENS,
        _PADDING,
        2,
        2,
    )


def vit(a: str) -> Case:
    return make("ViTModel", "ViTConfig", a, image_size=32, patch_size=8, **_SMALL), _IMAGE, {}, 2, 0


def clip(a: str) -> Case:
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 20, "eos_token_id": 2, **_SMALL}
    model = make(
        "CLIPModel",
        "CLIPConfig",
        a,
        text_config=text,
        vision_config={"image_size": 32, "patch_size": 8, **_SMALL},
        projection_dim=16,
    )
    return model, {**_TOKENS, **_IMAGE}, _PADDING, 4, 2


MODELS: dict[str, Callable[[str], Case]] = {
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta"),
    "electra": encoder("Electra"),
    "distilbert": distilbert,
    "gpt2": gpt2,
    "llama": decoder("Llama"),
    "qwen2": decoder("Qwen2"),
    "mistral": decoder("Mistral"),
    "opt": opt,
    "t5": t5,
    "bart": bart,
    "whisper": whisper,
    "vit": vit,
    "clip": clip,
}


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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
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


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "dropout_prob", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.train()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "qwen2", "distilbert", "clip"])
def test_in_training(name: str) -> None:
    """Forward and backward of every attention are fused, and the numbers of both stay."""
    model, arguments, _, attentions, _ = MODELS[name]("eager")
    found: list[torch.fx.Node] = []

    def backend(graph_module, inputs):
        joint = trace_joint(graph_module.forward, inputs, None, {}, True)
        placeholders = [n for n in joint.graph.graph.nodes if n.op == "placeholder"]
        given = [i.detach() for i in inputs]
        given += [torch.randn(n.meta["val"].shape) for n in placeholders[len(given) :]]
        before = results(joint.graph, given)
        rewrite_joint(joint, context())
        for old, new in zip(before, results(joint.graph, given), strict=True):
            torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-4)
        found.extend(n for n in joint.graph.graph.nodes if "_scaled_dot_product_" in str(n.target))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(without_dropout(model), backend=backend)(**arguments)
    assert len(found) == 2 * attentions
