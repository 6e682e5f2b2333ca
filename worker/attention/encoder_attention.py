"""Attention of encoders: within each sequence of the flat batch every token sees every other. Nothing is kept."""

from dataclasses import dataclass

import numpy as np
import torch

from ..transfer import to_device
from .decode_groups import group_rows

_GROUP_OVERHEAD_TOKENS = {"cpu": 64, "cuda": 2048}
"""One more group costs about as much time as attending this many tokens of padding: on a GPU, launching its kernels."""
_GROUP_LIMIT_TOKENS = 16384
"""Most tokens in a group of several sequences, padding included: scores are quadratic in their length."""


@dataclass(slots=True)
class SequenceGroup:
    """B sequences that are attended together, padded to S tokens."""

    shape: tuple[int, int]
    """(B, S)."""
    tokens: torch.Tensor | None
    """int64 [B * S]: where they lie in the flat batch, padding anywhere; None: the group is the batch, in order."""
    kept: torch.Tensor | None
    """int64: places within [B * S] that are no padding; None if all are."""
    mask: torch.Tensor | None
    """bool [B, 1, 1, S], true for keys that exist; None if all do."""


def group_sequences(lengths: np.ndarray, device: torch.device) -> list[SequenceGroup]:
    """Which sequences of a flat batch to attend together, by their ``lengths`` [R]. Once per step."""
    starts = np.cumsum(lengths) - lengths
    parts = group_rows(lengths, _GROUP_OVERHEAD_TOKENS[device.type], _GROUP_LIMIT_TOKENS)
    groups = []
    for rows in parts:
        width = int(lengths[rows].max())
        real = np.arange(width) < lengths[rows, None]  # [B, S]
        even = bool(real.all())
        tokens = np.where(real, starts[rows, None] + np.arange(width), 0).reshape(-1)
        groups.append(
            SequenceGroup(
                shape=(len(rows), width),
                tokens=None if even and len(parts) == 1 else to_device(tokens, device),
                kept=None if even else to_device(np.flatnonzero(real), device),
                mask=None if even else to_device(real[:, None, None, :], device),
            )
        )
    return groups


def encoder_attention(qkv: torch.Tensor, groups: list[SequenceGroup]) -> torch.Tensor:
    """Attention without order over each sequence. ``qkv`` is [T, 3, H, D]; returns [T, H * D]."""
    width = qkv.shape[2] * qkv.shape[3]
    out = torch.empty(qkv.shape[0], width, dtype=qkv.dtype, device=qkv.device)
    for group in groups:
        part = qkv if group.tokens is None else qkv[group.tokens]
        query, key, value = part.view(*group.shape, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)  # each [B, H, S, D]
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=group.mask)
        rows = mixed.transpose(1, 2).reshape(-1, width)
        if group.tokens is None:
            return rows
        if group.kept is None:
            out[group.tokens] = rows
        else:
            out[group.tokens[group.kept]] = rows[group.kept]
    return out
