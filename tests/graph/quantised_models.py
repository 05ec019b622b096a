"""Models of quantised numbers as PyTorch's export leaves them, written by hand: nothing is needed that quantises."""

from __future__ import annotations

from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # it registers the operators
from torch import nn
from torch.nn import functional as F

quantised = torch.ops.quantized_decomposed
RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


class Quantised(nn.Module):
    """A weight of 8 bits with a scale and a zero point for each of its channels, and how the input is quantised."""

    def __init__(
        self, *shape: int, scale: float = 0.03, zero: int = 120, dtype: torch.dtype = torch.uint8,
        of: torch.dtype = torch.float32, dynamic: bool = False, bias: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.how = (scale, zero, *RANGES[dtype], dtype)
        self.of, self.dynamic = of, dynamic
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int32).to(torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.rand(shape[0], generator=generator) / 64 + 1e-3)
        self.register_buffer("zeros", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(shape[0], generator=generator).to(of)) if bias else None

    def there_and_back(self, x: torch.Tensor) -> torch.Tensor:
        """The input, quantised and dequantised."""
        _, _, low, high, dtype = self.how
        if self.dynamic:
            scale, zero = quantised.choose_qparams.tensor(x, low, high, 2.0**-12, dtype)
            small = quantised.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
            return quantised.dequantize_per_tensor.tensor(small, scale, zero, low, high, dtype)
        return quantised.dequantize_per_tensor(quantised.quantize_per_tensor(x, *self.how), *self.how)

    def wide(self) -> torch.Tensor:
        return quantised.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)


class Linear(Quantised):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.there_and_back(x).to(self.of), self.wide().to(self.of), self.bias)


class Convolution(Quantised):
    def __init__(self, *shape: int, form: dict[str, Any], **how: Any):
        super().__init__(*shape, **how)
        self.form = form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(self.there_and_back(x).to(self.of), self.wide().to(self.of), self.bias, **self.form)


class Block(nn.Module):
    """Two convolutions and what stands around them: the image is read again, and the result quantised."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Convolution(32, 16, 3, 3, form={"padding": 1}, zero=3)
        self.second = Convolution(32, 32, 1, 1, form={}, zero=0, scale=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.second.there_and_back(F.relu(self.first(x)))
        weight = self.second.wide()
        out = F.relu(F.conv2d(middle, weight, self.second.bias) + middle)
        return self.second.there_and_back(out)


__all__ = ["Block", "Convolution", "Linear", "Quantised", "quantised"]
