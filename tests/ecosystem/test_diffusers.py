"""diffusers: a UNet and a VAE at three sizes of image, and a denoising loop over both."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel, UNet2DModel

from tests.ecosystem.same import close, compiled_whole, gradients, twins


def unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32, attention_head_dim=8, norm_num_groups=8,
    )  # fmt: skip


def vae() -> AutoencoderKL:
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8,
    )  # fmt: skip


SIZES = [16, 24, 32, 20]


def test_a_unet_at_several_sizes() -> None:
    model, plain = twins(unet)
    compiled = torch.compile(model, backend="litz")
    with compiled_whole(), torch.no_grad():
        for step, size in enumerate(SIZES):
            x, text = torch.randn(2, 4, size, size), torch.randn(2, 7, 32)
            time = torch.tensor([10 + step, 500])
            close(compiled(x, time, text).sample, plain(x, time, text).sample, factor=5)


def test_training_a_unet_at_several_sizes() -> None:
    model, plain = twins(unet)
    compiled = torch.compile(model, backend="litz")
    with compiled_whole():
        for size in SIZES[:3]:
            x, text, time = torch.randn(2, 4, size, size), torch.randn(2, 7, 32), torch.tensor([3, 700])
            for each in (compiled, plain):
                each.zero_grad()
                each(x, time, text).sample.pow(2).mean().backward()
            for name, gradient in gradients(plain).items():
                close(dict(gradients(model))[name], gradient, factor=20)


@pytest.mark.parametrize("part", ["encode", "decode"])
def test_a_vae_at_several_sizes(part: str) -> None:
    model, plain = twins(vae)
    with compiled_whole(), torch.no_grad():
        if part == "encode":
            compiled = torch.compile(lambda x: model.encode(x).latent_dist.mean, backend="litz")
            for size in (32, 48, 64, 40):
                x = torch.randn(1, 3, size, size)
                close(compiled(x), plain.encode(x).latent_dist.mean, factor=5)
        else:
            compiled = torch.compile(lambda z: model.decode(z).sample, backend="litz")
            for size in SIZES:
                z = torch.randn(1, 4, size, size)
                close(compiled(z), plain.decode(z).sample, factor=5)


def test_a_denoising_loop() -> None:
    def make() -> UNet2DModel:
        return UNet2DModel(
            sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip

    model, plain = twins(make)
    compiled = torch.compile(model, backend="litz")
    found = []
    with compiled_whole(most=2), torch.no_grad():
        for each in (compiled, plain):
            scheduler = DDIMScheduler(num_train_timesteps=100)
            scheduler.set_timesteps(5)
            image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
            for step in scheduler.timesteps:
                image = scheduler.step(each(image, step).sample, step, image).prev_sample
            found.append(image)
    close(*found, factor=20)
