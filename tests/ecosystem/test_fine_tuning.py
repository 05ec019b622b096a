"""PEFT: LoRA adapters around a compiled model, trained, merged and switched off."""

from __future__ import annotations

import copy

import torch
from peft import LoraConfig, get_peft_model

from tests.ecosystem.same import close, compiled_whole, gradients
from tests.ecosystem.test_transformers import llama


def adapted() -> torch.nn.Module:
    torch.manual_seed(0)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = get_peft_model(llama(), settings)
    draw = torch.Generator().manual_seed(1)
    for name, p in model.named_parameters():
        if "lora_B" in name:  # zero as made, so that nothing would be seen of it
            p.data.normal_(0, 0.1, generator=draw)
    return model.train()


def test_training_of_adapters() -> None:
    model, plain = adapted(), adapted()
    compiled = torch.compile(model, backend="litz")
    optimizers = [torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2) for m in (model, plain)]
    with compiled_whole(most=3):
        for length in (12, 9, 17, 12, 30):
            ids = torch.randint(2, 99, (2, length), generator=torch.Generator().manual_seed(length))
            losses = []
            for each, optimizer in zip((compiled, plain), optimizers, strict=True):
                optimizer.zero_grad()
                loss = each(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            close(*losses)
            for name, gradient in gradients(plain).items():
                close(dict(gradients(model))[name], gradient, factor=20)


def test_adapters_switched_off_and_merged() -> None:
    model, plain = adapted().eval(), adapted().eval()
    compiled = torch.compile(model, backend="litz")
    ids = torch.randint(2, 99, (2, 10), generator=torch.Generator().manual_seed(0))
    with compiled_whole(), torch.no_grad():
        close(compiled(input_ids=ids).logits, plain(input_ids=ids).logits)
        with model.disable_adapter(), plain.disable_adapter():
            close(compiled(input_ids=ids).logits, plain(input_ids=ids).logits)
        merged = copy.deepcopy(model).merge_and_unload()
        close(torch.compile(merged, backend="litz")(input_ids=ids).logits, plain(input_ids=ids).logits)
