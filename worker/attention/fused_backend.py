"""What backends for a CUDA GPU share: the cache, and one kernel from the merged projection to a written cache."""

from abc import abstractmethod
from dataclasses import dataclass

import torch

from ...kernels.triton.rope_and_cache import rope_and_cache
from ..batch_layout import BatchLayout
from ..layers.norm import HeadNorm
from ..layers.rotary import RotaryEmbedding
from .backend import AttentionBackend, AttentionPlan, Rotation


@dataclass(slots=True)
class CacheShape:
    """The paged cache of all layers, and the heads that attend over it."""

    windows: tuple[int | None, ...]
    """For each layer, how many of the last tokens it sees; None: all."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class FusedPlan(AttentionPlan):
    """One step, on the device. Decode rows come first; ``num_rows - num_decodes`` chunks follow."""

    num_decodes: int
    num_rows: int
    max_query_len: int
    """Of the chunks; 1 if there are none."""
    max_seq_len: int
    """A bound, for kernels that ask for one."""
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    chunk_starts: torch.Tensor | None = None
    """Where chunks begin and the last one ends, counted from the first one's beginning; for those that ask for it."""


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
        self.shape = shape
        self._scale = shape.head_dim**-0.5
        self._caches: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def bytes_per_block(self) -> int:
        shape = self.shape
        row = shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
        return 2 * len(shape.windows) * shape.block_size * row

    def allocate(self, num_blocks: int) -> None:
        shape = self.shape
        self._caches = []  # what was there goes first
        size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self._caches = [
            (
                torch.zeros(size, dtype=shape.dtype, device=shape.device),
                torch.zeros(size, dtype=shape.dtype, device=shape.device),
            )
            for _ in shape.windows
        ]

    def plan(self, layout: BatchLayout) -> FusedPlan:
        lengths = layout.query_start_loc[1:] - layout.query_start_loc[:-1]
        return FusedPlan(
            num_decodes=layout.num_decodes,
            num_rows=layout.num_rows,
            max_query_len=int(lengths.max()),
            max_seq_len=int(layout.seq_lens.max()),
            query_start_loc=layout.device_query_start_loc,
            seq_lens=layout.device_seq_lens,
            block_table=layout.block_table,
            slot_mapping=layout.slot_mapping,
        )

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
        self.attend_written(WrittenLayer(query, keys, values, out, self.shape.windows[layer]), plan)
        return out.flatten(1)

    @abstractmethod
    def attend_written(self, layer: WrittenLayer, plan: FusedPlan) -> None:
        """Attention over what is in the cache; fills ``layer.out``."""
