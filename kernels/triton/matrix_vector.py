"""Products of very few rows with a weight, limited by how fast the weight is read.

Optionally with what comes before and after in a decoder layer: the residual addition and RMS normalization of the
input, which every program repeats for itself instead of waiting for a launch of its own, and a gated MLP's activation.
Each program keeps one running product per element that its threads read, and sums across threads once, at the end.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .gated_activation import silu

MAX_ROWS = 4
"""Beyond this many rows the matrix units win."""


@dataclass(frozen=True, slots=True)
class VectorTiling:
    """How the weight is cut, and how a program runs."""

    outputs: int
    """Rows of the weight that a program takes."""
    inputs: int
    """Columns read in one step."""
    unroll: int
    """Steps whose reads are in flight together."""
    warps: int


@dataclass(frozen=True, slots=True)
class InputNorm:
    """RMS normalization of the input [B, K], after the addition of a residual if there is one."""

    weight: torch.Tensor
    """[K]"""
    eps: float
    residual: torch.Tensor | None = None
    """[B, K], contiguous; it is not changed, as other programs may still read it"""
    total: torch.Tensor | None = None
    """[B, K], contiguous, other memory than the residual's and the input's: receives the input plus the residual"""


def choose_tiling(rows: int, outputs: int, inputs: int) -> VectorTiling:
    """The tiling for ``rows`` rows and a weight [outputs, inputs], measured on an H200 (tests/gpu/kernel_bench.py)."""
    width = min(1024, triton.next_power_of_2(inputs))
    return VectorTiling(outputs=2, inputs=width, unroll=4, warps=4)


def matrix_vector(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: InputNorm | None = None,
    out: torch.Tensor | None = None,
    tiling: VectorTiling | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for x [B, K], B at most ``MAX_ROWS``, and ``weight`` [N, K] contiguous; returns [B, N].

    Sums are float32. x may have strided rows. With a ``norm`` its result takes the place of x, rounded where
    ``rms_norm.add_rms_norm`` rounds.
    """
    outputs, inputs = weight.shape
    if out is None:
        out = torch.empty((x.shape[0], outputs), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, norm, out, tiling or choose_tiling(x.shape[0], outputs, inputs), gated=False)
    return out


def gated_matrix_vector(
    x: torch.Tensor,
    weight: torch.Tensor,
    norm: InputNorm | None = None,
    out: torch.Tensor | None = None,
    tiling: VectorTiling | None = None,
) -> torch.Tensor:
    """``silu(x @ gate.T) * (x @ up.T)`` for ``weight`` [2 * N, K] (gate first); otherwise as ``matrix_vector``.

    Returns [B, N], rounded where the separate steps round.
    """
    outputs, inputs = weight.shape[0] // 2, weight.shape[1]
    if out is None:
        out = torch.empty((x.shape[0], outputs), dtype=x.dtype, device=x.device)
    _launch(x, weight, None, norm, out, tiling or choose_tiling(x.shape[0], outputs, inputs), gated=True)
    return out


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: InputNorm | None,
    out: torch.Tensor,
    tiling: VectorTiling,
    gated: bool,
) -> None:
    rows, inputs = x.shape
    if rows > MAX_ROWS:
        raise ValueError(f"matrix_vector takes {MAX_ROWS} rows at most, not {rows}; use a matrix product")
    residual = None if norm is None else norm.residual
    total = None if norm is None else norm.total
    if residual is not None and total is None:
        raise ValueError("a norm with a residual needs memory for their total")
    outputs = out.shape[1]
    _matrix_vector_kernel[(triton.cdiv(outputs, tiling.outputs),)](
        x, weight, weight if bias is None else bias, weight if norm is None else norm.weight,
        x if residual is None else residual, x if total is None else total, out, x.stride(0), out.stride(0),
        0.0 if norm is None else norm.eps, rows,
        OUTPUTS=outputs, INPUTS=inputs, ROWS_PAD=triton.next_power_of_2(rows), BLOCK_N=tiling.outputs,
        BLOCK_K=tiling.inputs, UNROLL=tiling.unroll, BIAS=bias is not None, NORM=norm is not None,
        RESIDUAL=residual is not None, GATED=gated, num_warps=tiling.warps,
    )  # fmt: skip


@triton.jit
def _load_input(
    x: tl.tensor, residual: tl.tensor, row: tl.tensor, column: tl.tensor, x_stride: tl.tensor, rows: tl.tensor,
    INPUTS: tl.constexpr, RESIDUAL: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """x, or x + residual rounded to its type, at [ROWS_PAD, 1, BLOCK_K]."""
    mask = (row < rows) & (column < INPUTS)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0)
    if RESIDUAL:
        carried = tl.load(residual + row * INPUTS + column, mask=mask, other=0.0).to(tl.float32)
        values = (values.to(tl.float32) + carried).to(values.dtype)
    return values


