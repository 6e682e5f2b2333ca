"""The threshold in the order of tokens that top-k and top-p amount to, found without sorting.

Four launches. Tokens are counted by their distance to the row's best, in coarse steps, which bounds where the threshold
lies; then in fine steps between those bounds, beside exact sums of all weights and of those before the bounds. The
tokens of the few fine steps that may hold the threshold are collected: some dozens of a peaked distribution, a thousand
of a flat one. One program per row then searches among them by bisection, with exact integer sums; a row with too many
of them (very many ties, a flat distribution with a large top-k and a top-p) is searched whole, which takes longer and
gives the same.
"""

import torch
import triton
import triton.language as tl

from .device import ceil_div, power_of_2
from .token_weights import (
    GREEDY_TEMPERATURE,
    WEIGHT_SCALE,
    confined_weights,
    is_finite,
    load_logits,
    load_maxima,
    token_keys,
)

_COARSE = tl.constexpr(64)
_WIDTH = tl.constexpr(0.5)
"""Of a coarse step: logits over the temperature. Past the last step, 32 below the best, no token has a weight."""
_FINE = tl.constexpr(512)
_COUNTERS = tl.constexpr(64 + 512 + 1)
"""Of a row: tokens in each coarse and each fine step, and candidates."""
_CANDIDATES = tl.constexpr(8192)
_MARGIN = tl.constexpr(1e-5)
"""Relative to the sums that are bounded in float32: above all rounding, below any mass that matters."""
KEEP_ALL = tl.constexpr(2**63 - 1)
_PAST_ALL = tl.constexpr(0x7F800001 << 24)
"""Above the key of minus infinity with any id."""


def find_thresholds(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    block_max: torch.Tensor,
    block_weights: torch.Tensor,
    block: int,
) -> torch.Tensor:
    """int64 [S]: the highest key (``token_weights.token_keys``) that each row keeps.

    ``logits`` [S, V]; the parameters as in ``sampling.SamplingRows``. ``block_max`` float32 [S, blocks]: the largest
    logit of each ``block`` tokens; ``block_weights``, int64 likewise, is overwritten. Rows without a filter, and greedy
    ones, keep all.
    """
    count, vocab = logits.shape
    blocks = ceil_div(vocab, block)
    device = logits.device
    counters = torch.zeros((count, _COUNTERS.value), dtype=torch.int32, device=device)
    before, between = torch.empty_like(block_weights), torch.empty_like(block_weights)
    candidates = torch.empty((2, count, _CANDIDATES.value), dtype=torch.int64, device=device)
    thresholds = torch.empty(count, dtype=torch.int64, device=device)
    rows = (logits, temperature, top_k, top_p, min_p, block_max, counters)
    sizes = (logits.stride(0), vocab)
    shape = {"BLOCKS": blocks, "BLOCKS_PAD": power_of_2(blocks), "BLOCK": block}
    grid = (count, blocks)
    _coarse_kernel[grid](*rows, *sizes, **shape, num_warps=4)
    _fine_kernel[grid](*rows, block_weights, before, *sizes, **shape, num_warps=8)
    found = (block_weights, before, between, *candidates)
    _candidates_kernel[grid](*rows, *found, *sizes, **shape, num_warps=8)
    _threshold_kernel[(count,)](*rows, *found, thresholds, *sizes, **shape, CHUNK=512, num_warps=4)
    return thresholds


@triton.jit
def is_filtered(
    row: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, vocab: tl.tensor
) -> tl.tensor:
    """True for a row that draws with a top-k or a top-p."""
    filters = (tl.load(top_ks + row) < vocab) | (tl.load(top_ps + row) < 1.0)
    return filters & (tl.load(temperatures + row) > GREEDY_TEMPERATURE)


@triton.jit
def _coarse_steps(distances: tl.tensor) -> tl.tensor:
    """0 to _COARSE - 1; _COARSE for all that is further down, minus infinity included."""
    return tl.minimum(distances * (1.0 / _WIDTH), _COARSE).to(tl.int32)


