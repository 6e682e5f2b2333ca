"""The Triton attention kernels behind one function for a flat batch, for benchmarks that compare attention kernels.

    attend(q, k_cache, v_cache, query_start, used_k, block_table, max_q, max_k, scale) -> output

``attend`` takes decode batches (``max_q`` 1) to the decode kernel and others to the prompt kernel.
"""

import functools

import torch

from octavo.kernels.triton import decode_attention as decode
from octavo.kernels.triton import prompt_attention as prompt


@functools.cache
def _scratch(batch: int, heads: int, kv_heads: int, dim: int, device: torch.device) -> decode.DecodeScratch:
    return decode.allocate_scratch(batch, heads, kv_heads, dim, device)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    used_k: torch.Tensor,
    block_table: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float,
) -> torch.Tensor:
    """Causal attention of ``q`` [T, H, D] over the cache; ``max_k`` is not needed."""
    out = torch.empty_like(q)
    if max_q > 1:
        return prompt.prompt_attention(q, k, v, query_start, used_k, block_table, out, scale)
    scratch = _scratch(q.shape[0], q.shape[1], k.shape[2], q.shape[2], q.device)
    return decode.decode_attention(q, k, v, block_table, used_k, out, scratch, scale)
