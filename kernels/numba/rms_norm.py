"""RMS normalization of rows, with the residual addition that precedes it."""

import numpy as np
import torch

from .elements import Pointer, integer, real, rounded_like, widen
from .team import kernel, team_size, thread_number


@kernel("qqqqqqd")
def _add_rms_norm(words: Pointer) -> None:
    x, residual, weight, out = words[0], words[1], words[2], words[3]
    rows, width, eps = integer(words[4]), integer(words[5]), np.float32(real(words[6]))
    thread, threads = np.int64(thread_number()), np.int64(team_size())
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        base = row * width
        squares = np.float32(0)
        for i in range(width):
            total = rounded_like(residual, widen(x[base + i]) + widen(residual[base + i]))
            residual[base + i] = total
            squares += widen(total) * widen(total)
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            normalized = rounded_like(out, widen(residual[base + i]) * scale)
            out[base + i] = rounded_like(out, widen(normalized) * widen(weight[i]))


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``kernels.rms_norm.add_rms_norm`` for contiguous x and residual [T, N]; the sum is written over ``residual``."""
    assert x.is_contiguous() and residual.is_contiguous()
    rows, width = x.shape
    out = torch.empty_like(x)
    _add_rms_norm(
        x.dtype, rows * width, x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps
    )
    return out, residual
