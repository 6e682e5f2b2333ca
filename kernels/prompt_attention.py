"""Attention of one chunk of a prompt over all keys of its sequence so far, in tiles of queries."""

import torch

TILE = 128
"""Queries in one tile. Half and twice this measured alike on CPUs; four times is slower, as scores leave the cache."""


def prompt_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    window: int | None = None,
) -> None:
    """Causal attention of the last N tokens of a sequence; fills ``out`` [N, H, D].

    ``query`` is [N, H, D], the last N of the S tokens that ``key`` and ``value`` [S, KH, D] hold. The matrix products
    of one tile of queries touch only keys that the tile can see, and only the square on the diagonal needs a mask.
    On CPUs this is two to three times as fast as ``scaled_dot_product_attention``, which multiplies tiny tiles. Scores
    are rounded to the query's dtype before the softmax.
    """
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    group = num_heads // num_kv_heads
    before = key.shape[0] - num_queries
    keys = (key * scale).permute(1, 2, 0).contiguous()  # [KH, D, S]
    values = value.transpose(0, 1).contiguous()  # [KH, S, D]
    future = _future(min(TILE, num_queries), query)
    for start in range(0, num_queries, TILE):
        size = min(TILE, num_queries - start)
        end = before + start + size
        first = 0 if window is None else max(0, end - size - window + 1)
        tile = query[start : start + size].view(size, num_kv_heads, group, head_dim)
        tile = tile.permute(1, 2, 0, 3).reshape(num_kv_heads, group * size, head_dim)
        scores = torch.bmm(tile, keys[:, :, first:end]).view(num_kv_heads, group, size, end - first)
        scores[..., -size:].add_(future[:size, :size])
        if window is not None:
            _hide_past(scores, window)
        weights = torch.softmax(scores, -1).view(num_kv_heads, group * size, end - first)
        mixed = torch.bmm(weights, values[:, first:end]).view(num_kv_heads, group, size, head_dim)
        target = out[start : start + size].view(size, num_kv_heads, group, head_dim)
        target.copy_(mixed.permute(2, 0, 1, 3))


def _future(size: int, like: torch.Tensor) -> torch.Tensor:
    """[size, size]: minus infinity where the key comes after the query, else 0."""
    return torch.full((size, size), -torch.inf, dtype=like.dtype, device=like.device).triu_(1)


def _hide_past(scores: torch.Tensor, window: int) -> None:
    """Set scores [..., N, K] of keys that lie ``window`` or more before the query to minus infinity, in place.

    The last query's own key is the last of the K.
    """
    size, width = scores.shape[-2:]
    query_at = torch.arange(width - size, width, device=scores.device).unsqueeze(1)
    too_old = torch.arange(width, device=scores.device) <= query_at - window
    scores.masked_fill_(too_old, -torch.inf)
