"""The six models of the benchmarks: architectures from `transformers`, random weights, float32.

In: a name, of one of them or of one in `architectures.py`. Out: the module in eval mode and its keyword arguments, the
same in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.architectures import ARCHITECTURES

Case = tuple[torch.nn.Module, dict[str, Any]]


def bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=4, use_cache=False)
    return BertModel(config), {"input_ids": torch.randint(0, config.vocab_size, (4, 128))}


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, vocab_size=8192, use_cache=False)
    return GPT2LMHeadModel(config), {"input_ids": torch.randint(0, config.vocab_size, (2, 256))}


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        vocab_size=8192,
        use_cache=False,
    )
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, config.vocab_size, (2, 256))}


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(num_hidden_layers=4)), {"pixel_values": torch.randn(4, 3, 224, 224)}


def resnet() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig()), {"pixel_values": torch.randn(4, 3, 224, 224)}


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(ConvNextConfig()), {"pixel_values": torch.randn(2, 3, 224, 224)}


MODELS: dict[str, Callable[[], Case]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "resnet": resnet,
    "convnext": convnext,
}


def build(name: str) -> Case:
    """The model in eval mode and its arguments; weights and inputs come from a fixed seed."""
    torch.manual_seed(0)
    module, kwargs = (MODELS | ARCHITECTURES)[name]()
    return module.eval(), kwargs


def tensors(output: Any) -> list[torch.Tensor]:
    """All tensors of a model's output, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for item in output for tensor in tensors(item)]
    return []
