"""Attention of encoders: within each sequence of the flat batch every token sees every other. Nothing is kept."""

import numpy as np
import torch

from .padded_groups import PaddedGroup, pad_sequences

_GROUP_OVERHEAD_TOKENS = {"cpu": 64, "cuda": 2048}
"""One more group costs about as much time as attending this many tokens of padding: on a GPU, launching its kernels."""
_GROUP_LIMIT_TOKENS = 16384
"""Most tokens in a group of several sequences, padding included: scores are quadratic in their length."""


def group_sequences(lengths: np.ndarray, device: torch.device) -> list[PaddedGroup]:
    """Which sequences of a flat batch to attend together, by their ``lengths`` [R]. Once per step."""
    starts = np.cumsum(lengths) - lengths
    return pad_sequences(starts, lengths, _GROUP_OVERHEAD_TOKENS[device.type], _GROUP_LIMIT_TOKENS, device)


def encoder_attention(qkv: torch.Tensor, groups: list[PaddedGroup]) -> torch.Tensor:
    """Attention without order over each sequence. ``qkv`` is [T, 3, H, D]; returns [T, H * D]."""
    out = torch.empty(qkv.shape[0], qkv.shape[2], qkv.shape[3], dtype=qkv.dtype, device=qkv.device)
    for group in groups:
        query, key, value = group.gather(qkv).permute(2, 0, 3, 1, 4)  # each [R, H, N, D]
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=group.mask)
        group.scatter(mixed.transpose(1, 2), out)
    return out.flatten(1)
