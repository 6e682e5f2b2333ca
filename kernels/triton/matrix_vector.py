"""Products of one row with a weight, limited by how fast the weight is read.

Optionally with what comes before and after in a decoder layer: the residual addition and RMS normalization of the
input, which every program repeats for itself instead of waiting for a launch of its own, and a gated MLP's activation.
A fixed number of programs keep the input in registers and share the outputs; each has its next part of the weight on
its way while it works on one, and the first before the kernel that computes the input is done.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .device import ceil_div, early_start, num_processors, power_of_2
from .gated_activation import silu


@dataclass(frozen=True, slots=True)
class VectorTiling:
    """How the weight is cut, and how a program runs."""

    rows: int
    """Rows of the weight that a program takes at a time."""
    width: int
    """Columns that its threads read side by side; they repeat that until they have the whole row."""
    warps: int
    programs: int
    """Programs for each multiprocessor."""


@dataclass(frozen=True, slots=True)
class InputNorm:
    """RMS normalization of the input [1, K], after the addition of a residual if there is one."""

    weight: torch.Tensor
    """[K]"""
    eps: float
    residual: torch.Tensor | None = None
    """[1, K]; it is not changed, as other programs may still read it"""
    total: torch.Tensor | None = None
    """[1, K], other memory than the residual's and the input's: receives the input plus the residual"""


def choose_tiling(inputs: int) -> VectorTiling:
    """The tiling for a weight of ``inputs`` columns, measured on an H200 (tests/gpu/kernel_bench.py)."""
    width = power_of_2(inputs)
    warps, elements = (max(8, width // 2048), 64) if inputs >= 4096 else (4, 32)
    # Of wide rows, so few and large programs that they just fill a multiprocessor. If one more fitted, those of the
    # next kernel, which start early, would gather where there is room first, and all would wait for them in the end.
    programs = max(1, 16 // warps) if inputs >= 4096 else 8
    return VectorTiling(max(1, elements * 32 * warps // width), min(256 * warps, width), warps, programs)


def matrix_vector(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: InputNorm | None = None,
    out: torch.Tensor | None = None,
    tiling: VectorTiling | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for x [1, K] and ``weight`` [N, K] contiguous; returns [1, N].

    The weight, and a norm's, must not come from the launch just before. Sums are float32. With a ``norm`` its result
    takes the place of x, rounded where ``rms_norm.add_rms_norm`` rounds.
    """
    if out is None:
        out = torch.empty((1, weight.shape[0]), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, norm, out, tiling, gated=False)
    return out


def gated_matrix_vector(
    x: torch.Tensor,
    weight: torch.Tensor,
    norm: InputNorm | None = None,
    out: torch.Tensor | None = None,
    tiling: VectorTiling | None = None,
) -> torch.Tensor:
    """``silu(x @ gate.T) * (x @ up.T)`` for ``weight`` [2 * N, K] (gate first); otherwise as ``matrix_vector``.

    Returns [1, N], rounded where the separate steps round.
    """
    if out is None:
        out = torch.empty((1, weight.shape[0] // 2), dtype=x.dtype, device=x.device)
    _launch(x, weight, None, norm, out, tiling, gated=True)
    return out


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: InputNorm | None,
    out: torch.Tensor,
    tiling: VectorTiling | None,
    gated: bool,
) -> None:
    rows, inputs = x.shape
    if rows != 1:
        raise ValueError(f"matrix_vector takes one row, not {rows}; use a matrix product")
    residual = None if norm is None else norm.residual
    total = None if norm is None else norm.total
    if residual is not None and total is None:
        raise ValueError("a norm with a residual needs memory for their total")
    outputs = out.shape[1]
    tiling = tiling or choose_tiling(inputs)
    block = max(1, tiling.rows // 2) if gated else tiling.rows
    programs = min(ceil_div(outputs, block), num_processors(x.device) * tiling.programs)
    _matrix_vector_kernel[(programs,)](
        x, weight, weight if bias is None else bias, weight if norm is None else norm.weight,
        x if residual is None else residual, x if total is None else total, out, 0.0 if norm is None else norm.eps,
        OUTPUTS=outputs, INPUTS=inputs, BLOCK_N=block, WIDTH=tiling.width,
        PARTS=power_of_2(ceil_div(inputs, tiling.width)), BIAS=bias is not None, NORM=norm is not None,
        RESIDUAL=residual is not None, GATED=gated, num_warps=tiling.warps, **early_start(x.device),
    )  # fmt: skip


@triton.jit
def _load_weight(
    weight: tl.tensor, first: tl.tensor, column: tl.tensor,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[ROWS, PARTS, WIDTH] from output ``first``; if GATED, gate and up of an output follow each other."""
    place = tl.arange(0, ROWS)[:, None, None]
    output = first + (place // 2 if GATED else place)
    row = output + (place % 2 * OUTPUTS if GATED else 0)
    at = weight + row.to(tl.int64) * INPUTS + column
    return tl.load(at, mask=(output < OUTPUTS) & (column < INPUTS), other=0.0, eviction_policy="evict_first")


@triton.jit
def _matrix_vector_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, norm_weight: tl.tensor, residual: tl.tensor, total: tl.tensor,
    out: tl.tensor, eps: tl.tensor,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    BIAS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    ROWS: tl.constexpr = BLOCK_N * 2 if GATED else BLOCK_N
    if EARLY:
        gdc_launch_dependents()
    column = (tl.arange(0, PARTS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])[None, :, :]
    within = column < INPUTS
    step = tl.num_programs(0) * BLOCK_N
    begin = tl.program_id(0) * BLOCK_N
    w = _load_weight(weight, begin, column, OUTPUTS, INPUTS, ROWS, GATED)
    if NORM:
        factor = tl.load(norm_weight + column, mask=within, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()  # see ``device.early_start``: only constants were read up to here
    a = tl.load(x + column, mask=within, other=0.0)
    if RESIDUAL:
        a = (a.to(tl.float32) + tl.load(residual + column, mask=within, other=0.0).to(tl.float32)).to(a.dtype)
        tl.store(total + column, a, mask=within & (column + tl.program_id(0) * INPUTS < INPUTS))  # the first program
    if NORM:
        wide = a.to(tl.float32)
        scale = tl.rsqrt(tl.sum(tl.sum(tl.sum(wide * wide, 1), 1), 0) * (1.0 / INPUTS) + eps)
        a = ((wide * scale).to(a.dtype).to(tl.float32) * factor).to(a.dtype)
    for first in tl.range(begin, OUTPUTS, step):
        this = w
        w = _load_weight(weight, first + step, column, OUTPUTS, INPUTS, ROWS, GATED)
        # Over the parts first: each thread has its own elements of them all.
        result = tl.sum(tl.sum(this.to(tl.float32) * a.to(tl.float32), 1), 1)
        if GATED:
            gate, up = tl.split(tl.reshape(result, [BLOCK_N, 2]))
            activated = silu(gate.to(out.dtype.element_ty).to(tl.float32)).to(out.dtype.element_ty).to(tl.float32)
            result = activated * up.to(out.dtype.element_ty).to(tl.float32)
        output = first + tl.arange(0, BLOCK_N)
        if BIAS:
            result += tl.load(bias + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)
        tl.store(out + output, result.to(out.dtype.element_ty), mask=output < OUTPUTS)
