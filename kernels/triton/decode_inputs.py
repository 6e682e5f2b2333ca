"""The inputs of a decode step, made on the device from per-slot state, so that no step waits for the host."""

import torch
import triton
import triton.language as tl

_COPIED_AT_ONCE = 256


def decode_inputs(
    slots: torch.Tensor,
    num_computed: torch.Tensor,
    last_token: torch.Tensor,
    slot_block_table: torch.Tensor,
    block_size: int,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_table: torch.Tensor,
) -> None:
    """Fill one step's inputs for the requests in ``slots`` int32 [B], and count its token as computed.

    Read: ``num_computed`` int32 [S] (tokens already in the cache; grows by one), ``last_token`` int64 [S] (the token
    at that position), ``slot_block_table`` int32 [S, W]. Written, for each row: ``input_ids`` and ``positions`` int64
    [B], ``seq_lens`` int32 [B], ``slot_mapping`` int64 [B], and the entries in use of ``block_table`` int32 [B, W']. A
    row with a negative slot is padding: token 0 at position 0 of length 0, written nowhere (slot mapping -1). No other
    slot may appear twice.
    """
    rows = slots.shape[0]
    _decode_inputs_kernel[(rows,)](
        slots, num_computed, last_token, slot_block_table, input_ids, positions, seq_lens, slot_mapping,
        block_table, slot_block_table.stride(0), block_table.stride(0),
        BLOCK_SIZE=block_size, CHUNK=_COPIED_AT_ONCE, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=("from_stride", "to_stride"))
def _decode_inputs_kernel(
    slots: tl.tensor, num_computed: tl.tensor, last_token: tl.tensor, slot_block_table: tl.tensor,
    input_ids: tl.tensor, positions: tl.tensor, seq_lens: tl.tensor, slot_mapping: tl.tensor,
    block_table: tl.tensor, from_stride: tl.tensor, to_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    real = slot >= 0
    at = tl.maximum(slot, 0).to(tl.int64)
    position = tl.load(num_computed + at, mask=real, other=0)
    source = slot_block_table + at * from_stride
    block = tl.load(source + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
    tl.store(input_ids + row, tl.load(last_token + at, mask=real, other=0).to(tl.int64))
    tl.store(positions + row, position.to(tl.int64))
    tl.store(seq_lens + row, tl.where(real, position + 1, 0))
    tl.store(slot_mapping + row, tl.where(real, block * BLOCK_SIZE + position % BLOCK_SIZE, -1))
    tl.store(num_computed + at, position + 1, mask=real)
    used = tl.where(real, position // BLOCK_SIZE + 1, 0)
    target = block_table + row.to(tl.int64) * to_stride
    for start in tl.range(0, used, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        tl.store(target + columns, tl.load(source + columns, mask=columns < used, other=0), mask=columns < used)
