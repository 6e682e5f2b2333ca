"""RMS normalization, alone and together with the residual addition that precedes it."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension; x is [..., N], weight broadcasts against it.

    Computed in float32, rounded to x's dtype, then multiplied by the weight: the order in which Hugging Face's models
    were trained and are evaluated, so that float32 results agree with theirs to the last bits.
    """
    wide = x.float()
    # A norm instead of a mean of squares: one pass less over what is mostly overhead when rows are few.
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    normalized = wide * scale if wide is x else wide.mul_(scale).to(x.dtype)
    return normalized.mul_(weight)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual), x + residual)``; x and residual are [T, N].

    The sum may be written over either input: callers must use only what is returned.
    """
    total = residual.add_(x)
    return rms_norm(total, weight, eps), total
