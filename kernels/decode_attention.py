"""Attention of rows with one query token each, over padded keys and values gathered from the paged cache."""

import torch
import torch.nn.functional as F

PRODUCTS_MIN_KEYS = 448
"""Keys (rows times padded length) from which, in 16 bits, two batched products beat one fused call on a CPU."""
PRODUCTS_MAX_KV_HEADS = 16
"""The products below multiply by zeros in all but one of the KV heads, which stops paying beyond this many."""


def gather_blocks(cache_blocks: torch.Tensor, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Copy blocks (int32 ids [B]) of a cache seen as [num_blocks, block_size * KH * D] into ``out`` [B, same]."""
    torch.index_select(cache_blocks, 0, blocks, out=out)


def decode_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention of ``query`` [R, H, D] over ``key`` and ``value`` [R, S, KH, D]; returns [R, H * D].

    ``mask`` [R, 1, S], in the query's dtype, is added to the scores (0 or minus infinity); None if nothing is padded.
    """
    rows, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[2]
    # Float32 is as fast in the fused call at any size. Without grouping the fused call's 16-bit products are very slow.
    many = rows * key.shape[1] >= PRODUCTS_MIN_KEYS or num_heads == num_kv_heads
    if many and query.dtype != torch.float32 and num_kv_heads <= PRODUCTS_MAX_KV_HEADS:
        return _by_products(query, key, value, mask, scale)
    # Heads that share keys become queries of one KV head: each key is read once, not once per head.
    grouped = query.view(rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = F.scaled_dot_product_attention(
        grouped,
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=None if mask is None else mask.unsqueeze(1),
        scale=scale,
    )
    return out.reshape(rows, num_heads * head_dim)


def _by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """The same through ``[H, KH * D] x [KH * D, S]`` products, one per row, which read keys as they lie in memory.

    Each query is spread into a row of KH * D elements that is zero outside of its own KV head, so one product yields
    the scores of all heads; of the second product's [H, KH * D] each head takes its own D elements.
    """
    rows, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[2]
    group = num_heads // num_kv_heads
    spread = query.new_zeros(rows, num_kv_heads, group, num_kv_heads, head_dim)
    own = spread.diagonal(dim1=1, dim2=3)  # [R, G, D, KH]
    torch.mul(query.view(rows, num_kv_heads, group, head_dim).permute(0, 2, 3, 1), scale, out=own)
    scores = torch.bmm(spread.view(rows, num_heads, -1), key.flatten(2).transpose(1, 2))  # [R, H, S]
    if mask is not None:
        scores.add_(mask)
    mixed = torch.bmm(torch.softmax(scores, -1), value.flatten(2))  # [R, H, KH * D]
    mixed = mixed.view(rows, num_kv_heads, group, num_kv_heads, head_dim).diagonal(dim1=1, dim2=3)
    return mixed.permute(0, 3, 1, 2).reshape(rows, num_heads * head_dim)
