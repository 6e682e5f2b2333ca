"""Attention with torch operators only: right on any device, and what the CPU's backend computes prompts with."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.kv_blocks import gather_blocks, write_kv
from ...kernels.prompt_attention import causal_softmax, prompt_attention
from ...kernels.rotary import apply_rotary
from ..batch_layout import BatchLayout
from ..layers.norm import HeadNorm
from ..layers.rotary import RotaryEmbedding
from .backend import AttentionBackend, AttentionPlan, CacheShape, Rotation
from .padded_groups import PaddedGroup, pad_sequences

_PROMPT_OVERHEAD_TOKENS = 128
"""One more group of prompts costs about as much time as attending this many more tokens of padding."""
_PROMPT_LIMIT_TOKENS = 2048
"""Most padded tokens in a group of several prompts: scores of more would leave the cache."""


class LayerCache:
    """The key and value cache of one layer, and the two other shapes that kernels see it in."""

    __slots__ = ("key_blocks", "key_slots", "keys", "value_blocks", "value_slots", "values")

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.keys = _zeros(shape, dtype, device)  # [num_blocks, block_size, KH, D]
        self.values = _zeros(shape, dtype, device)
        self.key_slots, self.value_slots = self.keys.flatten(0, 1), self.values.flatten(0, 1)
        self.key_blocks, self.value_blocks = self.keys.flatten(1), self.values.flatten(1)


@dataclass(slots=True)
class GatheredRow:
    """A row attended over its gathered cache: tokens ``start:stop`` of the batch, the last ones of its sequence.

    The views are made once per step, not once per layer: of a short context they would take as long as its attention.
    """

    start: int
    stop: int
    blocks: torch.Tensor
    """int32 [B]: the sequence's blocks."""
    key_out: torch.Tensor
    """[B, block_size * KH * D] of the backend's scratch memory, for blocks of keys; so is ``value_out``."""
    value_out: torch.Tensor
    keys: torch.Tensor
    """[1, S, KH, D]: the sequence's keys in ``key_out``; so are ``values``. The next row overwrites them."""
    values: torch.Tensor


class TorchAttentionPlan(AttentionPlan):
    """One step for ``TorchAttentionBackend``."""

    __slots__ = ("prompts", "rows", "slot_mapping")

    def __init__(self, slot_mapping: torch.Tensor, prompts: list[PaddedGroup], rows: list[GatheredRow]) -> None:
        """``prompts`` are those that begin in this step, whose keys are at hand; ``rows`` are all others."""
        self.slot_mapping = slot_mapping
        self.prompts = prompts
        self.rows = rows


