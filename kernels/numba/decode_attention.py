"""Attention of rows with one query token each, straight over the paged cache."""

import numpy as np
import torch

from . import LANES
from .elements import Pointer, exponential, floats, int32s, integer, larger, real, rounded_like, shifted, widen
from .lanes import add_product, load_lanes, store_lanes, sum_lanes, zero_lanes
from .team import inlined, kernel, team_size, thread_number

_TOGETHER = 4
"""Query heads that go through a KV head's keys together, so that each key is widened once for all of them."""


@inlined
def _score(queries: Pointer, keys: Pointer, base: int, head_dim: int, scores: Pointer, at: int, stride: int) -> None:
    """Products of four queries [4, D] with one key."""
    first, second, third, fourth = zero_lanes(), zero_lanes(), zero_lanes(), zero_lanes()
    for i in range(0, head_dim, LANES):
        key = load_lanes(keys, base + i)
        first = add_product(first, key, load_lanes(queries, i))
        second = add_product(second, key, load_lanes(queries, head_dim + i))
        third = add_product(third, key, load_lanes(queries, 2 * head_dim + i))
        fourth = add_product(fourth, key, load_lanes(queries, 3 * head_dim + i))
    scores[at] = sum_lanes(first)
    scores[at + stride] = sum_lanes(second)
    scores[at + 2 * stride] = sum_lanes(third)
    scores[at + 3 * stride] = sum_lanes(fourth)


@inlined
def _softmax(scores: Pointer, base: int, count: int) -> None:
    """Scores to weights, in place."""
    largest = np.float32(-np.inf)
    for i in range(count):
        largest = larger(largest, scores[base + i])
    total = np.float32(0)
    for i in range(count):
        weight = exponential(scores[base + i] - largest)
        scores[base + i] = weight
        total += weight
    factor = np.float32(1) / total
    for i in range(count):
        scores[base + i] *= factor