@triton.jit
def _coarse_range(
    counters: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, min_p: tl.tensor, vocab: tl.tensor
) -> tl.tensor:
    """The first step that is not surely kept whole, the last that may keep a token, and the tokens before the first."""
    steps = tl.arange(0, _COARSE)
    counts = tl.load(counters + steps)
    above = tl.cumsum(counts, 0)
    # A step weighs at most its count times the weight at its upper edge, at least times that at its lower.
    heaviest = counts.to(tl.float32) * tl.exp(steps.to(tl.float32) * -_WIDTH)
    most = tl.sum(heaviest, 0)
    below = most - tl.cumsum(heaviest, 0)
    least = tl.exp(-_WIDTH)
    enough = tl.where(top_k < vocab, above >= top_k, below <= (1.0 - top_p - _MARGIN) * most * least)
    last = tl.min(tl.where(enough, steps, _COARSE - 1), 0)
    # What min_p takes away, and what top-p takes of a top-k, is not known here.
    by_count = (top_k < vocab) & (top_p >= 1.0) & (above < top_k)
    by_weight = (top_k >= vocab) & (min_p == 0.0) & (below * least > (1.0 - top_p + _MARGIN) * most)
    first = tl.minimum(tl.sum((by_count | by_weight).to(tl.int32), 0), last)
    return first, last, tl.sum(tl.where(steps < first, counts, 0), 0)


@triton.jit
def _fine_steps(distances: tl.tensor, first: tl.tensor, last: tl.tensor) -> tl.tensor:
    """0 to _FINE - 1 between the coarse steps ``first`` and ``last``; -1 for tokens before those, _FINE after."""
    coarse = _coarse_steps(distances)
    fine = (distances - first * _WIDTH) * (_FINE / _WIDTH / (last + 1 - first))
    fine = tl.minimum(tl.maximum(fine, 0.0), _FINE - 1).to(tl.int32)
    return tl.where(coarse < first, -1, tl.where(coarse > last, _FINE, fine))


@triton.jit
def _row_sum(sums: tl.tensor, row: tl.tensor, BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr) -> tl.tensor:
    """int64: the sum of the blocks' sums."""
    blocks = tl.arange(0, BLOCKS_PAD)
    return tl.sum(tl.load(sums + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=0), 0)


