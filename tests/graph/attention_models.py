"""Fourteen architectures no one here wrote, small, with random weights: one layer of each kind they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

VOCABULARY = 100
# module, arguments, the arguments of a mask, attentions, of them causal when there is no mask
Case = tuple[torch.nn.Module, dict[str, Any], dict[str, Any], int, int]

_TOKENS = {"input_ids": torch.randint(5, VOCABULARY - 1, (2, 12), generator=torch.Generator().manual_seed(0))}
_PADDING = {"attention_mask": torch.ones(2, 12, dtype=torch.long).index_fill(1, torch.arange(9, 12), 0)}
_IMAGE = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
_CODERS = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
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
    import transformers

    settings = getattr(transformers, config)(**fields)
    return getattr(transformers, model)._from_config(settings, attn_implementation=attention).eval()


def encoder(name: str) -> Callable[[str], Case]:
    return lambda a: (
        make(f"{name}Model", f"{name}Config", a, vocab_size=VOCABULARY, **_SMALL),
        _TOKENS,
        _PADDING,
        1,
        0,
    )


def decoder(name: str) -> Callable[[str], Case]:
    fields = {**_SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    return lambda a: (
        make(f"{name}ForCausalLM", f"{name}Config", a, vocab_size=VOCABULARY, **fields),
        _TOKENS,
        _PADDING,
        1,
        1,
    )


def gpt2(a: str) -> Case:
    fields = {"n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    return make("GPT2LMHeadModel", "GPT2Config", a, vocab_size=VOCABULARY, **fields), _TOKENS, _PADDING, 1, 1


def distilbert(a: str) -> Case:
    fields = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
    return make("DistilBertModel", "DistilBertConfig", a, vocab_size=VOCABULARY, **fields), _TOKENS, _PADDING, 1, 0


def t5(a: str) -> Case:
    fields = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "use_cache": False}
    # The position bias is a mask to the fused operator, so nothing is purely causal here.
    return make("T5Model", "T5Config", a, vocab_size=VOCABULARY, **fields), {**_TOKENS, **_DECODED}, _PADDING, 3, 0


def bart(a: str) -> Case:
    return (
        make("BartModel", "BartConfig", a, vocab_size=VOCABULARY, max_position_embeddings=30, **_CODERS),
        {**_TOKENS, **_DECODED},
        _PADDING,
        3,
        1,
    )


def whisper(a: str) -> Case:
    fields = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30, "decoder_start_token_id": 1}
    model = make("WhisperModel", "WhisperConfig", a, vocab_size=VOCABULARY, **fields, **_CODERS)
    sound = {"input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(0))}
    return model, {**sound, **_DECODED}, {"decoder_attention_mask": torch.ones(2, 7, dtype=torch.long)}, 3, 1


def opt(a: str) -> Case:
    fields = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "max_position_embeddings": 40,
    }
    return (
        make("OPTModel", "OPTConfig", a, vocab_size=VOCABULARY, word_embed_proj_dim=32, use_cache=False, **fields),
        _TOKENS,
        _PADDING,
        1,
        1,
    )


def vit(a: str) -> Case:
    return make("ViTModel", "ViTConfig", a, image_size=32, patch_size=8, **_SMALL), _IMAGE, {}, 1, 0


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
    return model, {**_TOKENS, **_IMAGE}, _PADDING, 2, 1


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


def with_dropout(model: torch.nn.Module, share: float) -> torch.nn.Module:
    """In training, with every dropout set to `share`, also those that a model keeps as a number."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share
        for name in ("dropout", "attention_dropout", "dropout_prob", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, share)
    return model.train()
