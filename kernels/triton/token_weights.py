"""What the steps of sampling share: a token's place in the order, and its integer weight.

Keys order tokens as those of ``kernels.sampling`` do, by logit, highest first, then by id, lowest first; the logits are
not divided by the temperature, which would leave the order as it is. A weight is
``floor(exp((logit - base) / temperature) * 2**42)`` for a base that is no less than any logit it is compared with. Both
fit int64, as does the sum of a vocabulary's weights.
"""

import triton
import triton.language as tl

GREEDY_TEMPERATURE = tl.constexpr(1e-5)
"""Rows at or below this take the best token."""
WEIGHT_SCALE = tl.constexpr(2.0**42)
"""The weight of a token as likely as the base."""
ID_BITS = tl.constexpr(24)
"""Of a key, the lower ones: for a vocabulary of 16 million tokens."""
_ID_MASK = tl.constexpr(2**24 - 1)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_logits(row: tl.tensor, columns: tl.tensor, vocab: tl.tensor) -> tl.tensor:
    """Logits as float32; columns past the vocabulary as minus infinity."""
    return tl.load(row + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def token_keys(logits: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """int64: lower for a higher logit, then for a lower id. Adding 0 makes -0.0 equal to 0.0."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ -2147483648, ~bits)
    return (ordered.to(tl.int64) << ID_BITS) | ids.to(tl.int64)


@triton.jit
def key_ids(keys: tl.tensor) -> tl.tensor:
    """int64: the ids that keys were made from."""
    return keys & _ID_MASK


@triton.jit
def load_maxima(block_max: tl.tensor, row: tl.tensor, BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr) -> tl.tensor:
    """The largest logit of each block of a row; minus infinity past the last block."""
    blocks = tl.arange(0, BLOCKS_PAD)
    return tl.load(block_max + row * BLOCKS + blocks, mask=blocks < BLOCKS, other=float("-inf"))


@triton.jit
def is_finite(value: tl.tensor) -> tl.tensor:
    """Neither infinite nor NaN. A row whose largest logit is not has no distribution."""
    return tl.abs(value) < float("inf")


@triton.jit
def likelihoods(logits: tl.tensor, base: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """float32: how likely tokens are beside one with the logit ``base``, which is finite."""
    return tl.exp2((logits - base) * (_LOG2_E / temperature))


@triton.jit
def as_weights(likelihood: tl.tensor) -> tl.tensor:
    """int64, of likelihoods up to 1."""
    return (likelihood * WEIGHT_SCALE).to(tl.int64)


@triton.jit
def confined_weights(logits: tl.tensor, top: tl.tensor, temperature: tl.tensor, min_p: tl.tensor) -> tl.tensor:
    """int64 weights relative to the row's largest logit; 0 for tokens less than ``min_p`` as likely as that."""
    likelihood = likelihoods(logits, top, temperature)
    return as_weights(tl.where(likelihood < min_p, 0.0, likelihood))