class TorchAttentionBackend(AttentionBackend):
    """Gathers keys and values by block table and attends with dense operators.

    Prompts that begin in a step are attended together, in groups of similar length. All other rows are attended one by
    one over the gathered cache, decodes too: a batch of them wants the compiled kernels (``numba_backend``).
    """

    name = "torch"
    _softmax = staticmethod(causal_softmax)

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self._layers: list[LayerCache] = []
        # Where blocks are gathered to: one pair for all layers and steps, since allocating it anew each time would
        # make the kernel fault in its pages again.
        empty = torch.empty(0, dtype=shape.dtype, device=shape.device)
        self._scratch: tuple[torch.Tensor, ...] = (empty, empty)

    def allocate(self, num_blocks: int) -> None:
        shape = self.shape
        size = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self._layers = [LayerCache(size, shape.dtype, shape.device) for _ in shape.windows]

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The key and value cache of a layer, each [num_blocks, block_size, KH, D]."""
        return self._layers[layer].keys, self._layers[layer].values

    def plan(self, layout: BatchLayout) -> TorchAttentionPlan:
        return TorchAttentionPlan(layout.slot_mapping, *self._plan_rows(layout, range(layout.num_rows)))

    def rotation(self, rotary: RotaryEmbedding, positions: torch.Tensor) -> Rotation:
        """The angles of each token."""
        return rotary.rows(positions)

    def forward(
        self,
        layer: int,
        heads: torch.Tensor,
        num_kv_heads: int,
        norm: HeadNorm | None,
        rotation: Rotation,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        num_heads = heads.shape[1] - 2 * num_kv_heads
        rotated, value = heads.split_with_sizes((num_heads + num_kv_heads, num_kv_heads), 1)
        if norm is not None:
            rotated = norm(rotated)
        query, key = apply_rotary(rotated, *rotation).split_with_sizes((num_heads, num_kv_heads), 1)
        return self.attend(layer, query, key, value, plan)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        """Write the step's keys and values into the cache, then attend. Returns [T, H * D].

        ``query`` is [T, H, D], ``key`` and ``value`` are [T, KH, D]; rows may be strided.
        """
        if not isinstance(plan, TorchAttentionPlan):
            raise TypeError(f"a plan of {type(plan).__name__} was given to the torch attention backend")
        cache = self._layers[layer]
        write_kv(key, value, cache.key_slots, cache.value_slots, plan.slot_mapping)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._attend_rows(layer, query, key, value, plan, out)
        return out.view(query.shape[0], -1)

    def _attend_rows(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: TorchAttentionPlan,
        out: torch.Tensor,
    ) -> None:
        """Attention of the rows of a plan, whose keys and values are written; their part of ``out`` is filled."""
        cache, window = self._layers[layer], self.shape.windows[layer]
        for prompts in plan.prompts:
            parts = [prompts.gather(tensor) for tensor in (query, key, value)]
            result = torch.empty_like(parts[0])
            prompt_attention(parts[0], parts[1], parts[2], self._scale, result, window, self._softmax)
            prompts.scatter(result, out)
        for row in plan.rows:
            gather_blocks(cache.key_blocks, row.blocks, row.key_out)
            gather_blocks(cache.value_blocks, row.blocks, row.value_out)
            here = slice(row.start, row.stop)
            prompt_attention(
                query[None, here], row.keys, row.values, self._scale, out[None, here], window, self._softmax
            )

    def _plan_rows(self, layout: BatchLayout, rows: range) -> tuple[list[PaddedGroup], list[GatheredRow]]:
        """The prompts among ``rows`` that begin in this step, in groups, and the others."""
        lengths = np.diff(layout.query_start_loc)
        begin = (lengths == layout.seq_lens)[rows.start :]
        begun = rows.start + np.flatnonzero(begin)
        starts = layout.query_start_loc[begun]
        limits = (_PROMPT_OVERHEAD_TOKENS, _PROMPT_LIMIT_TOKENS)
        prompts = pad_sequences(starts, lengths[begun], *limits, self.shape.device)
        return prompts, [self._plan_row(layout, rows.start + int(row)) for row in np.flatnonzero(~begin)]

    def _plan_row(self, layout: BatchLayout, row: int) -> GatheredRow:
        start, stop = int(layout.query_start_loc[row]), int(layout.query_start_loc[row + 1])
        length, shape = int(layout.seq_lens[row]), self.shape
        blocks = layout.block_table[row, : -(-length // shape.block_size)]
        count = blocks.shape[0]
        needed = count * self._row_elements
        if needed > self._scratch[0].shape[0]:
            # A quarter more: contexts grow by a block every few steps. Plans made before keep the memory they have.
            self._scratch = tuple(
                torch.empty(needed + needed // 4, dtype=shape.dtype, device=shape.device) for _ in range(2)
            )
        key_out, value_out = (flat[:needed].view(count, -1) for flat in self._scratch)
        size = (1, count * shape.block_size, shape.num_kv_heads, shape.head_dim)
        keys, values = (out.view(size)[:, :length] for out in (key_out, value_out))
        return GatheredRow(start, stop, blocks, key_out, value_out, keys, values)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, take memory only where something is written: torch itself would touch every page."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
