"""Head norms, rotation and the cache write of a step's queries, keys and values, in place and in one call."""

from typing import Any

import numpy as np
import torch

from .elements import Pointer, int64s, integer, real, rounded_like, widen
from .team import inlined, kernel, team_size, thread_number


@inlined
def _normalize(heads: Pointer, base: int, weight: Pointer, weight_base: int, head_dim: int, eps: Any) -> None:
    squares = np.float32(0)
    for i in range(head_dim):
        squares += widen(heads[base + i]) * widen(heads[base + i])
    scale = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + eps)
    for i in range(head_dim):
        normalized = rounded_like(heads, widen(heads[base + i]) * scale)
        heads[base + i] = rounded_like(heads, widen(normalized) * widen(weight[weight_base + i]))


@inlined
def _rotate(heads: Pointer, base: int, table: Pointer, angles: int, half: int) -> None:
    for i in range(half):
        first, second = widen(heads[base + i]), widen(heads[base + half + i])
        cos, sin = widen(table[angles + i]), widen(table[angles + half + i])
        heads[base + i] = rounded_like(heads, first * cos - second * sin)
        heads[base + half + i] = rounded_like(heads, second * cos + first * sin)


@kernel("qqqqqqqqqqqqqd")
def _rope_and_cache(words: Pointer) -> None:
    heads, table, weight, keys, values = words[0], words[1], words[2], words[3], words[4]
    positions, slots = int64s(words[5]), int64s(words[6])
    tokens, num_heads, kv_heads = integer(words[7]), integer(words[8]), integer(words[9])
    head_dim, rotary_dim, normalize = integer(words[10]), integer(words[11]), integer(words[12])
    eps = np.float32(real(words[13]))
    thread, threads = np.int64(thread_number()), np.int64(team_size())
    rotated = num_heads + kv_heads
    for token in range(tokens * thread // threads, tokens * (thread + 1) // threads):
        row = token * (rotated + kv_heads) * head_dim
        angles = positions[token] * rotary_dim
        for head in range(rotated):
            base = row + head * head_dim
            if normalize != 0:
                _normalize(heads, base, weight, head * head_dim, head_dim, eps)
            _rotate(heads, base, table, angles, rotary_dim // 2)
        slot = slots[token] * kv_heads * head_dim
        for i in range(kv_heads * head_dim):
            keys[slot + i] = heads[row + num_heads * head_dim + i]
            values[slot + i] = heads[row + rotated * head_dim + i]


def rope_and_cache(
    heads: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    rotary_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Normalize and rotate the queries and keys of ``heads`` [T, H + 2 KH, D], contiguous, in place, and write keys
    and values to the caches [num_blocks, block_size, KH, D], contiguous.

    ``positions`` int64 [T] index ``rotary_table`` [P, R]: R / 2 cosines, then R / 2 sines, for the first R elements of
    a head; element i is paired with i + R / 2. ``slot_mapping`` int64 [T] counts slots through the pool.
    ``norm_weight`` [H + KH, D], if given, normalizes query heads, then key heads, by RMS with ``eps``.
    """
    assert heads.is_contiguous() and positions.is_contiguous() and slot_mapping.is_contiguous()
    tokens, total, head_dim = heads.shape
    weight = heads if norm_weight is None else norm_weight
    _rope_and_cache(
        heads.dtype, heads.numel(), heads.data_ptr(), rotary_table.data_ptr(), weight.data_ptr(), key_cache.data_ptr(),
        value_cache.data_ptr(), positions.data_ptr(), slot_mapping.data_ptr(), tokens, num_heads,
        (total - num_heads) // 2, head_dim, rotary_table.shape[1], int(norm_weight is not None), eps,
    )  # fmt: skip
