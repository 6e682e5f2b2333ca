"""FlashAttention-3 for chunks of prompts, Triton for rows with one token.

The package ``fa3-fwd`` (extra ``flash-attn``) carries FlashAttention-3's forward kernels. It pages through the bulk
copy engine, so a block must have a multiple of 128 tokens.
"""

import importlib
import importlib.util

import torch

from .backend import CacheShape
from .fused_backend import FEW_CHUNKS, ChunkRows, WrittenLayer
from .triton_backend import TritonAttentionBackend

BLOCK_MULTIPLE = 128
_ROWS_OF_A_TILE = 128
"""Query rows, tokens times query heads per KV head, that one tile of the kernel covers."""


def flash_attention_available() -> bool:
    """True if ``fa3-fwd`` is installed. Does not import it."""
    return importlib.util.find_spec("fa3_fwd_interface") is not None


class FlashAttentionBackend(TritonAttentionBackend):
    """Chunks go through FlashAttention-3."""

    name = "flash"

    def __init__(self, shape: CacheShape, max_num_seqs: int) -> None:
        super().__init__(shape, max_num_seqs)
        importlib.import_module("fa3_fwd_interface")  # registers the operator
        self._forward = torch.ops.fa3_fwd.fwd
        # With less than a tile of query rows the kernel would page by another way, which this build lacks. The real
        # lengths come from the start positions.
        self._least_query_len = _ROWS_OF_A_TILE // (shape.num_heads // shape.num_kv_heads) + 1

    def _attend_chunks(self, layer: WrittenLayer, rows: ChunkRows) -> None:
        self._forward(
            layer.query,
            layer.keys,
            layer.values,
            out=layer.out,
            cu_seqlens_q=rows.starts,
            seqused_k=rows.seq_lens,
            page_table=rows.block_table,
            max_seqlen_q=max(rows.max_query_len, self._least_query_len),
            max_seqlen_k=rows.max_seq_len,
            softmax_scale=self._scale,
            is_causal=True,
            num_splits=0 if rows.seq_lens.shape[0] <= FEW_CHUNKS else 1,
            window_size_left=-1 if layer.window is None else layer.window - 1,
        )
