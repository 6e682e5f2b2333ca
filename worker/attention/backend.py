"""The interface between models and attention over the paged KV cache."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from ..batch_layout import BatchLayout
from ..layers.norm import HeadNorm
from ..layers.rotary import RotaryEmbedding

Rotation = tuple[torch.Tensor, torch.Tensor]
"""What a backend rotates a step's heads by: its own choice of tensors, the same for all layers."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The paged cache of all layers, and the heads that attend over it, of one rank."""

    windows: tuple[int | None, ...]
    """For each layer, how many of the last tokens it sees; None: all."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device


class AttentionPlan:
    """What a backend worked out for one step, the same for all layers. Each backend has its own kind."""

    __slots__ = ()


class AttentionBackend(ABC):
    """Owns the paged KV cache of all layers and computes attention over it.

    The cache of a layer is a pair of [num_blocks, block_size, kv_heads, head_dim] tensors. Block 0 is the null block:
    padding entries of block tables point there, and no request owns it.
    """

    name: str

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self._scale = shape.head_dim**-0.5
        self._row_elements = shape.block_size * shape.num_kv_heads * shape.head_dim

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values together."""
        return 2 * len(self.shape.windows) * self._row_elements * self.shape.dtype.itemsize

    @abstractmethod
    def allocate(self, num_blocks: int) -> None:
        """Allocate the cache, zeroed, the null block included. Replaces an earlier allocation."""

    @abstractmethod
    def plan(self, layout: BatchLayout) -> AttentionPlan:
        """Work out, once per step, what all layers share."""

    @abstractmethod
    def rotation(self, rotary: RotaryEmbedding, positions: torch.Tensor) -> Rotation:
        """What the heads of a step's tokens (positions int64 [T]) are rotated by, once for all layers."""

    @abstractmethod
    def forward(
        self,
        layer: int,
        heads: torch.Tensor,
        num_kv_heads: int,
        norm: HeadNorm | None,
        rotation: Rotation,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """Normalize and rotate queries and keys, write the cache, attend. Returns [T, H * D].

        ``heads`` is [T, H + 2 KH, D]: queries, keys, values, as the merged projection gives them.
        """
