"""What the steps of sampling share: a token's place in the order, and its integer weight.

The definitions are those of ``kernels.sampling``: a key orders tokens by logit, highest first, then by id, lowest
first; a weight is ``floor(p * 2**50)``. Both fit int64.
"""

import triton
import triton.language as tl

GREEDY_TEMPERATURE = tl.constexpr(1e-5)
"""Rows at or below this take the best token."""
_WEIGHT_SCALE = tl.constexpr(2.0**50)


@triton.jit
def load_scaled(row: tl.tensor, columns: tl.tensor, vocab: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Logits over the temperature, float32; columns past the vocabulary as minus infinity."""
    x = tl.load(row + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
    return tl.div_rn(x, tl.zeros_like(x) + temperature)


@triton.jit
def token_keys(scaled: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """int64: lower for a higher logit, then for a lower id. Adding 0 makes -0.0 equal to 0.0."""
    bits = (scaled + 0.0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ -2147483648, ~bits)
    return (ordered.to(tl.int64) << 32) | ids.to(tl.int64)


@triton.jit
def key_logits(keys: tl.tensor) -> tl.tensor:
    """The float32 logits that keys were made from."""
    ordered = (keys >> 32).to(tl.int32)
    return tl.where(ordered < 0, ~ordered, ordered ^ -2147483648).to(tl.float32, bitcast=True)


@triton.jit
def row_maximum_and_sum(
    block_max: tl.tensor, block_sum: tl.tensor, row: tl.tensor, BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr
) -> tl.tensor:
    """A row's largest scaled logit and its sum of exponentials relative to that, from those of its blocks.

    The sum is NaN, or 0, if the row has no distribution: a NaN, an infinity, or no finite logit.
    """
    blocks = tl.arange(0, BLOCKS_PAD)
    at = row * BLOCKS + blocks
    maxima = tl.load(block_max + at, mask=blocks < BLOCKS, other=float("-inf"))
    sums = tl.load(block_sum + at, mask=blocks < BLOCKS, other=0.0)
    top = tl.max(maxima, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.sum(sums * tl.exp(maxima - base), 0)


@triton.jit
def token_weights(scaled: tl.tensor, top: tl.tensor, total: tl.tensor, min_p: tl.tensor) -> tl.tensor:
    """int64 weights of tokens from their scaled logits; 0 for those below ``min_p`` times the best's probability."""
    exponentials = tl.exp(scaled - top)
    probs = tl.div_rn(exponentials, tl.zeros_like(exponentials) + total)
    best = tl.div_rn(tl.full([1], 1.0, tl.float32), tl.zeros([1], tl.float32) + total)
    probs = tl.where(probs < min_p * best, 0.0, probs)
    return (probs * _WEIGHT_SCALE).to(tl.int64)
