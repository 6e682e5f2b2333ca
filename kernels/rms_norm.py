"""RMS normalization, alone and together with the residual addition that precedes it."""

import torch

_FEW_ROWS = 32
"""Rows up to which one pass over twice the width beats five over the width itself."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension; x is [..., N], weight broadcasts against it.

    Computed in float32, rounded to x's dtype, then multiplied by the weight: the order in which Hugging Face's models
    were trained and are evaluated, so that float32 results agree with theirs to the last bits.
    """
    if x.dtype != torch.float32 and x.dim() == 2 and x.shape[0] <= _FEW_ROWS:
        return _mirrored_norm(x, eps) * weight
    wide = x.float()
    # A norm instead of a mean of squares: one pass less over what is mostly overhead when rows are few.
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    normalized = wide * scale if wide is x else wide.mul_(scale).to(x.dtype)
    return normalized.mul_(weight)


def _mirrored_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x)`` of a 16-bit x [T, N], computed in float32: the layer norm of (x, -x), whose mean is zero.

    One fused operator instead of a chain of small ones, each of which costs more to call than to compute when rows are
    few: 6 us instead of 10 for a row of 576 on a CPU.
    """
    size = x.shape[-1]
    return torch.layer_norm(torch.cat((x, torch.neg(x)), -1), (2 * size,), eps=eps)[..., :size]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual), x + residual)``; x and residual are [T, N].

    The sum may be written over either input: callers must use only what is returned.
    """
    total = residual.add_(x)
    return rms_norm(total, weight, eps), total
