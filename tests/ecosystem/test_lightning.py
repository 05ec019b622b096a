"""Lightning: a module compiled and handed to its trainer, with validation and a smaller last batch."""

from __future__ import annotations

from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.ecosystem.same import close, compiled_whole


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32, bias=False), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4))
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.seen.append(loss.detach().clone())
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.log("valid", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fitted(folder: Path, compile: bool) -> Classifier:
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    draw = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(50, 12, generator=draw), torch.randint(0, 4, (50,), generator=draw))
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, accumulate_grad_batches=2, gradient_clip_val=1.0,
    )  # fmt: skip
    # Lightning compiles the steps of what it is handed, with `forward` in them.
    handed = torch.compile(model, backend="litz") if compile else model
    trainer.fit(handed, DataLoader(data, batch_size=16), DataLoader(data, batch_size=20))
    return model


def test_fit(tmp_path: Path) -> None:
    plain = fitted(tmp_path, compile=False)
    with compiled_whole():
        mine = fitted(tmp_path, compile=True)
    close(torch.stack(mine.seen), torch.stack(plain.seen), factor=20)
    for name, value in plain.state_dict().items():
        close(mine.state_dict()[name], value, factor=50)
