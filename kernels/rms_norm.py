"""RMS normalization, alone and together with the residual addition that precedes it."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension; x is [..., N], weight broadcasts against it.

    Computed in float32, rounded to x's dtype, then multiplied by the weight: the order in which Hugging Face's models
    were trained and are evaluated, so that float32 results agree with theirs to the last bits.
    """
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual), x + residual)``; x and residual are [T, N].

    The sum may be written over either input: callers must use only what is returned.
    """
    total = residual.add_(x)
    return rms_norm(total, weight, eps), total
