"""The threshold in the order of tokens that top-k and top-p amount to, found without sorting.

Three launches. A histogram of each row's logits, in steps below its best, bounds how far down the kept set can reach.
The tokens above that bound, rarely more than a few hundred, are collected. One program per row then searches the
threshold among them by bisection, with exact integer sums; a row with too many of them (a flat distribution, a very
large top-k) is searched whole, which takes longer and gives the same.
"""

import torch
import triton
import triton.language as tl

from .device import ceil_div, power_of_2
from .token_weights import GREEDY_TEMPERATURE, key_logits, load_scaled, row_maximum_and_sum, token_keys, token_weights

_BINS = 256
_STEPS_PER_LOGIT = 8
_CANDIDATES = 4096
_MARGIN = tl.constexpr(1e-5)
"""Added to top-p where it is compared with a bound in float32: above all rounding, below any mass that matters."""


def find_thresholds(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    block_max: torch.Tensor,
    block_sum: torch.Tensor,
    block_weights: torch.Tensor,
    block: int,
) -> torch.Tensor:
    """int64 [S]: the highest key (``token_weights.token_keys`` of scaled logits) that each row keeps.

    ``logits`` [S, V]; the other tensors as in ``sampling.SamplingRows`` and ``sampling.BlockStatistics`` for blocks of
    ``block`` tokens, of which ``block_weights`` is overwritten. Rows without a filter, and greedy ones, keep all.
    """
    count, vocab = logits.shape
    blocks = ceil_div(vocab, block)
    device = logits.device
    histogram = torch.zeros((count, _BINS + 1), dtype=torch.int32, device=device)  # the last column counts candidates
    candidates = torch.empty((count, _CANDIDATES), dtype=torch.int64, device=device)
    thresholds = torch.empty(count, dtype=torch.int64, device=device)
    shape = {"BLOCKS": blocks, "BLOCKS_PAD": power_of_2(blocks), "BLOCK": block, "BINS": _BINS}
    rows = (logits, temperature, top_k, top_p, block_max, block_sum, histogram)
    sizes = (logits.stride(0), vocab)
    grid = (count, blocks)
    _histogram_kernel[grid](*rows, *sizes, STEPS=_STEPS_PER_LOGIT, **shape, num_warps=4)
    _candidates_kernel[grid](
        *rows, min_p, block_weights, candidates, *sizes,
        STEPS=_STEPS_PER_LOGIT, CANDIDATES=_CANDIDATES, **shape, num_warps=8,
    )  # fmt: skip
    _threshold_kernel[(count,)](
        *rows, min_p, block_weights, candidates, thresholds, *sizes,
        CANDIDATES=_CANDIDATES, **shape, num_warps=8,
    )  # fmt: skip
    return thresholds


@triton.jit
def _is_filtered(
    row: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, vocab: tl.tensor
) -> tl.tensor:
    filters = (tl.load(top_ks + row) < vocab) | (tl.load(top_ps + row) < 1.0)
    return filters & (tl.load(temperatures + row) > GREEDY_TEMPERATURE)


@triton.jit
def _bins(scaled: tl.tensor, top: tl.tensor, STEPS: tl.constexpr, BINS: tl.constexpr) -> tl.tensor:
    """Steps below the best, 0 to BINS - 1; BINS for all that is further down, minus infinity included."""
    return tl.minimum((top - scaled) * STEPS, BINS).to(tl.int32)


