"""The CPU's backend: decode rows attend straight over the paged cache in compiled kernels, prompts with torch."""

import torch

from ...kernels.numba.causal_softmax import causal_softmax
from ...kernels.numba.decode_attention import Scratch, decode_attention
from ...kernels.numba.rope_and_cache import rope_and_cache
from ...kernels.numba.team import compile_kernels
from ..batch_layout import BatchLayout
from ..layers.norm import HeadNorm
from ..layers.rotary import RotaryEmbedding
from .backend import AttentionPlan, Rotation
from .torch_backend import TorchAttentionBackend, TorchAttentionPlan


class NumbaAttentionPlan(TorchAttentionPlan):
    """One step for ``NumbaAttentionBackend``: decodes by block table, what the torch backend has for the rest."""

    __slots__ = ("block_table", "longest", "seq_lens")
    block_table: torch.Tensor
    """int32 [R, any]; the first rows are those of the decodes."""
    seq_lens: torch.Tensor
    """int32: keys of each decode row, ``longest`` at most."""
    longest: int


class NumbaAttentionBackend(TorchAttentionBackend):
    """Head norms, rotation and the cache write are one call; so is the attention of all decode rows."""

    name = "numba"

    _softmax = staticmethod(causal_softmax)

    def allocate(self, num_blocks: int) -> None:
        compile_kernels(self.shape.dtype)
        super().allocate(num_blocks)
        self._scores = Scratch()

    def plan(self, layout: BatchLayout) -> NumbaAttentionPlan:
        decodes = layout.num_decodes
        plan = NumbaAttentionPlan(layout.slot_mapping, *self._plan_rows(layout, range(decodes, layout.num_rows)))
        plan.block_table = layout.block_table
        plan.seq_lens = layout.device_seq_lens[:decodes]
        plan.longest = int(layout.seq_lens[:decodes].max()) if decodes else 0
        return plan

    def rotation(self, rotary: RotaryEmbedding, positions: torch.Tensor) -> Rotation:
        """The whole table and the positions: the kernel looks the angles up."""
        return rotary.table, positions

    def forward(
        self,
        layer: int,
        heads: torch.Tensor,
        num_kv_heads: int,
        norm: HeadNorm | None,
        rotation: Rotation,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        assert isinstance(plan, NumbaAttentionPlan)
        cache, window = self._layers[layer], self.shape.windows[layer]
        table, positions = rotation
        num_heads = heads.shape[1] - 2 * num_kv_heads
        weight, eps = (norm.weight, norm.eps) if norm is not None else (None, 0.0)
        rope_and_cache(heads, num_heads, positions, table, plan.slot_mapping, cache.keys, cache.values, weight, eps)
        out = torch.empty((heads.shape[0], num_heads, heads.shape[2]), dtype=heads.dtype)
        if plan.longest:
            decode_attention(
                heads, num_heads, cache.keys, cache.values, out, plan.block_table, plan.seq_lens, plan.longest,
                self._scores, self._scale, window,
            )  # fmt: skip
        if plan.prompts or plan.rows:
            query, key, value = heads.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), 1)
            self._attend_rows(layer, query, key, value, plan, out)
        return out.flatten(1)
