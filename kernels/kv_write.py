"""Writing one step's keys and values into the paged cache."""

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


def clear_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, blocks: torch.Tensor) -> None:
    """Zero whole blocks (int64 ids [B]), in place.

    Done when the first slot of a block that will not be full is about to be written. Slots past a sequence's end are
    masked, but a masked NaN left there by an earlier owner would still spread through ``0 * NaN``.
    """
    key_cache.index_fill_(0, blocks, 0)
    value_cache.index_fill_(0, blocks, 0)
