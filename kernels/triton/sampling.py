"""Drawing one token per row of logits on the device, without a sort: the same rules as ``kernels.sampling``.

All sums of probabilities are sums of integers, so no blocking or order of summation can change a result. What can
differ from the torch reference is ``exp`` and the float32 sum under the softmax, in their last bits: given equal
probabilities the tokens are equal.

The steps, each one launch over (rows, blocks of the vocabulary) unless said otherwise: maxima and sums of each block;
for rows with top-k or top-p their threshold (``token_filter``); weights of each block; the draw (one program a row).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .device import ceil_div, power_of_2
from .token_filter import find_thresholds
from .token_weights import GREEDY_TEMPERATURE, load_scaled, row_maximum_and_sum, token_keys, token_weights

BLOCK = 4096
"""Tokens of the vocabulary in one program's share."""
_KEEP_ALL = 2**63 - 1


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


@dataclass(frozen=True, slots=True)
class BlockStatistics:
    """For each row and block of its vocabulary, [S, blocks]."""

    best: torch.Tensor
    """int64: the lowest key of ``token_keys`` of the raw logits; a NaN's is lower than all others"""
    maxima: torch.Tensor
    """float32: largest scaled logit"""
    sums: torch.Tensor
    """float32: exponentials of the scaled logits relative to that"""
    weights: torch.Tensor
    """int64: sums of the weights of tokens that may be drawn"""

    @classmethod
    def allocate(cls, rows: int, vocab: int, device: torch.device) -> "BlockStatistics":
        """Uninitialized memory for ``rows`` rows."""
        shape = (rows, ceil_div(vocab, BLOCK))
        return cls(
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.int64, device=device),
        )


def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    draws: bool,
    filters: bool,
    out: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    last_token: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token for each row of ``logits`` [S, V] (float32 or 16 bits, rows may be strided); int64 [S].

    ``draws`` may be False only if every row is greedy, ``filters`` only if no row has a top-k or top-p: steps that no
    row needs are then left out. Where they are True each row still takes only its own steps. With ``slots`` int32 [S]
    the tokens are also written to ``last_token[slots]`` (int64), except for negative slots. A row without one finite
    logit gives token 0, except that a greedy row with a NaN gives the first NaN's id.
    """
    count, vocab = logits.shape
    if out is None:
        out = torch.empty(count, dtype=torch.int64, device=logits.device)
    if count == 0:
        return out
    blocks = ceil_div(vocab, BLOCK)
    shape = {"BLOCKS": blocks, "BLOCK": BLOCK, "BLOCKS_PAD": power_of_2(blocks), "num_warps": 8}
    block = BlockStatistics.allocate(count, vocab, logits.device)
    _block_statistics_kernel[count, blocks](
        logits, rows.temperature, block.best, block.maxima, block.sums, logits.stride(0), vocab,
        BLOCKS=blocks, BLOCK=BLOCK, DRAWS=draws, num_warps=4,
    )  # fmt: skip
    thresholds = None
    if filters:
        parameters = (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
        thresholds = find_thresholds(logits, *parameters, block.maxima, block.sums, block.weights, BLOCK)
    if draws:
        _block_weights_kernel[count, blocks](
            logits, rows.temperature, rows.min_p, block.maxima, block.sums,
            block.weights if thresholds is None else thresholds, block.weights, logits.stride(0), vocab,
            FILTERS=filters, **shape,
        )  # fmt: skip
    _draw_kernel[(count,)](
        logits, rows.temperature, rows.min_p, rows.seeds, rows.positions, block.best, block.maxima, block.sums,
        block.weights if thresholds is None else thresholds, block.weights, out, out if slots is None else slots,
        out if last_token is None else last_token, logits.stride(0), vocab,
        DRAWS=draws, FILTERS=filters, FEED=slots is not None and last_token is not None, **shape,
    )  # fmt: skip
    return out


@triton.jit
def _block_statistics_kernel(
    logits: tl.tensor, temperatures: tl.tensor, best: tl.tensor, maxima: tl.tensor, sums: tl.tensor,
    row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    raw = load_scaled(logits + row.to(tl.int64) * row_stride, columns, vocab, 1.0)
    at = row * BLOCKS + block
    temperature = tl.load(temperatures + row)
    if temperature <= GREEDY_TEMPERATURE:
        lowest = tl.full([1], -2147483648, tl.int64) << 32
        keys = tl.where(raw != raw, lowest | columns, token_keys(raw, columns))
        keys = tl.where(columns < vocab, keys, 9223372036854775807)
        tl.store(best + at, tl.min(keys, 0))
    if DRAWS and temperature > GREEDY_TEMPERATURE:
        scaled = tl.div_rn(raw, tl.zeros_like(raw) + temperature)
        top = tl.max(scaled, 0)
        base = tl.where(top == float("-inf"), 0.0, top)
        tl.store(maxima + at, top)
        tl.store(sums + at, tl.sum(tl.exp(scaled - base), 0))


@triton.jit
def _load_weights(
    logits: tl.tensor, row: tl.tensor, columns: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    temperature: tl.tensor, min_p: tl.tensor, top: tl.tensor, total: tl.tensor, thresholds: tl.tensor,
    FILTERS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Weights of the tokens ``columns``, 0 for those past the row's threshold."""
    scaled = load_scaled(logits + row.to(tl.int64) * row_stride, columns, vocab, temperature)
    weights = token_weights(scaled, top, total, min_p)
    if FILTERS:
        weights = tl.where(token_keys(scaled, columns) <= tl.load(thresholds + row), weights, 0)
    return weights


