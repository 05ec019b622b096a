"""transformers: training by its `Trainer`, and `generate` with each kind of cache."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)  # fmt: skip

from tests.ecosystem.same import close, compiled_whole


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=99, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=100, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=99,
        pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.seen.append(logs["loss"])


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Of several lengths, padded by the collator to the longest of a batch; the last batch is smaller."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(5, 24, (count,), generator=draw).tolist()
    return [
        {
            "input_ids": torch.randint(1, 100, (n,), generator=draw),
            "labels": torch.randint(0, 2, (), generator=draw),
        }
        for n in lengths
    ]  # fmt: skip


def padded(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([b["input_ids"] for b in batch], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.stack([b["labels"] for b in batch])}


def trained(model: torch.nn.Module, folder: Path, **arguments: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    losses = Losses()
    settings = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=2, logging_steps=1, learning_rate=1e-3,
        report_to=[], save_strategy="no", seed=0, use_cpu=True, disable_tqdm=True, **arguments,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=settings, train_dataset=sentences(18), data_collator=padded, callbacks=[losses]
    )  # fmt: skip
    trainer.train()
    return losses.seen, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"max_grad_norm": 0.1, "weight_decay": 0.1},
    ],
    ids=["plain", "accumulation", "checkpointing", "bf16", "clipping"],
)
def test_the_trainer(arguments: dict[str, Any], tmp_path: Path) -> None:
    wanted, weights = trained(bert(), tmp_path, **arguments)
    model = bert()
    model.compile(backend="litz")
    # Lengths and the batch of the last step vary: a graph for the first batch, one for all lengths, one for batches.
    with compiled_whole(most=4):
        losses, own = trained(model, tmp_path, **arguments)
    close(torch.tensor(losses), torch.tensor(wanted), factor=100 if "bf16" in arguments else 5)
    for name, weight in weights.items():
        close(own[name], weight, factor=1000 if "bf16" in arguments else 20)


PROMPTS = [(2, 7), (2, 11), (1, 4)]


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_generate(make: Any, cache: str) -> None:
    model = make()
    plain = copy.deepcopy(model)
    config = GenerationConfig(
        max_new_tokens=12, do_sample=False, pad_token_id=0, use_cache=cache != "none",
        cache_implementation="static" if cache == "static" else None, disable_compile=True,
    )  # fmt: skip
    model.forward = torch.compile(model.forward, backend="litz")
    with compiled_whole(), torch.no_grad():
        for batch, length in PROMPTS:
            ids = torch.randint(2, 99, (batch, length), generator=torch.Generator().manual_seed(length))
            mask = torch.ones_like(ids)
            wanted = plain.generate(ids, attention_mask=mask, generation_config=config)
            assert torch.equal(model.generate(ids, attention_mask=mask, generation_config=config), wanted)


def test_generate_draws_what_eager_draws() -> None:
    model, plain = llama(), llama()
    config = GenerationConfig(max_new_tokens=10, do_sample=True, top_k=20, temperature=0.8, pad_token_id=0)
    model.forward = torch.compile(model.forward, backend="litz")
    ids = torch.randint(2, 99, (2, 9), generator=torch.Generator().manual_seed(1))
    found = []
    with compiled_whole(), torch.no_grad():
        for each in (plain, model):
            torch.manual_seed(5)
            found.append(each.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config))
    assert torch.equal(*found)
