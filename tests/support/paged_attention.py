"""Attention of a flat batch over a paged cache, written for clarity: what every faster version must equal."""

import torch


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal grouped-query attention in float32, row by row; returns [T, H, D] in the query's dtype.

    Row r's queries are ``query[query_start_loc[r]:query_start_loc[r + 1]]`` of ``query`` [T, H, D], the last tokens of
    its ``seq_lens[r]``. Their keys and values are already in the caches [num_blocks, block_size, KH, D], in the blocks
    ``block_table[r]`` (int32 [R, max_blocks]). With a ``window`` a query sees its own token and the ``window - 1``
    before it.
    """
    out = torch.empty_like(query)
    block_size = key_cache.shape[1]
    group = query.shape[1] // key_cache.shape[2]
    for row, length in enumerate(seq_lens.tolist()):
        start, stop = int(query_start_loc[row]), int(query_start_loc[row + 1])
        blocks = block_table[row, : -(-length // block_size)].long()
        key = key_cache[blocks].flatten(0, 1)[:length].float().repeat_interleave(group, 1)  # [S, H, D]
        value = value_cache[blocks].flatten(0, 1)[:length].float().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query[start:stop].float(), key) * scale
        ahead = torch.arange(length, device=query.device) - torch.arange(
            length - (stop - start), length, device=query.device
        ).unsqueeze(1)  # [q, k]: how far the key lies after the query
        hidden = ahead > 0
        if window is not None:
            hidden |= ahead <= -window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[start:stop] = torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)
    return out