@triton.jit
def _block_weights_kernel(
    logits: tl.tensor, temperatures: tl.tensor, min_ps: tl.tensor, maxima: tl.tensor, sums: tl.tensor,
    thresholds: tl.tensor, block_weights: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, FILTERS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    if temperature > GREEDY_TEMPERATURE:
        top, total = row_maximum_and_sum(maxima, sums, row, BLOCKS, BLOCKS_PAD)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        min_p = tl.load(min_ps + row)
        weights = _load_weights(
            logits, row, columns, row_stride, vocab, temperature, min_p, top, total, thresholds, FILTERS
        )
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
    logits: tl.tensor, temperatures: tl.tensor, min_ps: tl.tensor, seeds: tl.tensor, positions: tl.tensor,
    best: tl.tensor, maxima: tl.tensor, sums: tl.tensor, thresholds: tl.tensor, block_weights: tl.tensor,
    out: tl.tensor, slots: tl.tensor, last_token: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr, FILTERS: tl.constexpr,
    FEED: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCKS_PAD)
    temperature = tl.load(temperatures + row)
    token = tl.zeros([1], tl.int64)
    if temperature <= GREEDY_TEMPERATURE:
        keys = tl.load(best + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=9223372036854775807)
        token = tl.zeros([1], tl.int64) + (tl.min(keys, 0) & 0xFFFFFFFF)
    if DRAWS and temperature > GREEDY_TEMPERATURE:
        top, total = row_maximum_and_sum(maxima, sums, row, BLOCKS, BLOCKS_PAD)
        weights = tl.load(block_weights + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=0)
        ends = tl.cumsum(weights, 0)
        noise = _noise(tl.load(seeds + row + tl.arange(0, 1)), tl.load(positions + row + tl.arange(0, 1)))
        target = tl.sum((noise * tl.sum(weights, 0).to(tl.float64)).to(tl.int64), 0)
        before = (ends <= target) & (blocks < BLOCKS)
        block = tl.minimum(tl.sum(before.to(tl.int32), 0), BLOCKS - 1)
        reached = tl.sum(tl.where(blocks < block, weights, 0), 0)
        columns = block * BLOCK + tl.arange(0, BLOCK)
        min_p = tl.load(min_ps + row)
        inside = _load_weights(
            logits, row, columns, row_stride, vocab, temperature, min_p, top, total, thresholds, FILTERS
        )
        passed = (tl.cumsum(inside, 0) + reached <= target) & (columns < vocab)
        drawn = block * BLOCK + tl.sum(passed.to(tl.int32), 0)
        # Not above 0: a NaN, or no finite logit at all.
        drawn = tl.where(total > 0.0, tl.minimum(drawn, vocab - 1), 0)
        token = tl.zeros([1], tl.int64) + drawn
    at = row + tl.arange(0, 1)
    tl.store(out + at, token)
    if FEED:
        slot = tl.load(slots + at)
        tl.store(last_token + slot.to(tl.int64), token, mask=slot >= 0)
