"""Attention with torch operators only: the CPU's backend, also correct on any other device."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.decode_attention import decode_attention, gather_blocks
from ...kernels.kv_write import clear_blocks, write_kv
from ...kernels.prompt_attention import prompt_attention
from ...kernels.rotary import apply_rotary
from ..batch_layout import BatchLayout
from ..layers.norm import HeadNorm
from ..layers.rotary import RotaryEmbedding
from .backend import AttentionBackend, AttentionPlan, Rotation
from .decode_groups import group_rows
from .padded_groups import PaddedGroup, pad_sequences

_GROUP_OVERHEAD_BYTES = 256 * 1024
"""One more decode group costs about as much time as gathering and attending this many bytes of keys."""
_GROUP_LIMIT_BYTES = 32 * 1024 * 1024
"""Most bytes of gathered keys (and again of values) in a group of several rows."""
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


class Gathered:
    """Where the blocks of one decode group or one prompt chunk are gathered: the front of a backend's scratch memory.

    The views are made once per step, not once per layer: with few rows the views of a layer would take as long as its
    attention.
    """

    __slots__ = ("blocks", "key_out", "keys", "value_out", "values")

    def __init__(
        self, blocks: torch.Tensor, scratch: tuple[torch.Tensor, torch.Tensor], shape: tuple[int, int, int, int]
    ) -> None:
        """``blocks`` is int32 [B]; ``shape`` is the [R, S, KH, D] that attention sees."""
        count = blocks.shape[0]
        self.blocks = blocks
        front_keys, front_values = (flat[: math.prod(shape)] for flat in scratch)
        self.key_out, self.value_out = front_keys.view(count, -1), front_values.view(count, -1)
        self.keys, self.values = front_keys.view(shape), front_values.view(shape)

    def fill(self, cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather a layer's keys and values. The tensors are overwritten by the next call of any group or chunk."""
        gather_blocks(cache.key_blocks, self.blocks, self.key_out)
        gather_blocks(cache.value_blocks, self.blocks, self.value_out)
        return self.keys, self.values


@dataclass(slots=True)
class DecodeGroup:
    """Decode rows that are attended together, R of them, padded to W blocks (S tokens)."""

    rows: torch.Tensor | None
    """int64 [R], or None for all decode rows in order."""
    num_rows: int
    gathered: Gathered
    """Keys and values [R, S, KH, D]; padding comes from the null block."""
    masks: dict[int | None, torch.Tensor | None]
    """For each window in use: [R, 1, S] in the model's dtype, to be added to scores; None if it hides nothing."""


@dataclass(slots=True)
class PromptChunk:
    """A later part of a prompt: tokens ``start:stop`` of the batch, the last ones of a sequence of ``length``."""

    start: int
    stop: int
    length: int
    gathered: Gathered
    """Keys and values [1, S, KH, D] of the sequence."""


class TorchAttentionPlan(AttentionPlan):
    """One step for ``TorchAttentionBackend``."""

    __slots__ = ("chunks", "cleared_blocks", "groups", "num_decodes", "prompts", "slot_mapping")

    def __init__(
        self,
        slot_mapping: torch.Tensor,
        cleared_blocks: torch.Tensor | None,
        num_decodes: int,
        groups: list[DecodeGroup],
        prompts: list[PaddedGroup],
        chunks: list[PromptChunk],
    ) -> None:
        self.slot_mapping = slot_mapping
        self.cleared_blocks = cleared_blocks
        self.num_decodes = num_decodes
        self.groups = groups
        self.prompts = prompts
        self.chunks = chunks


