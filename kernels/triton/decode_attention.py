"""Attention of rows with one query token each over the paged cache, split along the keys.

Work is a list of items, one per (row, chunk of its keys, KV head), that a fixed number of programs share: each takes
the next one when it is done with one. Every program works the list out from ``seq_lens`` by itself, so one captured
grid serves any mix of lengths. The query heads that share a KV head are the rows of one product. Where a row has
several chunks, the program that finishes the last of them merges the partial results in the order of the chunks,
whoever that is: results do not depend on the schedule.

How a row is cut depends on its length and on the ``DecodeTiling``, never on other rows.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .device import dot, num_processors, power_of_2

MAX_CHUNKS = 32
"""Parts that one row's keys are cut into at most."""
_LOG2_E = 1.4426950408889634
_MERGED_AT_ONCE = 8
_REGISTERS = 65536
"""Of one multiprocessor, from compute capability 8.0 to 12.0."""


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How the work is cut, and how a program runs."""

    tile: int
    """Keys in one step of a program's loop."""
    min_tiles: int
    """A chunk has at least this many tiles, if the row has as many."""
    warps: int
    stages: int
    programs: int
    """Programs for each multiprocessor."""


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Memory for partial results, shared by all layers and steps that run one after another."""

    outputs: torch.Tensor
    """float32 [B, MAX_CHUNKS, H, D], not normalized"""
    maxima: torch.Tensor
    """float32 [B, MAX_CHUNKS, H], scores in powers of two"""
    sums: torch.Tensor
    """float32 [B, MAX_CHUNKS, H]"""
    arrived: torch.Tensor
    """int32 [B, KH], zero between launches: chunks that are done"""
    queue: torch.Tensor
    """int32 [2], zero between launches: items taken beside each program's first, and programs that are done"""

    @property
    def max_batch(self) -> int:
        return self.outputs.shape[0]


def allocate_scratch(
    max_batch: int, num_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
) -> DecodeScratch:
    """Scratch for batches of up to ``max_batch`` rows (at most ``MAX_BATCH``)."""
    parts = (max_batch, MAX_CHUNKS, num_heads)
    return DecodeScratch(
        outputs=torch.empty(*parts, head_dim, dtype=torch.float32, device=device),
        maxima=torch.empty(parts, dtype=torch.float32, device=device),
        sums=torch.empty(parts, dtype=torch.float32, device=device),
        arrived=torch.zeros(max_batch, num_kv_heads, dtype=torch.int32, device=device),
        queue=torch.zeros(2, dtype=torch.int32, device=device),
    )


_BATCH_CLASSES = (32, 256, 1024)
"""Batches are padded to one of these where the work list is made, so that few kernels are compiled."""
MAX_BATCH = _BATCH_CLASSES[-1]


