"""Causal attention of prompt chunks over the paged cache, for any mix of rows.

A program takes one tile of a row's queries, of all heads that share a KV head at once: tokens times heads are the rows
of its products. Keys that all of the tile's queries see need no mask and are walked first.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .device import dot, power_of_2

_LOG2_E = 1.4426950408889634
_ROWS_CLASSES = (32, 256, 1024)
MAX_ROWS = _ROWS_CLASSES[-1]
"""Most requests in one call."""


@dataclass(frozen=True, slots=True)
class PromptTiling:
    """How the work is cut, and how a program runs."""

    packed: int
    """Tokens times query heads of one KV head in a tile; 64 or more for the large matrix instruction."""
    tile: int
    """Keys in one step of a program's loop."""
    warps: int
    stages: int


def choose_tiling(head_dim: int, itemsize: int) -> PromptTiling:
    """The tiling for heads of this size and elements of ``itemsize`` bytes."""
    if itemsize > 2:
        return PromptTiling(packed=32, tile=32, warps=4, stages=2)
    return PromptTiling(packed=128, tile=64 if head_dim > 64 else 128, warps=8, stages=3)


def prompt_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    window: int | None = None,
    tiling: PromptTiling | None = None,
) -> torch.Tensor:
    """Attention of a flat batch: fills and returns ``out`` [T, H, D].

    Row r's queries are ``query[query_start_loc[r]:query_start_loc[r + 1]]`` of ``query`` [T, H, D], the last tokens of
    its ``seq_lens[r]``; int32 [R + 1] and [R], read on the device, R at most ``MAX_ROWS``. ``query_start_loc`` may
    begin above 0, and tokens outside of all rows are left alone. Keys and values are in the caches [num_blocks,
    block_size, KH, D], contiguous but for the stride of a block, in the blocks of ``block_table`` int32
    [R, max_blocks]; block_size is a power of two, 16 or more. With a ``window`` a query sees its own token and the
    ``window - 1`` before it.
    """
    num_tokens, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    rows = seq_lens.shape[0]
    if rows > MAX_ROWS:
        raise ValueError(f"prompt_attention takes {MAX_ROWS} rows at most, not {rows}; split the batch")
    if num_tokens == 0 or rows == 0:
        return out
    if tiling is None:
        tiling = choose_tiling(head_dim, query.element_size())
    group = num_heads // num_kv_heads
    group_pad = power_of_2(group)
    packed = max(tiling.packed, group_pad, 16)
    tokens = packed // group_pad
    # Each row has at most one tile that is not full.
    most_tiles = num_tokens // tokens + min(rows, num_tokens)
    _prompt_attention_kernel[(most_tiles * num_kv_heads,)](
        query, key_cache, value_cache, query_start_loc, seq_lens, block_table, out, query.stride(0), out.stride(0),
        key_cache.stride(0), block_table.stride(0), rows, window or 0, scale * _LOG2_E,
        KV_HEADS=num_kv_heads, GROUP=group, GROUP_PAD=group_pad, TOKENS=tokens, HEAD_DIM=head_dim,
        DIM_PAD=max(16, power_of_2(head_dim)), BLOCK_SIZE=block_size, TILE=tiling.tile,
        ROWS_PAD=next(size for size in _ROWS_CLASSES if size >= rows), num_warps=tiling.warps,
        num_stages=tiling.stages,
    )  # fmt: skip
    return out


