"""Rotary position embedding in the half-split ("NeoX") order: element i is paired with element i + R/2."""

import torch


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first R elements of each head by its token's angles; returns a new contiguous [T, N, D] tensor.

    ``heads`` is [T, N, D] (queries and keys side by side go through one call; the rows may be strided). ``cos`` and
    ``sin`` are [T, 1, R] rows of the table, both halves filled, and the first half of ``sin`` carries the minus sign
    of the rotation, which leaves two products and one addition per element.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim == heads.shape[-1]:
        return torch.addcmul(heads * cos, torch.roll(heads, rotary_dim // 2, -1), sin)
    turned = heads[..., :rotary_dim]
    turned = torch.addcmul(turned * cos, torch.roll(turned, rotary_dim // 2, -1), sin)
    return torch.cat((turned, heads[..., rotary_dim:]), -1)