def choose_tiling(batch: int, head_dim: int, itemsize: int, invariant: bool = False) -> DecodeTiling:
    """The tiling for a batch of this size, for elements of ``itemsize`` bytes.

    With ``invariant`` the cut of a row does not depend on the size of the batch either.
    """
    if itemsize > 2:
        return DecodeTiling(tile=32, min_tiles=8, warps=4, stages=2, programs=2)
    # Measured on an H200 (tests/gpu/kernel_bench.py). Few rows need more chunks to give every processor one, many rows
    # only lose by merging them: 64 rows of 1088 keys take 74 us whole and 83 in two chunks each, 256 rows 268 and 289.
    # Rows of unequal length are 3 % quicker in four programs of four warps to a processor than in five of two.
    if invariant or batch > 32:
        return DecodeTiling(tile=32, min_tiles=48, warps=4, stages=3, programs=4)
    if batch > 4:
        return DecodeTiling(tile=32, min_tiles=8, warps=2, stages=3, programs=5)
    return DecodeTiling(tile=32, min_tiles=4, warps=4, stages=4, programs=4)


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    scratch: DecodeScratch,
    scale: float,
    window: int | None = None,
    tiling: DecodeTiling | None = None,
) -> torch.Tensor:
    """Attention of ``query`` [B, H, D] over the keys each row has in the cache; fills and returns ``out`` [B, H, D].

    ``key_cache`` and ``value_cache`` are [num_blocks, block_size, KH, D], contiguous but for the stride of a block;
    block_size is a power of two, 16 or more. ``block_table`` int32 [B, max_blocks] and ``seq_lens`` int32 [B] are read
    on the device; entries of the table past a row's length are not used. A row of length 0 gives zeros. With a
    ``window`` a row sees its last ``window`` keys only. B is at most ``scratch.max_batch``. Heads and dims of query
    and out are contiguous, rows may be strided.
    """
    batch, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    if batch > min(scratch.max_batch, MAX_BATCH):
        raise ValueError(
            f"a batch of {batch} rows; the scratch memory is for {scratch.max_batch} and {MAX_BATCH} is most"
        )
    if tiling is None:
        tiling = choose_tiling(batch, head_dim, key_cache.element_size())
    group = num_heads // num_kv_heads
    programs = min(batch * MAX_CHUNKS * num_kv_heads, num_processors(query.device) * tiling.programs)
    _decode_attention_kernel[(programs,)](
        query, key_cache, value_cache, block_table, seq_lens, out, scratch.outputs, scratch.maxima, scratch.sums,
        scratch.arrived, scratch.queue, query.stride(0), out.stride(0), key_cache.stride(0), block_table.stride(0),
        batch, window or 0, tiling.min_tiles, scale * _LOG2_E,
        KV_HEADS=num_kv_heads, GROUP=group, ROWS=max(16, power_of_2(group)), HEAD_DIM=head_dim,
        DIM_PAD=max(16, power_of_2(head_dim)), BLOCK_SIZE=block_size, TILE=tiling.tile,
        MOST_CHUNKS=MAX_CHUNKS, BATCH_PAD=next(size for size in _BATCH_CLASSES if size >= batch),
        STEP=_MERGED_AT_ONCE, num_warps=tiling.warps, num_stages=tiling.stages, maxnreg=_registers(tiling),
    )  # fmt: skip
    return out