@triton.jit
def _histogram_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, block_max: tl.tensor,
    block_sum: tl.tensor, histogram: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr, STEPS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    if _is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top, total = row_maximum_and_sum(block_max, block_sum, row, BLOCKS, BLOCKS_PAD)
        if total > 0.0:
            columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            scaled = load_scaled(logits + row.to(tl.int64) * row_stride, columns, vocab, tl.load(temperatures + row))
            bins = _bins(scaled, top, STEPS, BINS)
            counts = tl.histogram(tl.minimum(bins, BINS - 1), BINS, mask=bins < BINS)
            at = histogram + row * (BINS + 1) + tl.arange(0, BINS)
            tl.atomic_add(at, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def _lowest_bin(
    histogram_row: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, total: tl.tensor, vocab: tl.tensor,
    BINS: tl.constexpr, STEPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The first bin whose tokens, with those above, surely include all that is kept; BINS if none does."""
    bins = tl.arange(0, BINS)
    counts = tl.load(histogram_row + bins)
    above = tl.cumsum(counts, 0)
    # What lies below a bin weighs at most its count times the weight at its upper edge.
    heaviest = counts.to(tl.float32) * tl.exp(-bins.to(tl.float32) / STEPS)
    rest = (vocab - tl.sum(counts, 0)).to(tl.float32) * tl.exp(-BINS / STEPS * 1.0)
    below = tl.sum(heaviest, 0) - tl.cumsum(heaviest, 0) + rest
    enough = tl.where(top_k < vocab, above >= top_k, below <= (1.0 - top_p - _MARGIN) * total)
    return tl.min(tl.where(enough, bins, BINS), 0)


@triton.jit
def _candidates_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, block_max: tl.tensor,
    block_sum: tl.tensor, histogram: tl.tensor, min_ps: tl.tensor, block_weights: tl.tensor, candidates: tl.tensor,
    row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr, STEPS: tl.constexpr,
    CANDIDATES: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    block = tl.program_id(1)
    if _is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top, total = row_maximum_and_sum(block_max, block_sum, row, BLOCKS, BLOCKS_PAD)
        if total > 0.0:
            columns = block * BLOCK + tl.arange(0, BLOCK)
            scaled = load_scaled(logits + row.to(tl.int64) * row_stride, columns, vocab, tl.load(temperatures + row))
            weights = token_weights(scaled, top, total, tl.load(min_ps + row))
            tl.store(block_weights + row * BLOCKS + block, tl.sum(weights, 0))
            counts = histogram + row * (BINS + 1)
            top_p = tl.load(top_ps + row).to(tl.float32)
            lowest = _lowest_bin(counts, tl.load(top_ks + row), top_p, total, vocab, BINS, STEPS)
            chosen = (_bins(scaled, top, STEPS, BINS) <= lowest) & (columns < vocab)
            number = tl.sum(chosen.to(tl.int32), 0)
            # Too many for the list: a count that says so, in one step and without collecting.
            number = tl.where(lowest < BINS, number, CANDIDATES + 1)
            if number > 0:
                start = tl.atomic_add(counts + BINS, number, sem="relaxed")
                place = start + tl.cumsum(chosen.to(tl.int32), 0) - 1
                keep = chosen & (place < CANDIDATES) & (place >= 0)
                tl.store(candidates + row * CANDIDATES + place, token_keys(scaled, columns), mask=keep)


@triton.jit
def _up_to(
    limit: tl.tensor, keys: tl.tensor, weights: tl.tensor, logits_row: tl.tensor, temperature: tl.tensor,
    min_p: tl.tensor, top: tl.tensor, total: tl.tensor, listed: tl.tensor, vocab: tl.tensor,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Number (COUNTED) or weight of the tokens whose key is at most ``limit``: int64.

    If ``listed``, those are among ``keys`` and ``weights``; otherwise the whole row is read.
    """
    values = (keys >= 0).to(tl.int64) * 0 + 1 if COUNTED else weights
    result = tl.sum(tl.where(keys <= limit, values, 0), 0)
    if listed == 0:
        result = tl.zeros_like(result)
        for start in tl.range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            scaled = load_scaled(logits_row, columns, vocab, temperature)
            values = token_weights(scaled, top, total, min_p)
            if COUNTED:
                values = tl.zeros_like(values) + 1
            inside = (token_keys(scaled, columns) <= limit) & (columns < vocab)
            result += tl.sum(tl.where(inside, values, 0), 0)
    return result


@triton.jit
def _search(
    wanted: tl.tensor, low: tl.tensor, high: tl.tensor, keys: tl.tensor, weights: tl.tensor, logits_row: tl.tensor,
    temperature: tl.tensor, min_p: tl.tensor, top: tl.tensor, total: tl.tensor, listed: tl.tensor, vocab: tl.tensor,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The lowest key up to which tokens number, or weigh, at least ``wanted``: above ``low``, up to ``high``."""
    while tl.sum((low + 1 < high).to(tl.int32), 0) > 0:
        middle = (low & high) + ((low ^ high) >> 1)  # their mean; the difference may exceed 63 bits
        reached = _up_to(
            middle, keys, weights, logits_row, temperature, min_p, top, total, listed, vocab, COUNTED, BLOCK
        )
        low = tl.where(reached >= wanted, low, middle)
        high = tl.where(reached >= wanted, middle, high)
    return high


@triton.jit
def _threshold_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, block_max: tl.tensor,
    block_sum: tl.tensor, histogram: tl.tensor, min_ps: tl.tensor, block_weights: tl.tensor, candidates: tl.tensor,
    thresholds: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
    CANDIDATES: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    high = tl.full([1], 9223372036854775807, tl.int64)
    if _is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top, total = row_maximum_and_sum(block_max, block_sum, row, BLOCKS, BLOCKS_PAD)
        if total > 0.0:
            temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
            number = tl.load(histogram + row * (BINS + 1) + BINS)
            listed = (number <= CANDIDATES).to(tl.int32)
            places = tl.arange(0, CANDIDATES)
            mask = places < tl.where(number <= CANDIDATES, number, 0)
            keys = tl.load(candidates + row * CANDIDATES + places, mask=mask, other=9223372036854775807)
            weights = tl.where(mask, token_weights(key_logits(keys), top, total, min_p), 0)
            logits_row = logits + row.to(tl.int64) * row_stride
            low = token_keys(tl.zeros([1], tl.float32) + top, tl.zeros([1], tl.int32)) - 1
            # Above the key of minus infinity with the last id, below what fills the list.
            high = tl.full([1], 0x7F800001, tl.int64) << 32
            top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
            blocks = tl.arange(0, BLOCKS_PAD)
            inside = tl.sum(tl.load(block_weights + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=0), 0)
            if top_k < vocab:
                high = _search(
                    top_k, low, high, keys, weights, logits_row, temperature, min_p, top, total, listed, vocab,
                    True, BLOCK,
                )  # fmt: skip
                inside = _up_to(
                    tl.sum(high, 0), keys, weights, logits_row, temperature, min_p, top, total, listed, vocab,
                    False, BLOCK,
                )  # fmt: skip
            if top_p < 1.0:
                exact = top_p * inside.to(tl.float64)
                wanted = exact.to(tl.int64)
                wanted = tl.minimum(wanted + (wanted.to(tl.float64) < exact).to(tl.int64), inside)
                high = _search(
                    wanted, low, high, keys, weights, logits_row, temperature, min_p, top, total, listed, vocab,
                    False, BLOCK,
                )  # fmt: skip
    tl.store(thresholds + row + tl.arange(0, 1), high)