@triton.jit
def _fine_range(
    counters: tl.tensor, coarse: tl.tuple, inside: tl.tensor, before: tl.tensor,
    top_k: tl.tensor, top_p: tl.tensor, min_p: tl.tensor, vocab: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """As ``_coarse_range``, of fine steps; ``inside``: weight of the row, ``before``: of what comes before them."""
    first, last, number = coarse
    steps = tl.arange(0, _FINE)
    counts = tl.load(counters + _COARSE + steps)
    above = number + tl.cumsum(counts, 0)
    width = (last + 1 - first) * (_WIDTH / _FINE)
    heaviest = counts.to(tl.float32) * tl.exp(-(first * _WIDTH + steps.to(tl.float32) * width)) * WEIGHT_SCALE
    heaviest = tl.cumsum(heaviest, 0)
    known, wanted = before.to(tl.float32), top_p * inside.to(tl.float32)
    most = (known + heaviest) * (1.0 + _MARGIN)
    least = (known + heaviest * tl.exp(-width)) * (1.0 - _MARGIN) - above  # each weight is rounded down
    surely = tl.where(min_p == 0.0, wanted, float("inf"))  # what min_p takes away is not known here
    enough = tl.where(top_k < vocab, above >= top_k, least >= surely)
    end = tl.min(tl.where(enough, steps, _FINE - 1), 0)
    kept = ((top_k < vocab) & (top_p >= 1.0) & (above < top_k)) | ((top_k >= vocab) & (most < wanted))
    start = tl.minimum(tl.sum(kept.to(tl.int32), 0), end)
    return start, end, number + tl.sum(tl.where(steps < start, counts, 0), 0)


@triton.jit
def _coarse_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor,
    block_max: tl.tensor, counters: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    if is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top = tl.max(load_maxima(block_max, row, BLOCKS, BLOCKS_PAD), 0)
        if is_finite(top):
            columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            raw = load_logits(logits + row.to(tl.int64) * row_stride, columns, vocab)
            steps = _coarse_steps((top - raw) * (1.0 / tl.load(temperatures + row)))
            counts = tl.histogram(tl.minimum(steps, _COARSE - 1), _COARSE, mask=steps < _COARSE)
            at = counters + row * _COUNTERS + tl.arange(0, _COARSE)
            tl.atomic_add(at, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def _fine_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor,
    block_max: tl.tensor, counters: tl.tensor, block_weights: tl.tensor, before: tl.tensor,
    row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    if is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top = tl.max(load_maxima(block_max, row, BLOCKS, BLOCKS_PAD), 0)
        if is_finite(top):
            counts = counters + row * _COUNTERS
            temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
            top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row).to(tl.float32)
            first, last, _ = _coarse_range(counts, top_k, top_p, min_p, vocab)
            columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            raw = load_logits(logits + row.to(tl.int64) * row_stride, columns, vocab)
            steps = _fine_steps((top - raw) * (1.0 / temperature), first, last)
            weights = confined_weights(raw, top, temperature, min_p)
            at = row * BLOCKS + tl.program_id(1)
            tl.store(block_weights + at, tl.sum(weights, 0))
            tl.store(before + at, tl.sum(tl.where(steps < 0, weights, 0), 0))
            tl.atomic_add(counts + _COARSE + steps, 1, mask=(steps >= 0) & (steps < _FINE), sem="relaxed")


@triton.jit
def _candidates_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor,
    block_max: tl.tensor, counters: tl.tensor, block_weights: tl.tensor, before: tl.tensor, between: tl.tensor,
    keys: tl.tensor, weights: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    if is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top = tl.max(load_maxima(block_max, row, BLOCKS, BLOCKS_PAD), 0)
        if is_finite(top):
            counts = counters + row * _COUNTERS
            temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
            top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row).to(tl.float32)
            coarse = _coarse_range(counts, top_k, top_p, min_p, vocab)
            inside = _row_sum(block_weights, row, BLOCKS, BLOCKS_PAD)
            known = _row_sum(before, row, BLOCKS, BLOCKS_PAD)
            start, end, _ = _fine_range(counts, coarse, inside, known, top_k, top_p, min_p, vocab)
            columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            raw = load_logits(logits + row.to(tl.int64) * row_stride, columns, vocab)
            steps = _fine_steps((top - raw) * (1.0 / temperature), coarse[0], coarse[1])
            each = confined_weights(raw, top, temperature, min_p)
            surely = tl.sum(tl.where((steps >= 0) & (steps < start), each, 0), 0)
            tl.store(between + row * BLOCKS + tl.program_id(1), surely)
            chosen = (steps >= start) & (steps <= end)
            number = tl.sum(chosen.to(tl.int32), 0)
            if number > 0:
                place = tl.atomic_add(counts + _COUNTERS - 1, number, sem="relaxed")
                place += tl.cumsum(chosen.to(tl.int32), 0) - 1
                keep = chosen & (place < _CANDIDATES)
                tl.store(keys + row * _CANDIDATES + place, token_keys(raw, columns), mask=keep)
                tl.store(weights + row * _CANDIDATES + place, each, mask=keep)