def _registers(tiling: DecodeTiling) -> int:
    """Registers for each thread, so that all programs of a multiprocessor run at once."""
    return min(255, _REGISTERS // (tiling.programs * tiling.warps * 32) // 8 * 8)


@triton.jit
def _cut_row(
    length: tl.tensor, window: tl.tensor, min_tiles: tl.tensor, TILE: tl.constexpr, MOST_CHUNKS: tl.constexpr
) -> tl.tensor:
    """First tile that is seen, tiles per chunk, and chunks: at least one, none of them empty unless length is 0."""
    first = tl.where(window > 0, tl.maximum(length - window, 0) // TILE, 0)
    tiles = tl.maximum((length + TILE - 1) // TILE - first, 1)
    most = tl.maximum((tiles + MOST_CHUNKS - 1) // MOST_CHUNKS, min_tiles)
    chunks = (tiles + most - 1) // most
    return first, (tiles + chunks - 1) // chunks, chunks


@triton.jit
def _load_tile(
    cache: tl.tensor, blocks: tl.tensor, slots: tl.tensor, seen: tl.tensor, dims: tl.tensor,
    block_stride: tl.tensor, kv_head: tl.tensor,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[TILE, DIM_PAD] of one KV head. What is not seen reads as 0: a NaN left in a free slot would spread."""
    at = blocks.to(tl.int64) * block_stride + (slots % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
    mask = seen[:, None]
    if DIM_PAD != HEAD_DIM:
        mask = mask & (dims < HEAD_DIM)[None, :]
    return tl.load(cache + at[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _load_blocks(
    table_row: tl.tensor, tile: tl.tensor, length: tl.tensor, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """Ids of the blocks that a tile's keys lie in: one, or [TILE]; 0 for those past the row's end."""
    if BLOCK_SIZE >= TILE:
        blocks = tl.load(table_row + (tile * TILE) // BLOCK_SIZE, mask=tile * TILE < length, other=0)
    else:
        slots = tile * TILE + tl.arange(0, TILE)
        blocks = tl.load(table_row + slots // BLOCK_SIZE, mask=slots < length, other=0)
    return blocks


@triton.jit
def _attend_chunk(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, table_row: tl.tensor, first_tile: tl.tensor,
    last_tile: tl.tensor, begin: tl.tensor, length: tl.tensor, block_stride: tl.tensor, kv_head: tl.tensor,
    scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Unnormalized output [ROWS, DIM_PAD], maxima and sums [ROWS] over the tiles ``first_tile:last_tile``."""
    dims = tl.arange(0, DIM_PAD)
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    # Sums stay one per column until the end: that spares a reduction across warps in every step.
    sums = tl.zeros([ROWS, TILE], tl.float32)
    # The ids of the next tile's blocks are read a step ahead. Read in the step that needs them, they would become a
    # stage of their own in Triton's pipeline and halve the number of tiles in flight.
    blocks = _load_blocks(table_row, first_tile, length, BLOCK_SIZE, TILE)
    for tile in tl.range(first_tile, last_tile):
        slots = tile * TILE + tl.arange(0, TILE)
        seen = (slots >= begin) & (slots < length)
        keys = _load_tile(
            key_cache, blocks, slots, seen, dims, block_stride, kv_head, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE
        )
        values = _load_tile(
            value_cache, blocks, slots, seen, dims, block_stride, kv_head, KV_HEADS, HEAD_DIM, DIM_PAD, BLOCK_SIZE
        )
        scores = dot(query, tl.trans(keys), tl.zeros([ROWS, TILE], tl.float32)) * scale_log2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        sums = sums * decay[:, None] + weights
        acc = dot(weights.to(values.dtype), values, acc * decay[:, None])
        top = new_top
        blocks = _load_blocks(table_row, tile + 1, length, BLOCK_SIZE, TILE)
    return acc, top, tl.sum(sums, 1)


@triton.jit
def _merge_chunks(
    part_out: tl.tensor, part_max: tl.tensor, part_sum: tl.tensor, out: tl.tensor, row: tl.tensor,
    kv_head: tl.tensor, count: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    MOST_CHUNKS: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """Write the output of one row and KV head to ``out`` (the row's), from its ``count`` partial results.

    They are read past the first-level cache (.cg), which may hold what lay there before.
    """
    GROUP_PAD: tl.constexpr = triton.next_power_of_2(GROUP)
    HEADS: tl.constexpr = KV_HEADS * GROUP
    heads = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    every = tl.arange(0, MOST_CHUNKS)
    first = row.to(tl.int64) * MOST_CHUNKS * HEADS + kv_head * GROUP
    at = first + every[:, None] * HEADS + heads[None, :]
    live = (every < count)[:, None] & (heads < GROUP)[None, :]
    maxima = tl.load(part_max + at, mask=live, other=float("-inf"), cache_modifier=".cg")
    top = tl.max(maxima, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    sums = tl.load(part_sum + at, mask=live, other=0.0, cache_modifier=".cg")
    total = tl.sum(tl.exp2(maxima - top[None, :]) * sums, 0)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for start in tl.range(0, count, STEP):
        some = start + tl.arange(0, STEP)
        part = first + some[:, None] * HEADS + heads[None, :]
        here = (some < count)[:, None] & (heads < GROUP)[None, :]
        shares = tl.exp2(tl.load(part_max + part, mask=here, other=float("-inf"), cache_modifier=".cg") - top[None, :])
        outputs = tl.load(
            part_out + (part * HEAD_DIM)[:, :, None] + dims[None, None, :],
            mask=here[:, :, None] & (dims < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        acc += tl.sum(outputs * shares[:, :, None], 0)
    total = tl.where(total == 0.0, 1.0, total)
    at_out = (kv_head * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out + at_out, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _attend_item(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, table_row: tl.tensor, out: tl.tensor,
    part_out: tl.tensor, part_max: tl.tensor, part_sum: tl.tensor, arrived: tl.tensor, block_stride: tl.tensor,
    row: tl.tensor, chunk: tl.tensor, kv_head: tl.tensor, length: tl.tensor, window: tl.tensor,
    min_tiles: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MOST_CHUNKS: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk of one row and KV head; ``query`` and ``out`` point to the row."""
    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    at_head = (kv_head * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(query + at_head, mask=mask, other=0.0)
    first, per_chunk, chunks = _cut_row(length, window, min_tiles, TILE, MOST_CHUNKS)
    start = first + chunk * per_chunk
    stop = tl.minimum(start + per_chunk, (length + TILE - 1) // TILE)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    acc, top, sums = _attend_chunk(
        q, key_cache, value_cache, table_row, start, stop, begin, length, block_stride, kv_head, scale_log2,
        KV_HEADS, ROWS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE,
    )  # fmt: skip
    if chunks == 1:
        sums = tl.where(sums == 0.0, 1.0, sums)
        tl.store(out + at_head, (acc / sums[:, None]).to(out.dtype.element_ty), mask=mask)
    else:
        at = (row.to(tl.int64) * MOST_CHUNKS + chunk) * (KV_HEADS * GROUP) + kv_head * GROUP + heads
        tl.store(part_max + at, top, mask=heads < GROUP)
        tl.store(part_sum + at, sums, mask=heads < GROUP)
        tl.store(part_out + (at * HEAD_DIM)[:, None] + dims[None, :], acc, mask=mask)
        # One thread counts for all: what the others wrote must come before, and is then released along.
        tl.debug_barrier()
        counter = arrived + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == chunks - 1:
            _merge_chunks(
                part_out, part_max, part_sum, out, row, kv_head, chunks,
                KV_HEADS, GROUP, HEAD_DIM, DIM_PAD, MOST_CHUNKS, STEP,
            )  # fmt: skip
            tl.store(counter, 0)


_VARYING = ("table_stride", "batch", "window", "min_tiles")
_SLICED = ("block_table", "seq_lens")


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_SLICED)
def _decode_attention_kernel(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, block_table: tl.tensor, seq_lens: tl.tensor,
    out: tl.tensor, part_out: tl.tensor, part_max: tl.tensor, part_sum: tl.tensor, arrived: tl.tensor,
    queue: tl.tensor, q_stride: tl.tensor, out_stride: tl.tensor, block_stride: tl.tensor, table_stride: tl.tensor,
    batch: tl.tensor, window: tl.tensor, min_tiles: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MOST_CHUNKS: tl.constexpr, BATCH_PAD: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    rows = tl.arange(0, BATCH_PAD)
    lengths = tl.load(seq_lens + rows, mask=rows < batch, other=0)
    _first, _per_chunk, chunks = _cut_row(lengths, window, min_tiles, TILE, MOST_CHUNKS)
    chunks = tl.where(rows < batch, chunks, 0)
    ends = tl.cumsum(chunks, 0)
    items = tl.sum(chunks, 0) * KV_HEADS
    programs = tl.num_programs(0)
    item = tl.program_id(0)
    while item < items:
        following = items
        if items > programs:
            following = programs + tl.atomic_add(queue, 1, sem="relaxed")
        # Heads of one chunk are neighbours in the list: their keys lie side by side in memory.
        index = item // KV_HEADS
        before = ends <= index
        row = tl.sum(before.to(tl.int32), 0)
        chunk = index - tl.max(tl.where(before, ends, 0), 0)
        _attend_item(
            query + row.to(tl.int64) * q_stride, key_cache, value_cache, block_table + row.to(tl.int64) * table_stride,
            out + row.to(tl.int64) * out_stride, part_out, part_max, part_sum, arrived, block_stride,
            row, chunk, item % KV_HEADS, tl.load(seq_lens + row), window, min_tiles, scale_log2,
            KV_HEADS, GROUP, ROWS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE, MOST_CHUNKS, STEP,
        )  # fmt: skip
        item = following
    # In two conditions: Triton's "and" evaluates both of its sides.
    if items > programs:
        done = tl.atomic_add(queue + 1, 1, sem="acq_rel")
        if done == programs - 1:
            tl.store(queue, 0)
            tl.store(queue + 1, 0)
