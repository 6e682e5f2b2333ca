"""Drawing one token per row of logits on the device, without a sort: the same rules as ``kernels.sampling``.

The logits are read once: each block of the vocabulary is weighed relative to its own best token, and the draw, one
program a row, scales the blocks' sums to the row's best, chooses a block, and reads that one again. Rows with top-k,
top-p or min_p depend on the whole row: for them the threshold is found in between (``token_filter``), and each block
weighed again relative to the row's best token.

All sums are of integers, in blocks of one size, so no order of summation and no other row can change a result. Tokens
differ from the torch reference's only where the noise, or a threshold, falls on a border within float32's rounding.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .device import ceil_div, power_of_2
from .token_filter import find_thresholds, is_filtered
from .token_weights import (
    GREEDY_TEMPERATURE,
    ID_BITS,
    as_weights,
    confined_weights,
    is_finite,
    key_ids,
    likelihoods,
    load_logits,
    load_maxima,
    token_keys,
)

BLOCK = 4096
"""Tokens of the vocabulary in one program's share."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each of S rows is drawn: device tensors that a captured graph reads anew at each replay."""

    temperature: torch.Tensor
    """float32 [S]; at most 1e-5 for the best token"""
    top_k: torch.Tensor
    """int64 [S], from 1; the vocabulary's size or more keeps all"""
    top_p: torch.Tensor
    """float64 [S], above 0; 1 keeps all"""
    min_p: torch.Tensor
    """float32 [S], 0 keeps all"""
    seeds: torch.Tensor
    """int64 [S]"""
    positions: torch.Tensor
    """int64 [S]: the number of tokens before the one drawn"""


