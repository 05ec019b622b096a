"""Small versions of the benchmarks' six models: two layers, widths that no vector divides evenly, random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _tokens(vocabulary: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, vocabulary, (2, 19))}


def _image(size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=60, num_hidden_layers=2, num_attention_heads=3, intermediate_size=109, vocab_size=97,
        max_position_embeddings=40, use_cache=False,
    )  # fmt: skip
    return BertModel(config), _tokens(97)


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=44, n_layer=2, n_head=4, vocab_size=101, n_positions=40, use_cache=False)
    return GPT2LMHeadModel(config), _tokens(101)


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=72, intermediate_size=131, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
        vocab_size=103, max_position_embeddings=40, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), _tokens(103)


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=51, num_hidden_layers=2, num_attention_heads=3, intermediate_size=85, image_size=40, patch_size=8
    )
    return ViTModel(config), _image(40)


def resnet() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=20, hidden_sizes=[36, 64], depths=[1, 1], num_labels=11)
    return ResNetForImageClassification(config), _image(45)


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(num_stages=2, hidden_sizes=[20, 48], depths=[1, 1], num_labels=7)
    return ConvNextForImageClassification(config), _image(40)


MODELS: dict[str, Callable[[], Case]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit, "resnet": resnet, "convnext": convnext,
}  # fmt: skip


def build(name: str) -> Case:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    items = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors(item)]


def judge(name: str, **options: Any) -> None:
    """The referee is the same model in float64: Litz may be off by twice what eager is, and a few units more."""
    model, inputs = build(name)
    with torch.no_grad():
        found = tensors(torch.compile(model, backend="litz", options=options or None)(**inputs))
        eager = tensors(model(**inputs))
        exact = tensors(model.double()(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}))
    assert len(found) == len(eager) == len(exact) > 0
    for mine, theirs, true in zip(found, eager, exact, strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        off, allowed = [float((x.double() - true).abs().max()) for x in (mine, theirs)]
        floor = 4 * torch.finfo(torch.float32).eps * float(true.abs().max())
        assert off <= 2 * allowed + floor, f"{name}: off by {off:.3g}, where eager is by {allowed:.3g}"


if __name__ == "__main__":
    import sys

    for given in sys.argv[1:]:
        torch._dynamo.reset()
        judge(given)
        print(f"{given} agrees")