@triton.jit
def _up_to(
    limit: tl.tensor, surely: tl.tensor, listed: tl.tuple, whole: tl.tuple,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Number (COUNTED) or weight of the tokens whose key is at most ``limit``: int64.

    Those are ``surely`` many and what is ``listed``, or, if too many are to be listed, what the ``whole`` row holds.
    """
    keys, weights, number = listed
    result = surely.to(tl.int64)
    if number <= _CANDIDATES:
        for start in tl.range(0, number, CHUNK):
            places = start + tl.arange(0, CHUNK)
            mask = (places < number) & (tl.load(keys + places, mask=places < number, other=KEEP_ALL) <= limit)
            values = mask.to(tl.int64) if COUNTED else tl.load(weights + places, mask=mask, other=0)
            result += tl.sum(values, 0)
    else:
        logits, vocab, top, temperature, min_p = whole
        result = result * 0
        for start in tl.range(0, vocab, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            raw = load_logits(logits, columns, vocab)
            inside = (token_keys(raw, columns) <= limit) & (columns < vocab)
            values = inside.to(tl.int64) if COUNTED else confined_weights(raw, top, temperature, min_p)
            result += tl.sum(tl.where(inside, values, 0), 0)
    return result


@triton.jit
def _search(
    wanted: tl.tensor, low: tl.tensor, high: tl.tensor, surely: tl.tensor, listed: tl.tuple, whole: tl.tuple,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The lowest key up to which tokens number, or weigh, at least ``wanted``: above ``low``, up to ``high``."""
    while low + 1 < high:
        middle = low + (high - low) // 2
        reached = _up_to(middle, surely, listed, whole, COUNTED, BLOCK, CHUNK)
        low = tl.where(reached >= wanted, low, middle)
        high = tl.where(reached >= wanted, middle, high)
    return high


@triton.jit
def _key_range(top: tl.tensor, listed: tl.tuple, CHUNK: tl.constexpr) -> tl.tensor:
    """A key below, and one from which on, a threshold may be."""
    keys, _, number = listed
    low = tl.min(token_keys(tl.zeros([1], tl.float32) + top, tl.zeros([1], tl.int32)), 0) - 1
    high = tl.zeros([], tl.int64) + _PAST_ALL
    if number <= _CANDIDATES:
        lowest, highest = high, low
        for start in tl.range(0, number, CHUNK):
            places = start + tl.arange(0, CHUNK)
            lowest = tl.minimum(lowest, tl.min(tl.load(keys + places, mask=places < number, other=KEEP_ALL), 0))
            highest = tl.maximum(highest, tl.max(tl.load(keys + places, mask=places < number, other=-KEEP_ALL), 0))
        low, high = lowest - 1, highest
    return low, high


@triton.jit
def _threshold_kernel(
    logits: tl.tensor, temperatures: tl.tensor, top_ks: tl.tensor, top_ps: tl.tensor, min_ps: tl.tensor,
    block_max: tl.tensor, counters: tl.tensor, block_weights: tl.tensor, before: tl.tensor, between: tl.tensor,
    keys: tl.tensor, weights: tl.tensor, thresholds: tl.tensor, row_stride: tl.tensor, vocab: tl.tensor,
    BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    threshold = tl.zeros([], tl.int64) + KEEP_ALL
    if is_filtered(row, temperatures, top_ks, top_ps, vocab):
        top = tl.max(load_maxima(block_max, row, BLOCKS, BLOCKS_PAD), 0)
        counts = counters + row * _COUNTERS
        number = tl.load(counts + _COUNTERS - 1)
        # Without a candidate a top-k is larger than the number of tokens that have a weight.
        if is_finite(top) & (number > 0):
            temperature, min_p = tl.load(temperatures + row), tl.load(min_ps + row)
            top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
            inside = _row_sum(block_weights, row, BLOCKS, BLOCKS_PAD)
            known = _row_sum(before, row, BLOCKS, BLOCKS_PAD)
            coarse = _coarse_range(counts, top_k, top_p.to(tl.float32), min_p, vocab)
            fine = _fine_range(counts, coarse, inside, known, top_k, top_p.to(tl.float32), min_p, vocab)
            surely = known + _row_sum(between, row, BLOCKS, BLOCKS_PAD)
            listed = (keys + row * _CANDIDATES, weights + row * _CANDIDATES, number)
            whole = (logits + row.to(tl.int64) * row_stride, vocab, top, temperature, min_p)
            low, threshold = _key_range(top, listed, CHUNK)
            if top_k < vocab:
                threshold = _search(top_k, low, threshold, fine[2], listed, whole, True, BLOCK, CHUNK)
                inside = _up_to(threshold, surely, listed, whole, False, BLOCK, CHUNK)
            if top_p < 1.0:
                exact = top_p * inside.to(tl.float64)
                wanted = exact.to(tl.int64)
                wanted = tl.minimum(wanted + (wanted.to(tl.float64) < exact).to(tl.int64), inside)
                threshold = _search(wanted, low, threshold, surely, listed, whole, False, BLOCK, CHUNK)
    tl.store(thresholds + row, threshold)
