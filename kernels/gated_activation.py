"""The gated activations of an MLP: ``act(gate) * up`` on the output of one merged projection."""

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` for ``gate_up`` [T, 2 * N], the gate half first. Returns [T, N]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` with the exact (erf) GELU, for ``gate_up`` [T, 2 * N]. Returns [T, N]."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate).mul_(up)


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` with the tanh approximation of GELU, for ``gate_up`` [T, 2 * N]. Returns [T, N]."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate="tanh").mul_(up)
