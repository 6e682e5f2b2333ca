"""Weight-only int8 products: one scale per output channel, symmetric."""

import torch

_product = torch.ops.aten._weight_int8pack_mm.default

INPUT_MULTIPLE = 16
"""torch's kernel reads past the end (and may crash) unless the input width is a multiple of this."""


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row of ``weight`` [N, K] to -127..127 times its scale. Returns (int8 [N, K], scales [N]).

    Scales have the weight's dtype, and are rounded to it before the division, so that ``int8 * scale`` is as close to
    the weight as that dtype allows. A row of zeros gets scale 1.
    """
    scales = (weight.abs().amax(1).float() / 127).to(weight.dtype)
    scales[scales == 0] = 1
    quantized = (weight.float() / scales.float().unsqueeze(1)).round_().clamp_(-127, 127)
    return quantized.to(torch.int8), scales


def dequantize_int8(quantized: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight [N, K] that ``quantized`` and ``scales`` stand for, in the scales' dtype."""
    return quantized.to(scales.dtype).mul_(scales.unsqueeze(1))


def int8_linear(
    x: torch.Tensor, quantized: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ (quantized * scales).T + bias`` on a CPU; x is [T, K], contiguous. Returns [T, N]."""
    out = _product(x, quantized, scales)
    return out if bias is None else out.add_(bias)
