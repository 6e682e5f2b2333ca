"""The gated activation of an MLP: ``silu(gate) * up`` on the output of one merged projection."""

import torch
import triton
import triton.language as tl

from .device import ceil_div, power_of_2

_BLOCK = 1024


def silu_and_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up`` for ``gate_up`` [T, 2 * N], the gate half first, contiguous. Fills ``out`` or a new [T, N].

    silu is computed in float32 and rounded to the type of its input before the product, as in
    ``kernels.gated_activation``.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows == 0:
        return out
    block = min(_BLOCK, power_of_2(width))
    _silu_and_mul_kernel[(rows, ceil_div(width, block))](gate_up, out, width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def silu(gate: tl.tensor) -> tl.tensor:
    """``gate * sigmoid(gate)`` of float32."""
    return gate / (1.0 + tl.exp(-gate))


@triton.jit
def _silu_and_mul_kernel(gate_up: tl.tensor, out: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=mask, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=mask, other=0.0)
    activated = silu(gate.to(tl.float32)).to(gate.dtype).to(tl.float32)
    tl.store(out + row * width + columns, (activated * up.to(tl.float32)).to(gate.dtype), mask=mask)
