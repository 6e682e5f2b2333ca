"""Attention with Triton kernels: any CUDA GPU, any block size that is a power of two from 16."""

from ...kernels.triton.decode_attention import MAX_BATCH, allocate_scratch, decode_attention
from ...kernels.triton.prompt_attention import prompt_attention
from .backend import CacheShape
from .fused_backend import ChunkRows, DecodeRows, FusedAttentionBackend, WrittenLayer


class TritonAttentionBackend(FusedAttentionBackend):
    """One kernel for rows with one token, another for chunks of prompts."""

    name = "triton"

    def __init__(self, shape: CacheShape, max_num_seqs: int) -> None:
        super().__init__(shape)
        rows = min(max_num_seqs, MAX_BATCH)
        self._scratch = allocate_scratch(rows, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.device)

    def _attend_decodes(self, layer: WrittenLayer, rows: DecodeRows) -> None:
        count, most = rows.seq_lens.shape[0], self._scratch.max_batch
        for first in range(0, count, most):
            part = slice(first, min(first + most, count))
            decode_attention(
                layer.query[part],
                layer.keys,
                layer.values,
                rows.block_table[part],
                rows.seq_lens[part],
                layer.out[part],
                self._scratch,
                self._scale,
                layer.window,
            )

    def _attend_chunks(self, layer: WrittenLayer, rows: ChunkRows) -> None:
        prompt_attention(
            layer.query,
            layer.keys,
            layer.values,
            rows.starts,
            rows.seq_lens,
            rows.block_table,
            layer.out,
            self._scale,
            layer.window,
        )
