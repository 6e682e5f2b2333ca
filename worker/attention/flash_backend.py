"""FlashAttention-3 for chunks of prompts, Triton for rows with one token.

The package ``fa3-fwd`` (extra ``flash-attn``) carries FlashAttention-3's forward kernels. It pages through the bulk
copy engine, so a block must have a multiple of 128 tokens.
"""

import importlib
import importlib.util

import torch

from ..batch_layout import BatchLayout
from .fused_backend import CacheShape, FusedPlan, WrittenLayer
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

    def plan(self, layout: BatchLayout) -> FusedPlan:
        plan = super().plan(layout)
        first = plan.num_decodes
        if plan.num_rows > first:
            starts = plan.query_start_loc[first:]
            plan.chunk_starts = starts - first if first else starts  # once for all layers: a launch each
        return plan

    def _attend_chunks(self, layer: WrittenLayer, plan: FusedPlan) -> None:
        first = plan.num_decodes
        self._forward(
            layer.query[first:],
            layer.keys,
            layer.values,
            out=layer.out[first:],
            cu_seqlens_q=plan.chunk_starts,
            seqused_k=plan.seq_lens[first:],
            page_table=plan.block_table[first:],
            max_seqlen_q=max(plan.max_query_len, self._least_query_len),
            max_seqlen_k=plan.max_seq_len,
            softmax_scale=self._scale,
            is_causal=True,
            window_size_left=-1 if layer.window is None else layer.window - 1,
        )
