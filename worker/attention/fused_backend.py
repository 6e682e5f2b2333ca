"""What backends for a CUDA GPU share: the cache, and one kernel from the merged projection to a written cache."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.triton.rope_and_cache import rope_and_cache
from ..batch_layout import BatchLayout
from ..layers.norm import HeadNorm
from ..layers.rotary import RotaryEmbedding
from .backend import AttentionBackend, AttentionPlan, CacheShape, Rotation

FEW_CHUNKS = 8
"""Steps seldom have more. Up to so many, attention may cut their keys to fill the device; adding the parts up costs
time for every chunk that there is room for, an empty one too."""


@dataclass(slots=True)
class DecodeRows:
    """Rows whose query is one token: row r's is token r. A row of length 0 is no row; its output is left as it is."""

    seq_lens: torch.Tensor
    """int32 [R]"""
    block_table: torch.Tensor
    """int32 [R, W]"""


@dataclass(slots=True)
class ChunkRows:
    """Rows with any number of query tokens, also none."""

    starts: torch.Tensor
    """int32 [R + 1]: where each one's tokens begin in the flat batch, and where the last one's end."""
    seq_lens: torch.Tensor
    """int32 [R]"""
    block_table: torch.Tensor
    """int32 [R, W]"""
    max_query_len: int
    """A bound, for kernels that ask for one; so is ``max_seq_len``."""
    max_seq_len: int


@dataclass(slots=True)
class FusedPlan(AttentionPlan):
    """One step, on the device."""

    slot_mapping: torch.Tensor
    decodes: DecodeRows | None
    chunks: ChunkRows | None
    """Attended after ``decodes``, whose rows may reach into these rows' tokens where their length is 0."""


@dataclass(slots=True)
class WrittenLayer:
    """One layer of a step whose keys and values are in the cache."""

    query: torch.Tensor
    """[T, H, D], rotated."""
    keys: torch.Tensor
    """The layer's cache, [num_blocks, block_size, KH, D]; so is ``values``."""
    values: torch.Tensor
    out: torch.Tensor
    """[T, H, D], to be filled."""
    window: int | None
    """How many of the last tokens a query sees; None: all."""


class FusedAttentionBackend(AttentionBackend):
    """Head norms, rotation and the cache write are one launch; a subclass attends over what is written."""

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self._caches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def allocate(self, num_blocks: int) -> None:
        shape = self.shape
        self._caches = []  # what was there goes first
        size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)

        def zeros() -> torch.Tensor:
            return torch.zeros(size, dtype=shape.dtype, device=shape.device)

        self._caches = [(zeros(), zeros()) for _ in shape.windows]

    def plan(self, layout: BatchLayout) -> FusedPlan:
        first = layout.num_decodes
        decodes = DecodeRows(layout.device_seq_lens[:first], layout.block_table[:first]) if first else None
        chunks = None
        if layout.num_rows > first:
            chunks = ChunkRows(
                starts=layout.device_query_start_loc[first:],
                seq_lens=layout.device_seq_lens[first:],
                block_table=layout.block_table[first:],
                max_query_len=int(np.diff(layout.query_start_loc[first:]).max()),
                max_seq_len=int(layout.seq_lens[first:].max()),
            )
        return FusedPlan(layout.slot_mapping, decodes, chunks)

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
        assert isinstance(plan, FusedPlan)
        table, positions = rotation
        keys, values = self._caches[layer]
        num_heads = heads.shape[1] - 2 * num_kv_heads
        query = torch.empty((heads.shape[0], num_heads, heads.shape[2]), dtype=heads.dtype, device=heads.device)
        weight, eps = (norm.weight, norm.eps) if norm is not None else (None, 0.0)
        rope_and_cache(heads.flatten(1), positions, table, plan.slot_mapping, keys, values, query, weight, eps)
        out = torch.empty_like(query)
        written = WrittenLayer(query, keys, values, out, self.shape.windows[layer])
        if plan.decodes is not None:
            self._attend_decodes(written, plan.decodes)
        if plan.chunks is not None:
            self._attend_chunks(written, plan.chunks)
        return out.flatten(1)

    @abstractmethod
    def _attend_decodes(self, layer: WrittenLayer, rows: DecodeRows) -> None:
        """Attention over what is in the cache; fills these rows' part of ``layer.out``."""

    @abstractmethod
    def _attend_chunks(self, layer: WrittenLayer, rows: ChunkRows) -> None:
        """The same; leaves tokens outside of all rows alone."""
