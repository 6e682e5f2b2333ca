"""Writing keys and values into the paged cache, and gathering a sequence's blocks out of it."""

import torch


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_slots: torch.Tensor,
    value_slots: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store ``key`` and ``value`` [T, KH, D] at their slots, in place.

    ``key_slots`` and ``value_slots`` are the caches seen as [num_blocks * block_size, KH, D]; ``slot_mapping`` int64
    [T] counts slots through the whole pool (``block_id * block_size + offset``). No slot may appear twice.
    """
    key_slots.index_copy_(0, slot_mapping, key)
    value_slots.index_copy_(0, slot_mapping, value)


def gather_blocks(cache_blocks: torch.Tensor, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Copy blocks (int32 ids [B]) of a cache seen as [num_blocks, block_size * KH * D] into ``out`` [B, same]."""
    torch.index_select(cache_blocks, 0, blocks, out=out)
