"""RMS normalization, alone and together with the residual addition that precedes it: one program per row."""

import torch
import triton
import triton.language as tl

from .device import power_of_2

_WARPS_WIDTH = 512
"""Elements of a row for each warp."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """``x / rms(x) * weight`` for x [T, N] (rows may be strided) and ``weight`` [N]; fills ``out`` or a new tensor.

    Computed in float32, rounded to x's type, then multiplied by the weight, as in ``kernels.rms_norm``.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, out, eps, residual=False)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rms_norm(x + residual), x + residual)``; the sum, rounded to the type of x, replaces ``residual`` [T, N].

    ``out`` may be x itself.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, residual, weight, out, eps, residual=True)
    return out, residual


def _launch(
    x: torch.Tensor, residual_rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, residual: bool
) -> None:
    rows, width = x.shape
    if rows == 0:
        return
    padded = power_of_2(width)
    _rms_norm_kernel[(rows,)](
        x, residual_rows, weight, out, x.stride(0), residual_rows.stride(0), out.stride(0), eps,
        WIDTH=width, WIDTH_PAD=padded, RESIDUAL=residual, num_warps=min(16, max(1, padded // _WARPS_WIDTH)),
    )  # fmt: skip


@triton.jit
def _rms_norm_kernel(
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, out: tl.tensor, x_stride: tl.tensor,
    residual_stride: tl.tensor, out_stride: tl.tensor, eps: tl.tensor,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, RESIDUAL: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH_PAD)
    mask = columns < WIDTH
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0)
    scales = tl.load(weight + columns, mask=mask, other=0.0)
    if RESIDUAL:
        at = residual + row * residual_stride + columns
        carried = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        values = (values.to(tl.float32) + carried).to(values.dtype)
        tl.store(at, values, mask=mask)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) * (1.0 / WIDTH) + eps)
    normalized = (wide * scale).to(values.dtype).to(tl.float32)
    tl.store(out + row * out_stride + columns, (normalized * scales.to(tl.float32)).to(values.dtype), mask=mask)