class TorchAttentionBackend(AttentionBackend):
    """Gathers keys and values by block table and attends with dense operators.

    Decode rows are batched in groups of similar length, and so are prompts that begin in this step, whose keys are at
    hand. Later chunks of prompts are attended one by one over the gathered cache.
    """

    name = "torch"

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        windows: tuple[int | None, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """One window (or None) per layer; ``num_heads`` and ``num_kv_heads`` are those of this rank."""
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._block_size = block_size
        self.windows = windows
        self._dtype = dtype
        self._device = device
        self._scale = head_dim**-0.5
        self._row_elements = block_size * num_kv_heads * head_dim
        self._layers: list[LayerCache] = []
        # Where blocks are gathered to: one pair for all layers and steps, since allocating it anew each time would
        # make the kernel fault in its pages again.
        empty = torch.empty(0, dtype=dtype, device=device)
        self._scratch = (empty, empty)

    @property
    def bytes_per_block(self) -> int:
        return 2 * len(self.windows) * self._row_elements * self._dtype.itemsize

    def allocate(self, num_blocks: int) -> None:
        shape = (num_blocks, self._block_size, self._num_kv_heads, self._head_dim)
        self._layers = [LayerCache(shape, self._dtype, self._device) for _ in self.windows]

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The key and value cache of a layer, each [num_blocks, block_size, KH, D]."""
        return self._layers[layer].keys, self._layers[layer].values

    def plan(self, layout: BatchLayout) -> TorchAttentionPlan:
        sizes = -(-layout.seq_lens // self._block_size)  # blocks of each row
        groups = self._plan_groups(layout, sizes[: layout.num_decodes]) if layout.num_decodes else []
        lengths = np.diff(layout.query_start_loc)
        begun = layout.num_decodes + np.flatnonzero((lengths == layout.seq_lens)[layout.num_decodes :])
        starts = layout.query_start_loc[begun]
        prompts = pad_sequences(starts, lengths[begun], _PROMPT_OVERHEAD_TOKENS, _PROMPT_LIMIT_TOKENS, self._device)
        later = layout.num_decodes + np.flatnonzero((lengths < layout.seq_lens)[layout.num_decodes :])
        chunks = [self._plan_chunk(layout, int(row), int(sizes[row])) for row in later]
        cleared = self._blocks_to_clear(layout, sizes, lengths)
        return TorchAttentionPlan(layout.slot_mapping, cleared, layout.num_decodes, groups, prompts, chunks)

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
        cache, window = self._layers[layer], self.windows[layer]
        if plan.cleared_blocks is not None:
            clear_blocks(cache.keys, cache.values, plan.cleared_blocks)
        write_kv(key, value, cache.key_slots, cache.value_slots, plan.slot_mapping)
        if len(plan.groups) == 1 and not plan.prompts and not plan.chunks:
            return self._attend_group(query, cache, plan.groups[0], window)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for group in plan.groups:
            rows = slice(0, plan.num_decodes) if group.rows is None else group.rows
            part = self._attend_group(query[rows], cache, group, window)
            out[rows] = part.view(group.num_rows, self._num_heads, self._head_dim)
        for prompts in plan.prompts:
            parts = [prompts.gather(tensor) for tensor in (query, key, value)]
            result = torch.empty_like(parts[0])
            prompt_attention(parts[0], parts[1], parts[2], self._scale, result, window)
            prompts.scatter(result, out)
        for chunk in plan.chunks:
            here = slice(chunk.start, chunk.stop)
            keys, values = (gathered[:, : chunk.length] for gathered in chunk.gathered.fill(cache))
            prompt_attention(query[None, here], keys, values, self._scale, out[None, here], window)
        return out.view(query.shape[0], -1)

    def _attend_group(
        self, query: torch.Tensor, cache: LayerCache, group: DecodeGroup, window: int | None
    ) -> torch.Tensor:
        """Attention of a group's queries [R, H, D]; returns [R, H * D]."""
        keys, values = group.gathered.fill(cache)
        return decode_attention(query, keys, values, group.masks[window], self._scale)

    def _plan_groups(self, layout: BatchLayout, sizes: np.ndarray) -> list[DecodeGroup]:
        block_bytes = self._row_elements * self._dtype.itemsize
        overhead = max(1, _GROUP_OVERHEAD_BYTES // block_bytes)
        limit = max(1, _GROUP_LIMIT_BYTES // block_bytes)
        parts = group_rows(sizes, overhead, limit)
        groups: list[DecodeGroup] = []
        for part in parts:
            width = int(sizes[part].max())
            rows = None if len(parts) == 1 else torch.from_numpy(part).to(self._device)
            table = layout.block_table[: len(sizes)] if rows is None else layout.block_table[rows]
            table = table[:, :width]
            if int(sizes[part].min()) < width:
                # Entries past a row's blocks are undefined; the null block's slots are always finite.
                row_sizes = torch.from_numpy(sizes[part]).to(self._device).unsqueeze(1)
                table = table.masked_fill(torch.arange(width, device=self._device) >= row_sizes, 0)
            gathered = self._gather_to(table.reshape(-1), len(part))
            masks = self._masks(layout.seq_lens[part], width * self._block_size)
            groups.append(DecodeGroup(rows, len(part), gathered, masks))
        return groups

    def _plan_chunk(self, layout: BatchLayout, row: int, size: int) -> PromptChunk:
        start, stop = int(layout.query_start_loc[row]), int(layout.query_start_loc[row + 1])
        gathered = self._gather_to(layout.block_table[row, :size], 1)
        return PromptChunk(start, stop, int(layout.seq_lens[row]), gathered)

    def _gather_to(self, blocks: torch.Tensor, rows: int) -> Gathered:
        """Room in the scratch memory for the blocks int32 [B] of so many rows."""
        needed = blocks.shape[0] * self._row_elements
        if needed > self._scratch[0].shape[0]:
            # A quarter more: contexts grow by a block every few steps. Plans made before keep the memory they have.
            size = needed + needed // 4
            self._scratch = (
                torch.empty(size, dtype=self._dtype, device=self._device),
                torch.empty(size, dtype=self._dtype, device=self._device),
            )
        tokens = blocks.shape[0] * self._block_size // rows
        return Gathered(blocks, self._scratch, (rows, tokens, self._num_kv_heads, self._head_dim))

    def _masks(self, seq_lens: np.ndarray, padded: int) -> dict[int | None, torch.Tensor | None]:
        """For each window in use, what to add to the scores of rows with these lengths, padded to ``padded`` keys."""
        lengths = torch.from_numpy(seq_lens).to(self._device).view(-1, 1, 1)
        key_at = torch.arange(padded, device=self._device)
        masks: dict[int | None, torch.Tensor | None] = {}
        for window in set(self.windows):
            if int(seq_lens.min()) == padded and (window is None or padded <= window):
                masks[window] = None
                continue
            hidden = key_at >= lengths
            if window is not None:
                hidden = hidden | (key_at < lengths - window)
            zeros = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
            masks[window] = zeros.masked_fill_(hidden, -torch.inf)
        return masks

    def _blocks_to_clear(self, layout: BatchLayout, sizes: np.ndarray, lengths: np.ndarray) -> torch.Tensor | None:
        """Blocks that this step, with ``lengths`` [R] tokens per row, begins but does not fill, int64, or None. See
        ``kernels.kv_write.clear_blocks``."""
        first_new = layout.seq_lens - lengths
        last = sizes - 1  # the only block of a row that can be partly filled
        begun = (last * self._block_size >= first_new) & (layout.seq_lens % self._block_size != 0)
        rows = np.flatnonzero(begun)
        if len(rows) == 0:
            return None
        at = torch.from_numpy(last[rows].astype(np.int64)).to(self._device)
        return layout.block_table[torch.from_numpy(rows).to(self._device), at].long()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, take memory only where something is written: torch itself would touch every page."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