@inlined
def _mix(
    values: Pointer, offset: int, step: int, blocks: Pointer, block_size: int, first_key: int, last_key: int,
    scores: Pointer, stride: int, mixed: Pointer, at: int, head_dim: int,
) -> None:  # fmt: skip
    """The values, weighted for each of four heads: elements from ``at``, twice ``LANES`` of each. Where only ``LANES``
    are left, they are computed twice."""
    second = at + LANES if at + LANES < head_dim else at
    a0, a1, b0, b1 = zero_lanes(), zero_lanes(), zero_lanes(), zero_lanes()
    c0, c1, d0, d1 = zero_lanes(), zero_lanes(), zero_lanes(), zero_lanes()
    for start in range(first_key // block_size * block_size, last_key, block_size):
        block = np.int64(blocks[start // block_size]) * block_size - start
        for key in range(max(start, first_key), min(start + block_size, last_key)):
            base = (block + key) * step + offset
            low, high = load_lanes(values, base + at), load_lanes(values, base + second)
            place = key - first_key
            weight = scores[place]
            a0, a1 = add_product(a0, low, weight), add_product(a1, high, weight)
            weight = scores[place + stride]
            b0, b1 = add_product(b0, low, weight), add_product(b1, high, weight)
            weight = scores[place + 2 * stride]
            c0, c1 = add_product(c0, low, weight), add_product(c1, high, weight)
            weight = scores[place + 3 * stride]
            d0, d1 = add_product(d0, low, weight), add_product(d1, high, weight)
    store_lanes(mixed, at, a0)
    store_lanes(mixed, second, a1)
    store_lanes(mixed, head_dim + at, b0)
    store_lanes(mixed, head_dim + second, b1)
    store_lanes(mixed, 2 * head_dim + at, c0)
    store_lanes(mixed, 2 * head_dim + second, c1)
    store_lanes(mixed, 3 * head_dim + at, d0)
    store_lanes(mixed, 3 * head_dim + second, d1)


@kernel("qqqqqqqqqqqqqqqqd")
def _decode_attention(words: Pointer) -> None:
    heads, keys, values, out = words[0], words[1], words[2], words[3]
    memory, table, lengths = floats(words[4]), int32s(words[5]), int32s(words[6])
    rows, kv_heads, group, head_dim = integer(words[7]), integer(words[8]), integer(words[9]), integer(words[10])
    row_stride, table_stride, block_size = integer(words[11]), integer(words[12]), integer(words[13])
    window, room, scale = integer(words[14]), integer(words[15]), np.float32(real(words[16]))
    thread, threads = np.int64(thread_number()), np.int64(team_size())
    queries = shifted(memory, thread * _TOGETHER * (head_dim + room))
    scores = shifted(queries, _TOGETHER * head_dim)
    step = kv_heads * head_dim
    for unit in range(thread, rows * kv_heads, threads):
        row, kv_head = unit // kv_heads, unit % kv_heads
        blocks = shifted(table, row * table_stride)
        last = np.int64(lengths[row])
        first = max(last - window, 0)
        for head in range(kv_head * group, (kv_head + 1) * group, _TOGETHER):
            real_heads = min((kv_head + 1) * group - head, _TOGETHER)
            for i in range(_TOGETHER * head_dim):
                queries[i] = np.float32(0)
            for i in range(real_heads * head_dim):
                queries[i] = widen(heads[row * row_stride + head * head_dim + i]) * scale
            for start in range(first // block_size * block_size, last, block_size):
                block = np.int64(blocks[start // block_size]) * block_size - start
                for key in range(max(start, first), min(start + block_size, last)):
                    base = (block + key) * step + kv_head * head_dim
                    _score(queries, keys, base, head_dim, scores, key - first, room)
            for i in range(real_heads):
                _softmax(scores, i * room, last - first)
            for at in range(0, head_dim, 2 * LANES):
                _mix(
                    values, kv_head * head_dim, step, blocks, block_size, first, last, scores, room, queries, at,
                    head_dim,
                )  # fmt: skip
            for i in range(real_heads * head_dim):
                out[(row * kv_heads * group + head) * head_dim + i] = rounded_like(out, queries[i])


class Scratch:
    """Room for the queries and scores of each thread, kept from step to step."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def reserve(self, head_dim: int, keys: int) -> tuple[int, int]:
        """Memory for up to ``keys`` keys: its address, and the keys there is room for."""
        room = -(-keys // 256) * 256
        needed = torch.get_num_threads() * _TOGETHER * (head_dim + room)
        if needed > self._memory.numel():
            self._memory = torch.empty(needed)
        return self._memory.data_ptr(), room


def decode_attention(
    heads: torch.Tensor,
    num_heads: int,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    out: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    longest: int,
    scratch: Scratch,
    scale: float,
    window: int | None = None,
) -> None:
    """Attention of the first R rows' queries; fills ``out[:R]`` of [T, H, D], contiguous.

    ``heads`` is [T, H + 2 KH, D], contiguous, rotated queries first; R is the length of ``seq_lens`` int32 [R], the
    keys of each row, of which ``longest`` is the most. Keys and values are read from the caches [num_blocks,
    block_size, KH, D] by ``block_table`` int32 [R, any]; ``window`` is how many of the last keys a query sees.
    """
    assert heads.is_contiguous() and out.is_contiguous() and seq_lens.is_contiguous()
    _, block_size, kv_heads, head_dim = key_cache.shape
    rows = seq_lens.shape[0]
    seen = longest if window is None else min(longest, window)
    memory, room = scratch.reserve(head_dim, seen)
    _decode_attention(
        heads.dtype, rows * seen * kv_heads * head_dim, heads.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(),
        out.data_ptr(), memory, block_table.data_ptr(), seq_lens.data_ptr(), rows, kv_heads, num_heads // kv_heads,
        head_dim, heads.stride(0), block_table.stride(0), block_size, longest if window is None else window, room,
        scale,
    )  # fmt: skip
