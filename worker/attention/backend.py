"""The interface between models and attention over the paged KV cache."""

from abc import ABC, abstractmethod

import torch

from ..batch_layout import BatchLayout


class AttentionPlan:
    """What a backend worked out for one step, the same for all layers. Each backend has its own kind."""

    __slots__ = ()


class AttentionBackend(ABC):
    """Owns the paged KV cache of all layers and computes attention over it.

    The cache of a layer is a pair of [num_blocks, block_size, kv_heads, head_dim] tensors. Block 0 is the null block:
    padding entries of block tables point there, and no request owns it.
    """

    name: str

    @property
    @abstractmethod
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values together."""

    @abstractmethod
    def allocate(self, num_blocks: int) -> None:
        """Allocate the cache, zeroed, the null block included. Replaces an earlier allocation."""

    @abstractmethod
    def plan(self, layout: BatchLayout) -> AttentionPlan:
        """Work out, once per step, what all layers share."""

    @abstractmethod
    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        """Write the step's keys and values into the cache, then attend. Returns [T, H * D].

        ``query`` is [T, H, D], ``key`` and ``value`` are [T, KH, D]; rows may be strided.
        """