@triton.jit
def _input_scale(
    x: tl.tensor, residual: tl.tensor, total: tl.tensor, x_stride: tl.tensor, eps: tl.tensor, rows: tl.tensor,
    INPUTS: tl.constexpr, ROWS_PAD: tl.constexpr, BLOCK_K: tl.constexpr, RESIDUAL: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [ROWS_PAD, 1, 1]: 1 / rms of each row. The first program also stores the sum with the residual."""
    row = tl.arange(0, ROWS_PAD)[:, None, None]
    squares = tl.zeros([ROWS_PAD, 1, BLOCK_K], tl.float32)
    for start in tl.range(0, INPUTS, BLOCK_K):
        column = start + tl.arange(0, BLOCK_K)[None, None, :]
        values = _load_input(x, residual, row, column, x_stride, rows, INPUTS, RESIDUAL)
        if RESIDUAL:
            mask = (row < rows) & (column < INPUTS) & (row + tl.program_id(0) * ROWS_PAD < ROWS_PAD)
            tl.store(total + row * INPUTS + column, values, mask=mask)
        squares += values.to(tl.float32) * values.to(tl.float32)
    return tl.rsqrt(tl.sum(squares, 2, keep_dims=True) * (1.0 / INPUTS) + eps)


@triton.jit
def _products(
    x: tl.tensor, weight: tl.tensor, norm_weight: tl.tensor, residual: tl.tensor, scale: tl.tensor,
    x_stride: tl.tensor, rows: tl.tensor, first: tl.tensor,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS_PAD: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [ROWS_PAD, BLOCK_N] for the weight's rows from ``first``."""
    row = tl.arange(0, ROWS_PAD)[:, None, None]
    output = (first + tl.arange(0, BLOCK_N))[None, :, None]
    acc = tl.zeros([ROWS_PAD, BLOCK_N, BLOCK_K], tl.float32)
    # Reads of several steps are in flight at once; of all steps, registers would not suffice.
    for start in tl.range(0, INPUTS, BLOCK_K, loop_unroll_factor=UNROLL):
        column = start + tl.arange(0, BLOCK_K)[None, None, :]
        w = tl.load(
            weight + output.to(tl.int64) * INPUTS + column,
            mask=(output < OUTPUTS) & (column < INPUTS),
            other=0.0,
            eviction_policy="evict_first",
        )
        a = _load_input(x, residual, row, column, x_stride, rows, INPUTS, RESIDUAL)
        if NORM:
            factor = tl.load(norm_weight + column, mask=column < INPUTS, other=0.0).to(tl.float32)
            a = ((a.to(tl.float32) * scale).to(a.dtype).to(tl.float32) * factor).to(a.dtype)
        acc += w.to(tl.float32) * a.to(tl.float32)
    return tl.sum(acc, 2)


@triton.jit(do_not_specialize=("rows",))
def _matrix_vector_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, norm_weight: tl.tensor, residual: tl.tensor, total: tl.tensor,
    out: tl.tensor, x_stride: tl.tensor, out_stride: tl.tensor, eps: tl.tensor, rows: tl.tensor,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS_PAD: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
) -> None:  # fmt: skip
    first = tl.program_id(0) * BLOCK_N
    row = tl.arange(0, ROWS_PAD)[:, None]
    output = (first + tl.arange(0, BLOCK_N))[None, :]
    scale = tl.full([ROWS_PAD, 1, 1], 1.0, tl.float32)
    if NORM:
        scale = _input_scale(x, residual, total, x_stride, eps, rows, INPUTS, ROWS_PAD, BLOCK_K, RESIDUAL)
    result = _products(
        x, weight, norm_weight, residual, scale, x_stride, rows, first,
        OUTPUTS, INPUTS, ROWS_PAD, BLOCK_N, BLOCK_K, UNROLL, NORM, RESIDUAL,
    )  # fmt: skip
    if GATED:
        gate = result.to(out.dtype.element_ty).to(tl.float32)
        activated = silu(gate).to(out.dtype.element_ty).to(tl.float32)
        up = _products(
            x, weight + OUTPUTS * INPUTS, norm_weight, residual, scale, x_stride, rows, first,
            OUTPUTS, INPUTS, ROWS_PAD, BLOCK_N, BLOCK_K, UNROLL, NORM, RESIDUAL,
        )  # fmt: skip
        result = activated * up.to(out.dtype.element_ty).to(tl.float32)
    if BIAS:
        result += tl.load(bias + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)
    mask = (row < rows) & (output < OUTPUTS)
    tl.store(out + row * out_stride + output, result.to(out.dtype.element_ty), mask=mask)
