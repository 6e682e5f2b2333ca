"""Attention with Triton kernels: any CUDA GPU, any block size that is a power of two from 16."""

from ...kernels.triton.decode_attention import MAX_BATCH, allocate_scratch, decode_attention
from ...kernels.triton.prompt_attention import prompt_attention
from .fused_backend import CacheShape, FusedAttentionBackend, FusedPlan, WrittenLayer


class TritonAttentionBackend(FusedAttentionBackend):
    """One kernel for rows with one token, another for chunks of prompts."""

    name = "triton"

    def __init__(self, shape: CacheShape, max_num_seqs: int) -> None:
        super().__init__(shape)
        rows = min(max_num_seqs, MAX_BATCH)
        self._scratch = allocate_scratch(rows, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.device)

    def attend_written(self, layer: WrittenLayer, plan: FusedPlan) -> None:
        if plan.num_decodes:
            self._attend_decodes(layer, plan)
        if plan.num_rows > plan.num_decodes:
            self._attend_chunks(layer, plan)

    def _attend_decodes(self, layer: WrittenLayer, plan: FusedPlan) -> None:
        for first in range(0, plan.num_decodes, self._scratch.max_batch):
            rows = slice(first, min(first + self._scratch.max_batch, plan.num_decodes))
            decode_attention(
                layer.query[rows],
                layer.keys,
                layer.values,
                plan.block_table[rows],
                plan.seq_lens[rows],
                layer.out[rows],
                self._scratch,
                self._scale,
                layer.window,
            )

    def _attend_chunks(self, layer: WrittenLayer, plan: FusedPlan) -> None:
        rows = slice(plan.num_decodes, plan.num_rows)
        prompt_attention(
            layer.query,
            layer.keys,
            layer.values,
            plan.query_start_loc[plan.num_decodes :],
            plan.seq_lens[rows],
            plan.block_table[rows],
            layer.out,
            self._scale,
            layer.window,
        )
