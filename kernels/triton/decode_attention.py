"""Attention of rows with one query token each over the paged cache, split along the keys.

The keys of each row are cut into units, and the units of all rows, one row after the other, into shares, which
programs take one after the other. Where that gives all of them as much to do, a unit is a whole row, unless it is very
long, and a share is a unit. Else units are as small as can be, and each program gets as many, whichever row they are
of. Every program finds the borders from ``seq_lens`` by itself, so one captured grid serves any mix of lengths. The
query heads that share a KV head are the rows of one product; each KV head has shares of its own, cut alike.

A row that lies in one share is finished there. Of one that does not, each share keeps its part in scratch memory, and
the program that finishes the last of them adds them up in their order, whoever that is: results do not depend on the
schedule. In the last bits they do depend on the lengths of the other rows.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .device import dot, num_processors, power_of_2

_MOST_PROGRAMS = 5
"""For each multiprocessor, in any tiling."""
_CUT = tl.constexpr(4)
"""Whole rows are cut only where they are longer than one part in so many of what a program has to do."""
_UNEVEN = tl.constexpr(4)
"""Tiles that one program may have to do beyond its share: cutting rows to avoid that takes as long."""
_LOG2_E = 1.4426950408889634
_MERGED_AT_ONCE = tl.constexpr(8)
_REGISTERS = 65536
"""Of one multiprocessor, from compute capability 8.0 to 12.0."""


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How the work is cut, and how a program runs."""

    tile: int
    """Keys in one step of a program's loop."""
    warps: int
    stages: int
    programs: int
    """Programs for each multiprocessor."""
    whole: int = 0
    """Rows are not cut below so many tiles; 0: they are wherever shares would be uneven."""


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Memory for parts of rows, shared by all layers and steps that run one after another.

    A share, N of them at most, keeps the part that it begins with, and the one that it ends with.
    """

    outputs: torch.Tensor
    """float32 [N, 2, H, D], not normalized"""
    maxima: torch.Tensor
    """float32 [N, 2, H], scores in powers of two"""
    sums: torch.Tensor
    """float32 [N, 2, H]"""
    arrived: torch.Tensor
    """int32 [B, KH], zero between launches: parts that are done"""
    queue: torch.Tensor
    """int32 [2], zero between launches: shares taken beside each program's first, and programs that are done"""

    @property
    def max_batch(self) -> int:
        return self.arrived.shape[0]


