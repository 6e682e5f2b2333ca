"""The gated activation of an MLP: ``silu(gate) * up`` on the output of one merged projection."""

import numpy as np
import torch

from .elements import Pointer, exponential, integer, rounded_like, widen
from .team import kernel, team_size, thread_number


@kernel("qqqq")
def _silu_and_mul(words: Pointer) -> None:
    gate_up, out = words[0], words[1]
    rows, width = integer(words[2]), integer(words[3])
    thread, threads = np.int64(thread_number()), np.int64(team_size())
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        for i in range(width):
            gate = widen(gate_up[2 * row * width + i])
            power = exponential(-abs(gate))  # of a positive number it could overflow
            share = np.float32(1) if gate > 0 else power
            activated = rounded_like(out, gate * (share / (np.float32(1) + power)))
            up = widen(gate_up[(2 * row + 1) * width + i])
            out[row * width + i] = rounded_like(out, widen(activated) * up)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``kernels.gated_activation.silu_and_mul`` for a contiguous ``gate_up`` [T, 2 * N]. Returns [T, N]."""
    assert gate_up.is_contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype)
    _silu_and_mul(gate_up.dtype, 4 * rows * width, gate_up.data_ptr(), out.data_ptr(), rows, width)
    return out