@triton.jit
def _key_places(
    table_row: tl.tensor, tile: tl.tensor, length: tl.tensor, block_stride: tl.tensor,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where a tile's keys begin in the cache of KV head 0, int64 [TILE]; past the row's end in block 0."""
    slots = tile * TILE + tl.arange(0, TILE)
    if BLOCK_SIZE >= TILE:
        block = tl.load(table_row + (tile * TILE) // BLOCK_SIZE, mask=tile * TILE < length, other=0).to(tl.int64)
        places = block * block_stride + ((slots % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM)).to(tl.int64)
    else:
        blocks = tl.load(table_row + slots // BLOCK_SIZE, mask=slots < length, other=0).to(tl.int64)
        places = blocks * block_stride + (slots % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM)
    return places


@triton.jit
def _attend_tiles(
    acc: tl.tensor, top: tl.tensor, sums: tl.tensor, query: tl.tensor, positions: tl.tensor, key_head: tl.tensor,
    value_head: tl.tensor, table_row: tl.tensor, first_tile: tl.tensor, last_tile: tl.tensor, length: tl.tensor,
    block_stride: tl.tensor, window: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add the tiles ``first_tile:last_tile`` to the running output, maxima and sums."""
    dims = tl.arange(0, DIM_PAD)
    # Read a step ahead, so that block ids take no stage of Triton's pipeline (see decode_attention).
    places = _key_places(table_row, first_tile, length, block_stride, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE)
    for tile in tl.range(first_tile, last_tile):
        at = places[:, None] + dims[None, :]
        slots = tile * TILE + tl.arange(0, TILE)
        if MASKED or DIM_PAD != HEAD_DIM:
            mask = (slots < length)[:, None] & (dims < HEAD_DIM)[None, :]
            keys = tl.load(key_head + at, mask=mask, other=0.0)
            values = tl.load(value_head + at, mask=mask, other=0.0)
        else:
            keys = tl.load(key_head + at)
            values = tl.load(value_head + at)
        scores = dot(query, tl.trans(keys), tl.zeros([query.shape[0], TILE], tl.float32)) * scale_log2
        if MASKED:
            hidden = slots[None, :] > positions[:, None]
            hidden = hidden | ((window > 0) & (slots[None, :] <= positions[:, None] - window))
            scores = tl.where(hidden, float("-inf"), scores)
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        sums = sums * decay + tl.sum(weights, 1)
        acc = dot(weights.to(values.dtype), values, acc * decay[:, None])
        top = new_top
        places = _key_places(table_row, tile + 1, length, block_stride, KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE)
    return acc, top, sums


@triton.jit(
    do_not_specialize=("table_stride", "rows", "window"),
    do_not_specialize_on_alignment=("query_start_loc", "seq_lens", "block_table"),
)
def _prompt_attention_kernel(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, query_start_loc: tl.tensor, seq_lens: tl.tensor,
    block_table: tl.tensor, out: tl.tensor, query_stride: tl.tensor, out_stride: tl.tensor, block_stride: tl.tensor,
    table_stride: tl.tensor, rows: tl.tensor, window: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    ROWS_PAD: tl.constexpr,
) -> None:  # fmt: skip
    every = tl.arange(0, ROWS_PAD)
    starts = tl.load(query_start_loc + every, mask=every < rows, other=0)
    counts = tl.load(query_start_loc + every + 1, mask=every < rows, other=0) - starts
    tiles = (counts + TOKENS - 1) // TOKENS
    ends = tl.cumsum(tiles, 0)
    # The last tiles of a row see most keys: they go first, so that no program starts long work when others are done.
    index = tl.sum(tiles, 0) - 1 - tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    if index >= 0:
        before = ends <= index
        row = tl.sum(before.to(tl.int32), 0)
        token = (index - tl.max(tl.where(before, ends, 0), 0)) * TOKENS
        start = tl.load(query_start_loc + row)
        count = tl.load(query_start_loc + row + 1) - start
        length = tl.load(seq_lens + row)
        _attend_queries(
            query, key_cache, value_cache, block_table + row.to(tl.int64) * table_stride, out,
            start, token, count, length, query_stride, out_stride, block_stride, kv_head, window, scale_log2,
            KV_HEADS, GROUP, GROUP_PAD, TOKENS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE,
        )  # fmt: skip


@triton.jit
def _attend_queries(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, table_row: tl.tensor, out: tl.tensor,
    start: tl.tensor, token: tl.tensor, count: tl.tensor, length: tl.tensor, query_stride: tl.tensor,
    out_stride: tl.tensor, block_stride: tl.tensor, kv_head: tl.tensor, window: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Queries ``token:token + TOKENS`` of a row that begins at ``start`` and has ``count`` of them."""
    PACKED: tl.constexpr = TOKENS * GROUP_PAD
    packed = tl.arange(0, PACKED)
    tokens, heads = token + packed // GROUP_PAD, packed % GROUP_PAD
    dims = tl.arange(0, DIM_PAD)
    mask = ((tokens < count) & (heads < GROUP))[:, None] & (dims < HEAD_DIM)[None, :]
    at_head = ((kv_head * GROUP + heads) * HEAD_DIM)[:, None] + dims[None, :]
    at_token = (start + tokens).to(tl.int64)[:, None]
    q = tl.load(query + at_token * query_stride + at_head, mask=mask, other=0.0)
    # Rows that are only there to fill the tile see what its last real token sees.
    positions = length - count + tl.minimum(tokens, count - 1)
    acc = tl.zeros([PACKED, DIM_PAD], tl.float32)
    top = tl.full([PACKED], float("-inf"), tl.float32)
    sums = tl.zeros([PACKED], tl.float32)
    before = length - count + token  # the first query's position
    last = (length - count + tl.minimum(token + TOKENS, count) + TILE - 1) // TILE
    first = tl.where(window > 0, tl.maximum(before - window + 1, 0) // TILE, 0)
    full = tl.where(window > 0, first, (before + 1) // TILE)
    key_head, value_head = key_cache + kv_head * HEAD_DIM, value_cache + kv_head * HEAD_DIM
    acc, top, sums = _attend_tiles(
        acc, top, sums, q, positions, key_head, value_head, table_row, first, full, length, block_stride, window,
        scale_log2, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE, False,
    )  # fmt: skip
    acc, top, sums = _attend_tiles(
        acc, top, sums, q, positions, key_head, value_head, table_row, full, last, length, block_stride, window,
        scale_log2, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE, True,
    )  # fmt: skip
    result = acc / tl.where(sums == 0.0, 1.0, sums)[:, None]
    tl.store(out + at_token * out_stride + at_head, result.to(out.dtype.element_ty), mask=mask)
