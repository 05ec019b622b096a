"""A Llama-style stack in training: 8 layers at 2,048 tokens, small enough that twenty steps of it take a minute."""

from __future__ import annotations

from typing import Any

import torch

LAYERS, TOKENS = 8, 2048


def stack(layers: int = LAYERS, tokens: int = TOKENS) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The module, and the arguments with which it gives its loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=2048,
        use_cache=False,
    )
    torch.manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (1, tokens))
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


def loss_of(module: torch.nn.Module) -> Any:
    def loss(**kwargs: Any) -> torch.Tensor:
        return module(**kwargs).loss

    return loss


__all__ = ["LAYERS", "TOKENS", "loss_of", "stack"]