def allocate_scratch(
    max_batch: int, num_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
) -> DecodeScratch:
    """Scratch for batches of up to ``max_batch`` rows (at most ``MAX_BATCH``)."""
    shares = max_batch + _CUT.value * (num_processors(device) * _MOST_PROGRAMS // num_kv_heads + 1)
    parts = (shares, 2, num_heads)
    return DecodeScratch(
        outputs=torch.empty(*parts, head_dim, dtype=torch.float32, device=device),
        maxima=torch.empty(parts, dtype=torch.float32, device=device),
        sums=torch.empty(parts, dtype=torch.float32, device=device),
        arrived=torch.zeros(max_batch, num_kv_heads, dtype=torch.int32, device=device),
        queue=torch.zeros(2, dtype=torch.int32, device=device),
    )


_BATCH_CLASSES = (1, 32, 256, 1024)
"""Batches are padded to one of these where the borders are found, so that few kernels are compiled."""
MAX_BATCH = _BATCH_CLASSES[-1]


_TILINGS = ((32, 2, 0), (96, 4, 0), (128, 3, 48), (MAX_BATCH, 4, 48))
"""Most rows, programs and the least of a whole row, for 16 bits: measured on an H200 (tests/gpu/kernel_bench.py).

Few programs are quicker where they have to wait for each other. Beyond 96 rows, programs that take one row after the
other get done at about the same time without any cuts.
"""


def choose_tiling(batch: int, itemsize: int) -> DecodeTiling:
    """The tiling for a batch of this size, for elements of ``itemsize`` bytes."""
    programs, whole = next((programs, whole) for rows, programs, whole in _TILINGS if batch <= rows)
    if itemsize > 2:
        return DecodeTiling(tile=32, warps=4, stages=2, programs=2, whole=whole)
    return DecodeTiling(tile=32, warps=4, stages=3, programs=programs, whole=whole)


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
    on the device; entries of the table past a row's length are not used. A row of length 0 is left as it is. With a
    ``window`` a row sees its last ``window`` keys only. B is at most ``scratch.max_batch``. Heads and dims of query
    and out are contiguous, rows may be strided.
    """
    batch, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    if batch > min(scratch.max_batch, MAX_BATCH):
        raise ValueError(
            f"a batch of {batch} rows; the scratch memory is for {scratch.max_batch} and {MAX_BATCH} is most"
        )
    tiling = tiling or choose_tiling(batch, key_cache.element_size())
    group = num_heads // num_kv_heads
    groups = max(1, num_processors(query.device) * tiling.programs // num_kv_heads)  # each with a program for each head
    _decode_attention_kernel[(groups * num_kv_heads,)](
        query, key_cache, value_cache, block_table, seq_lens, out, scratch.outputs, scratch.maxima, scratch.sums,
        scratch.arrived, scratch.queue, query.stride(0), out.stride(0), key_cache.stride(0), block_table.stride(0),
        batch, window or 0, tiling.whole, scale * _LOG2_E,
        KV_HEADS=num_kv_heads, GROUP=group, ROWS=max(16, power_of_2(group)), HEAD_DIM=head_dim,
        DIM_PAD=max(16, power_of_2(head_dim)), BLOCK_SIZE=block_size, TILE=tiling.tile,
        BATCH_PAD=next(size for size in _BATCH_CLASSES if size >= batch),
        num_warps=tiling.warps, num_stages=tiling.stages, maxnreg=_registers(tiling),
    )  # fmt: skip
    return out


def _registers(tiling: DecodeTiling) -> int:
    """Registers for each thread, so that all programs of a multiprocessor run at once."""
    return min(255, _REGISTERS // (tiling.programs * tiling.warps * 32) // 8 * 8)


@triton.jit
def _tiles_seen(length: tl.tensor, window: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """The first tile that a row sees, and how many it does; none, if it is empty."""
    first = tl.where(window > 0, tl.maximum(length - window, 0) // TILE, 0)
    return first, tl.cdiv(length, TILE) - first


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
def _attend_tiles(
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
def _merge_parts(
    part_out: tl.tensor, part_max: tl.tensor, part_sum: tl.tensor, out: tl.tensor, kv_head: tl.tensor,
    share: tl.tensor, count: tl.tensor, first_place: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
) -> None:  # fmt: skip
    """Write the output of one row and KV head to ``out`` (the row's), from its parts in ``count`` shares from ``share``
    on, the first of them in that share's ``first_place``.

    They are read past the first-level cache (.cg), which may hold what lay there before.
    """
    GROUP_PAD: tl.constexpr = triton.next_power_of_2(GROUP)
    heads = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    top = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    for start in tl.range(0, count, _MERGED_AT_ONCE):
        some = start + tl.arange(0, _MERGED_AT_ONCE)
        place = (share + some) * 2 + tl.where(some == 0, first_place, 0)
        at = place[:, None] * (KV_HEADS * GROUP) + kv_head * GROUP + heads[None, :]
        here = (some < count)[:, None] & (heads < GROUP)[None, :]
        maxima = tl.load(part_max + at, mask=here, other=float("-inf"), cache_modifier=".cg")
        sums = tl.load(part_sum + at, mask=here, other=0.0, cache_modifier=".cg")
        outputs = tl.load(
            part_out + (at * HEAD_DIM)[:, :, None] + dims[None, None, :],
            mask=here[:, :, None] & (dims < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        new_top = tl.maximum(top, tl.max(maxima, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - base)
        weights = tl.exp2(maxima - base[None, :])
        total = total * decay + tl.sum(weights * sums, 0)
        acc = acc * decay[:, None] + tl.sum(outputs * weights[:, :, None], 0)
        top = new_top
    total = tl.where(total == 0.0, 1.0, total)
    at_out = (kv_head * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out + at_out, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _attend_piece(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, table_row: tl.tensor, out: tl.tensor,
    part_out: tl.tensor, part_max: tl.tensor, part_sum: tl.tensor, counter: tl.tensor, block_stride: tl.tensor,
    kv_head: tl.tensor, start: tl.tensor, stop: tl.tensor, length: tl.tensor, window: tl.tensor, unit: tl.tensor,
    row_start: tl.tensor, row_end: tl.tensor, size: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """The tiles ``start:stop`` of one row and KV head, which are ``unit`` and more of the row's ``row_start:row_end``,
    in shares of ``size`` units. ``query`` and ``out`` point to the row."""
    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PAD)
    mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    at_head = (kv_head * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(query + at_head, mask=mask, other=0.0)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    acc, top, sums = _attend_tiles(
        q, key_cache, value_cache, table_row, start, stop, begin, length, block_stride, kv_head, scale_log2,
        KV_HEADS, ROWS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE,
    )  # fmt: skip
    share, first_share = unit // size, row_start // size
    parts = (row_end - 1) // size - first_share + 1
    if parts == 1:
        sums = tl.where(sums == 0.0, 1.0, sums)
        tl.store(out + at_head, (acc / sums[:, None]).to(out.dtype.element_ty), mask=mask)
    else:
        at = (share * 2 + (unit > share * size).to(tl.int32)) * (KV_HEADS * GROUP) + kv_head * GROUP + heads
        tl.store(part_max + at, top, mask=heads < GROUP)
        tl.store(part_sum + at, sums, mask=heads < GROUP)
        tl.store(part_out + (at * HEAD_DIM)[:, None] + dims[None, :], acc, mask=mask)
        # One thread counts for all: what the others wrote must come before, and is then released along.
        tl.debug_barrier()
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == parts - 1:
            _merge_parts(
                part_out, part_max, part_sum, out, kv_head, first_share, parts,
                (row_start > first_share * size).to(tl.int32),
                KV_HEADS, GROUP, HEAD_DIM, DIM_PAD,
            )  # fmt: skip
            tl.store(counter, 0)


_VARYING = ("table_stride", "batch", "window", "whole")
_SLICED = ("block_table", "seq_lens")


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_SLICED)
def _decode_attention_kernel(
    query: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, block_table: tl.tensor, seq_lens: tl.tensor,
    out: tl.tensor, part_out: tl.tensor, part_max: tl.tensor, part_sum: tl.tensor, arrived: tl.tensor,
    queue: tl.tensor, q_stride: tl.tensor, out_stride: tl.tensor, block_stride: tl.tensor, table_stride: tl.tensor,
    batch: tl.tensor, window: tl.tensor, whole: tl.tensor, scale_log2: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BATCH_PAD: tl.constexpr,
) -> None:  # fmt: skip
    rows = tl.arange(0, BATCH_PAD)
    lengths = tl.load(seq_lens + rows, mask=rows < batch, other=0)
    _first, tiles = _tiles_seen(lengths, window, TILE)  # none, where there is no row
    programs, groups = tl.num_programs(0), tl.num_programs(0) // KV_HEADS
    longest, everything = tl.max(tiles, 0), tl.sum(tiles, 0)
    even = tl.cdiv(everything, groups)
    most, size = 1, 1  # tiles of a unit, units of a share
    if whole > 0:
        most = tl.maximum(tl.cdiv(everything, _CUT * groups), whole)
    elif (batch <= groups) & (longest <= even + _UNEVEN):
        most = tl.maximum(longest, 1)
    else:
        # With half as many parts as a share has tiles, a row takes about as long to add up as to attend to.
        size = tl.maximum(tl.maximum(even, tl.sqrt(longest * 0.5).to(tl.int32)), 1)
    ends = tl.cumsum(tl.cdiv(tiles, most), 0)
    total = tl.max(ends, 0)
    items = tl.cdiv(total, size) * KV_HEADS
    item = tl.program_id(0)
    while item < items:
        following = items
        if items > programs:
            following = programs + tl.atomic_add(queue, 1, sem="relaxed")
        # Heads of one share are neighbours in the list: their keys lie side by side in memory.
        share, kv_head = item // KV_HEADS, item % KV_HEADS
        unit, stop = share * size, tl.minimum((share + 1) * size, total)
        while unit < stop:
            before = ends <= unit
            row = tl.sum(before.to(tl.int32), 0)
            row_start = tl.max(tl.where(before, ends, 0), 0)
            length = tl.load(seq_lens + row)
            first, count = _tiles_seen(length, window, TILE)
            units = tl.cdiv(count, most)
            per_unit = tl.cdiv(count, units)
            row_end = row_start + units
            _attend_piece(
                query + row.to(tl.int64) * q_stride, key_cache, value_cache,
                block_table + row.to(tl.int64) * table_stride, out + row.to(tl.int64) * out_stride,
                part_out, part_max, part_sum, arrived + row * KV_HEADS + kv_head, block_stride, kv_head,
                first + (unit - row_start) * per_unit,
                first + tl.minimum((tl.minimum(row_end, stop) - row_start) * per_unit, count),
                length, window, unit, row_start, row_end, size, scale_log2,
                KV_HEADS, GROUP, ROWS, HEAD_DIM, DIM_PAD, BLOCK_SIZE, TILE,
            )  # fmt: skip
            unit = row_end
        item = following
    # In two conditions: Triton's "and" evaluates both of its sides.
    if items > programs:
        done = tl.atomic_add(queue + 1, 1, sem="acq_rel")
        if done == programs - 1:
            tl.store(queue, 0)
            tl.store(queue + 1, 0)
