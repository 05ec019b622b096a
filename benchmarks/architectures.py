"""More architectures from `transformers`, for `benchmarks/models_more.py`: few layers of real width, random weights.

In: a name. Out: the module and its keyword arguments, as in `models.py`. Layers are few so that all of them fit into
one run; widths, windows, strides and sequence lengths are those of the models as they are published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Case = tuple[torch.nn.Module, dict[str, Any]]


def _tokens(config: Any, batch: int, length: int) -> torch.Tensor:
    return torch.randint(2, config.vocab_size, (batch, length))


def _lively(module: torch.nn.Module) -> torch.nn.Module:
    """Weights of a size that keeps activations near one: those that `transformers` draws let them vanish within a few
    layers, and gradients of nothing compare nothing."""
    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
        elif isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.weight, 0.5, 1.5)
    return module


# -- images -----------------------------------------------------------------------------------------
def efficientnet() -> Case:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    # B0: squeeze and excite after depthwise windows of 3 and 5, some of them strided.
    config = EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=1000)
    return _lively(EfficientNetForImageClassification(config)), {"pixel_values": torch.randn(2, 3, 128, 128)}


def mobilenet_v2() -> Case:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    module = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000))
    return _lively(module), {"pixel_values": torch.randn(2, 3, 160, 160)}


def regnet() -> Case:
    from transformers import RegNetConfig, RegNetForImageClassification

    config = RegNetConfig(hidden_sizes=[48, 104, 208, 440], depths=[1, 3, 6, 2], groups_width=8, num_labels=1000)
    return _lively(RegNetForImageClassification(config)), {"pixel_values": torch.randn(2, 3, 160, 160)}


def mobilevit() -> Case:
    from transformers import MobileViTConfig, MobileViTForImageClassification

    module = MobileViTForImageClassification(MobileViTConfig(num_labels=1000))
    return _lively(module), {"pixel_values": torch.randn(2, 3, 192, 192)}


def poolformer() -> Case:
    from transformers import PoolFormerConfig, PoolFormerForImageClassification

    module = PoolFormerForImageClassification(PoolFormerConfig(num_labels=1000))
    return _lively(module), {"pixel_values": torch.randn(2, 3, 160, 160)}


def swin() -> Case:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(depths=[1, 1, 2, 1], num_labels=1000)
    return SwinForImageClassification(config), {"pixel_values": torch.randn(2, 3, 224, 224)}


def deit() -> Case:
    from transformers import DeiTConfig, DeiTModel

    config = DeiTConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
    return DeiTModel(config), {"pixel_values": torch.randn(2, 3, 224, 224)}


def dinov2() -> Case:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, image_size=224)
    return Dinov2Model(config), {"pixel_values": torch.randn(2, 3, 224, 224)}


def segformer() -> Case:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig()), {"pixel_values": torch.randn(2, 3, 192, 192)}


def clip() -> Case:
    from transformers import CLIPConfig, CLIPModel

    text = {"num_hidden_layers": 3, "vocab_size": 8192, "eos_token_id": 8191, "bos_token_id": 8190}
    config = CLIPConfig(text_config=text, vision_config={"num_hidden_layers": 3})
    return CLIPModel(config), {
        "input_ids": torch.randint(0, 8192, (2, 77)),
        "pixel_values": torch.randn(2, 3, 224, 224),
    }


# -- sound ------------------------------------------------------------------------------------------
def whisper() -> Case:
    from transformers import WhisperConfig, WhisperModel

    special = {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 2}
    config = WhisperConfig(encoder_layers=2, decoder_layers=2, vocab_size=8192, use_cache=False, **special)
    return WhisperModel(config), {
        "input_features": torch.randn(1, 80, 3000),
        "decoder_input_ids": torch.randint(0, 8192, (1, 64)),
    }


def wav2vec2() -> Case:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(num_hidden_layers=2, apply_spec_augment=False)
    return Wav2Vec2Model(config), {"input_values": torch.randn(1, 32000)}


def hubert() -> Case:
    from transformers import HubertConfig, HubertModel

    config = HubertConfig(
        num_hidden_layers=2, apply_spec_augment=False, feat_extract_norm="layer", conv_bias=True,
        do_stable_layer_norm=True,
    )  # fmt: skip
    return HubertModel(config), {"input_values": torch.randn(1, 32000)}


def dac() -> Case:
    from transformers import DacConfig, DacModel

    module = DacModel(DacConfig(n_codebooks=2))
    return module, {"input_values": torch.randn(1, 1, 8192)}


def univnet() -> Case:
    from transformers import UnivNetConfig, UnivNetModel

    # Its noise is an input here, so that all contenders are given the same.
    noise = torch.randn(1, 32, UnivNetConfig().model_in_channels)
    return UnivNetModel(UnivNetConfig()), {"input_features": torch.randn(1, 32, 100), "noise_sequence": noise}


# -- text -------------------------------------------------------------------------------------------
def t5() -> Case:
    from transformers import T5Config, T5Model

    config = T5Config(num_layers=3, vocab_size=8192, use_cache=False)
    return T5Model(config), {"input_ids": _tokens(config, 2, 128), "decoder_input_ids": _tokens(config, 2, 64)}


def bart() -> Case:
    from transformers import BartConfig, BartModel

    config = BartConfig(d_model=768, encoder_layers=2, decoder_layers=2, vocab_size=8192, use_cache=False)
    return BartModel(config), {"input_ids": _tokens(config, 2, 128), "decoder_input_ids": _tokens(config, 2, 64)}


def mistral() -> Case:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=512, intermediate_size=1792, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=8192, sliding_window=64, use_cache=False,
    )  # fmt: skip
    return MistralForCausalLM(config), {"input_ids": _tokens(config, 2, 192)}


def qwen2() -> Case:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=8192, use_cache=False,
    )  # fmt: skip
    return Qwen2ForCausalLM(config), {"input_ids": _tokens(config, 2, 192)}


def gemma() -> Case:
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
        head_dim=128, vocab_size=8192, use_cache=False,
    )  # fmt: skip
    return GemmaForCausalLM(config), {"input_ids": _tokens(config, 2, 192)}


def mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        num_local_experts=4, vocab_size=8192, use_cache=False,
    )  # fmt: skip
    # The product of groups has no float64, and the referee needs it.
    config._experts_implementation = "eager"
    return MixtralForCausalLM(config), {"input_ids": _tokens(config, 2, 128)}


def mamba() -> Case:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(hidden_size=384, num_hidden_layers=2, vocab_size=8192, use_cache=False)
    return MambaForCausalLM(config), {"input_ids": _tokens(config, 2, 64)}


def rwkv() -> Case:
    from transformers import RwkvConfig, RwkvModel

    config = RwkvConfig(hidden_size=384, num_hidden_layers=2, vocab_size=8192, use_cache=False)
    return RwkvModel(config), {"input_ids": _tokens(config, 2, 48)}


def distilbert() -> Case:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(n_layers=3, vocab_size=8192)
    return DistilBertModel(config), {"input_ids": _tokens(config, 4, 128)}


def albert() -> Case:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=3, vocab_size=8192
    )
    return AlbertModel(config), {"input_ids": _tokens(config, 2, 128)}


def deberta_v2() -> Case:
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=3, vocab_size=8192,
        relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        share_att_key=True,
    )  # fmt: skip
    return DebertaV2Model(config), {"input_ids": _tokens(config, 2, 128)}


def convbert() -> Case:
    from transformers import ConvBertConfig, ConvBertModel

    config = ConvBertConfig(num_hidden_layers=3, vocab_size=8192)
    return ConvBertModel(config), {"input_ids": _tokens(config, 2, 128)}


def big_bird() -> Case:
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(num_hidden_layers=2, vocab_size=8192, attention_type="original_full", use_cache=False)
    return BigBirdModel(config), {"input_ids": _tokens(config, 2, 256)}


def fnet() -> Case:
    from transformers import FNetConfig, FNetModel

    config = FNetConfig(num_hidden_layers=3, vocab_size=8192)
    return FNetModel(config), {"input_ids": _tokens(config, 2, 128)}


def perceiver() -> Case:
    from transformers import PerceiverConfig, PerceiverModel

    config = PerceiverConfig(num_latents=128, d_latents=512, d_model=256, num_self_attends_per_block=3)
    return PerceiverModel(config), {"inputs": torch.randn(2, 1024, 256)}


# -- series -----------------------------------------------------------------------------------------
def patchtst() -> Case:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(num_input_channels=7, context_length=512, patch_length=16, patch_stride=8)
    return PatchTSTForPrediction(config), {"past_values": torch.randn(8, 512, 7)}


def _series(config: Any) -> dict[str, Any]:
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.rand(8, past) + 0.5,
        "past_time_features": torch.randn(8, past, config.num_time_features),
        "past_observed_mask": torch.ones(8, past),
        "future_values": torch.rand(8, config.prediction_length) + 0.5,
        "future_time_features": torch.randn(8, config.prediction_length, config.num_time_features),
    }


def time_series_transformer() -> Case:
    from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerModel

    config = TimeSeriesTransformerConfig(
        prediction_length=48, context_length=96, num_time_features=4, d_model=128, encoder_ffn_dim=512,
        decoder_ffn_dim=512, encoder_attention_heads=4, decoder_attention_heads=4, use_cache=False,
    )  # fmt: skip
    return TimeSeriesTransformerModel(config), _series(config)


def informer() -> Case:
    from transformers import InformerConfig, InformerModel

    config = InformerConfig(
        prediction_length=48, context_length=96, num_time_features=4, d_model=128, encoder_ffn_dim=512,
        decoder_ffn_dim=512, encoder_attention_heads=4, decoder_attention_heads=4, attention_type="full",
        use_cache=False,
    )  # fmt: skip
    return InformerModel(config), _series(config)


ARCHITECTURES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        efficientnet, mobilenet_v2, regnet, mobilevit, poolformer, swin, deit, dinov2, segformer, clip,
        whisper, wav2vec2, hubert, dac, univnet,
        t5, bart, mistral, qwen2, gemma, mixtral, mamba, rwkv, distilbert, albert, deberta_v2, convbert, big_bird,
        fnet, perceiver,
        patchtst, time_series_transformer, informer,
    )
}  # fmt: skip