def sample(
    logits: torch.Tensor, rows: SamplingRows, draws: bool, filters: bool, out: torch.Tensor | None = None
) -> torch.Tensor:
    """One token for each row of ``logits`` [S, V] (float32 or 16 bits, rows may be strided); int64 [S].

    ``draws`` may be False only if every row is greedy, ``filters`` only if no row has a top-k, top-p or min_p: steps
    that no row needs are then left out. Where they are True each row still takes only its own steps. A row without
    one finite logit gives token 0, except that a greedy row with a NaN gives the first NaN's id.
    """
    count, vocab = logits.shape
    if out is None:
        out = torch.empty(count, dtype=torch.int64, device=logits.device)
    if count == 0:
        return out
    blocks = ceil_div(vocab, BLOCK)
    shape = {"BLOCKS": blocks, "BLOCK": BLOCK, "BLOCKS_PAD": power_of_2(blocks), "num_warps": 8}
    # Of each row and block: the lowest key, that of a NaN being lower than all others (greedy rows); the largest logit,
    # where a NaN counts as infinite; and the weights of tokens that may be drawn, together, relative to the block's
    # largest logit, or to the row's where that has a top-k, top-p or min_p.
    best = torch.empty((count, blocks), dtype=torch.int64, device=logits.device)
    weights = torch.empty_like(best)
    maxima = torch.empty_like(best, dtype=torch.float32)
    parameters = (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
    sizes = (logits.stride(0), vocab)
    _block_statistics_kernel[count, blocks](
        logits, rows.temperature, best, maxima, weights, *sizes, BLOCKS=blocks, BLOCK=BLOCK, DRAWS=draws, num_warps=4
    )
    thresholds = weights  # not read without filters
    if filters:
        thresholds = find_thresholds(logits, *parameters, maxima, weights, BLOCK)
        _confined_weights_kernel[count, blocks](logits, *parameters, maxima, thresholds, weights, *sizes, **shape)
    drawn = (rows.seeds, rows.positions, best, maxima, thresholds, weights, out)
    _draw_kernel[(count,)](logits, *parameters, *drawn, *sizes, DRAWS=draws, FILTERS=filters, **shape)
    return out


@triton.jit
def _best_key(raw: tl.tensor, top: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """The lowest key of a block whose largest logit is ``top``, or the first NaN's, which is lower than all others."""
    none = 2147483647
    first_nan = tl.min(tl.where(raw != raw, columns, none), 0)
    first_best = tl.min(tl.where(raw == top, columns, none), 0)
    lowest = tl.full([1], -2147483648, tl.int64) << ID_BITS
    key = tl.where(first_nan < none, lowest | first_nan, token_keys(tl.zeros([1], tl.float32) + top, first_best))
    return tl.sum(key, 0)


@triton.jit
def _block_statistics_kernel(
    logits: tl.tensor, temperatures: tl.tensor, best: tl.tensor, maxima: tl.tensor, weights: tl.tensor,
    row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    raw = load_logits(logits + row.to(tl.int64) * row_stride, columns, vocab)
    top = tl.max(tl.where(raw != raw, float("inf"), raw), 0)
    at = row * BLOCKS + block
    temperature = tl.load(temperatures + row)
    if temperature <= GREEDY_TEMPERATURE:
        tl.store(best + at, _best_key(raw, top, columns))
    if DRAWS and temperature > GREEDY_TEMPERATURE:
        tl.store(maxima + at, top)
        if is_finite(top):  # otherwise the block counts for nothing, whatever its weight
            tl.store(weights + at, tl.sum(as_weights(likelihoods(raw, top, temperature)), 0))


@triton.jit
def _is_confined(
    row: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor, vocab: tl.tensor
) -> tl.tensor:
    """True for a row that draws from some of its tokens only."""
    filtered = is_filtered(row, temperatures, top_ks, top_ps, vocab)
    return filtered | ((tl.load(min_ps + row) > 0.0) & (tl.load(temperatures + row) > GREEDY_TEMPERATURE))


@triton.jit
def _kept_weights(
    raw: tl.tensor, columns: tl.tensor, top: tl.tensor, temperature: tl.tensor, min_p: tl.tensor, threshold: tl.tensor
) -> tl.tensor:
    """Weights relative to the row's largest logit, 0 for tokens past the row's threshold."""
    weights = confined_weights(raw, top, temperature, min_p)
    return tl.where(token_keys(raw, columns) <= threshold, weights, 0)


@triton.jit
def _confined_weights_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor,
    maxima: tl.tensor, thresholds: tl.tensor, block_weights: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    if _is_confined(row, temperatures, top_ks, top_ps, min_ps, vocab):
        top = tl.max(load_maxima(maxima, row, BLOCKS, BLOCKS_PAD), 0)
        if is_finite(top):
            columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            raw = load_logits(logits + row.to(tl.int64) * row_stride, columns, vocab)
            parameters = (tl.load(temperatures + row), tl.load(min_ps + row), tl.load(thresholds + row))
            weights = _kept_weights(raw, columns, top, *parameters)
            tl.store(block_weights + row * BLOCKS + tl.program_id(1), tl.sum(weights, 0))


@triton.jit
def _mix(value: tl.tensor) -> tl.tensor:
    """The finalizer of splitmix64 on uint64."""
    value = (value ^ (value >> 30)) * tl.full([1], 0xBF58476D1CE4E5B9, tl.uint64)
    value = (value ^ (value >> 27)) * tl.full([1], 0x94D049BB133111EB, tl.uint64)
    return value ^ (value >> 31)


@triton.jit
def _noise(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """``kernels.sampling.uniform``: float64 [1] in [0, 1), a function of the int64 seed and position."""
    golden = tl.full([1], 0x9E3779B97F4A7C15, tl.uint64)
    key = _mix(seed.to(tl.uint64, bitcast=True) + golden)
    bits = _mix(key + position.to(tl.uint64, bitcast=True) * golden)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _draw_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor,
    seeds: tl.tensor, positions: tl.tensor, best: tl.tensor, maxima: tl.tensor, thresholds: tl.tensor,
    block_weights: tl.tensor, out: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr, FILTERS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCKS_PAD)
    temperature = tl.load(temperatures + row)
    token = tl.zeros([1], tl.int64)
    if temperature <= GREEDY_TEMPERATURE:
        keys = tl.load(best + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=9223372036854775807)
        token = tl.zeros([1], tl.int64) + key_ids(tl.min(keys, 0))
    if DRAWS and temperature > GREEDY_TEMPERATURE:
        bases = load_maxima(maxima, row, BLOCKS, BLOCKS_PAD)
        top = tl.max(bases, 0)
        if is_finite(top):
            confined = False
            if FILTERS:
                confined = _is_confined(row, temperatures, top_ks, top_ps, min_ps, vocab)
                bases = tl.where(confined & (blocks < BLOCKS), top, bases)
            # From weights relative to a block's base to weights relative to the row's best token.
            factors = likelihoods(bases, top, temperature).to(tl.float64)
            inside = tl.load(block_weights + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=0)
            weights = (inside.to(tl.float64) * factors).to(tl.int64)
            noise = _noise(tl.load(seeds + row + tl.arange(0, 1)), tl.load(positions + row + tl.arange(0, 1)))
            target = tl.sum((noise * tl.sum(weights, 0).to(tl.float64)).to(tl.int64), 0)
            before = (tl.cumsum(weights, 0) <= target) & (blocks < BLOCKS)
            block = tl.minimum(tl.sum(before.to(tl.int32), 0), BLOCKS - 1)
            chosen = blocks == block
            rest = (target - tl.sum(tl.where(blocks < block, weights, 0), 0)).to(tl.float64)
            rest = (rest / tl.sum(tl.where(chosen, factors, 0.0), 0)).to(tl.int64)
            rest = tl.minimum(rest, tl.sum(tl.where(chosen, inside, 0), 0) - 1)  # above that by rounding alone
            columns = block * BLOCK + tl.arange(0, BLOCK)
            raw = load_logits(logits + row.to(tl.int64) * row_stride, columns, vocab)
            base = tl.max(tl.where(chosen, bases, float("-inf")), 0)
            if confined:
                parameters = (temperature, tl.load(min_ps + row), tl.load(thresholds + row))
                each = _kept_weights(raw, columns, base, *parameters)
            else:
                each = as_weights(likelihoods(raw, base, temperature))
            passed = (tl.cumsum(each, 0) <= rest) & (columns < vocab)
            token = tl.zeros([1], tl.int64) + tl.minimum(block * BLOCK + tl.sum(passed.to(tl.int32), 0), vocab - 1)
    tl.store(out + row + tl.arange(0, 1), token)
