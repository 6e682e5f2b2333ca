"""Attention with torch operators only: the CPU's backend, also correct on any other device."""

import math
from dataclasses import dataclass


import numpy as np
import torch

from ...kernels.decode_attention import decode_attention, gather_blocks
from ...kernels.kv_write import clear_blocks, write_kv
from ...kernels.prompt_attention import prompt_attention
from ..batch_layout import BatchLayout
from .backend import AttentionBackend, AttentionPlan
from .decode_groups import group_rows

_GROUP_OVERHEAD_BYTES = 256 * 1024
"""One more decode group costs about as much time as gathering and attending this many bytes of keys."""
_GROUP_LIMIT_BYTES = 32 * 1024 * 1024
"""Most bytes of gathered keys (and again of values) in a group of several rows."""


@dataclass(slots=True)
class DecodeGroup:
    """Decode rows that are attended together, R of them, padded to W blocks (S tokens)."""

    rows: torch.Tensor | None
    """int64 [R], or None for all decode rows in order."""
    num_rows: int
    blocks: torch.Tensor
    """int32 [R * W]; padding points to the null block."""
    masks: dict[int | None, torch.Tensor | None]
    """For each window in use: [R, 1, S] in the model's dtype, to be added to scores; None if it hides nothing."""


@dataclass(slots=True)
class PromptChunk:
    """One prompt row: tokens ``start:stop`` of the batch, the last ones of a sequence of ``length``."""

    start: int
    stop: int
    length: int
    blocks: torch.Tensor | None
    """int32 [W], the blocks of the sequence; None if the chunk is the whole sequence, whose keys are at hand."""


class TorchAttentionPlan(AttentionPlan):
    """One step for ``TorchAttentionBackend``."""

    __slots__ = ("chunks", "cleared_blocks", "groups", "num_decodes", "slot_mapping")

    def __init__(
        self,
        slot_mapping: torch.Tensor,
        cleared_blocks: torch.Tensor | None,
        num_decodes: int,
        groups: list[DecodeGroup],
        chunks: list[PromptChunk],
    ) -> None:
        self.slot_mapping = slot_mapping
        self.cleared_blocks = cleared_blocks
        self.num_decodes = num_decodes
        self.groups = groups
        self.chunks = chunks


class TorchAttentionBackend(AttentionBackend):
    """Gathers keys and values by block table and attends with dense operators.

    Decode rows are batched in groups of similar length. Prompt chunks are attended one by one: the first chunk of a
    prompt directly, later ones over the gathered cache.
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
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        # Where blocks are gathered to: one pair for all layers and steps, since allocating it anew each time would
        # make the kernel fault in its pages again.
        self._key_scratch = torch.empty(0, dtype=dtype, device=device)
        self._value_scratch = torch.empty(0, dtype=dtype, device=device)

    @property
    def bytes_per_block(self) -> int:
        return 2 * len(self.windows) * self._row_elements * self._dtype.itemsize

    def allocate(self, num_blocks: int) -> None:
        shape = (num_blocks, self._block_size, self._num_kv_heads, self._head_dim)
        self._keys = [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in self.windows]
        self._values = [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in self.windows]

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The key and value cache of a layer, each [num_blocks, block_size, KH, D]."""
        return self._keys[layer], self._values[layer]

    def plan(self, layout: BatchLayout) -> TorchAttentionPlan:
        starts, seq_lens = layout.query_start_loc, layout.seq_lens
        sizes = -(-seq_lens // self._block_size)  # blocks of each row
        groups = self._plan_groups(layout, sizes[: layout.num_decodes]) if layout.num_decodes else []
        chunks: list[PromptChunk] = []
        widest = max((group.blocks.shape[0] for group in groups), default=0)
        for row in range(layout.num_decodes, layout.num_rows):
            start, stop, length = int(starts[row]), int(starts[row + 1]), int(seq_lens[row])
            blocks = None
            if stop - start < length:
                blocks = layout.block_table[row, : int(sizes[row])]
                widest = max(widest, int(sizes[row]))
            chunks.append(PromptChunk(start, stop, length, blocks))
        self._reserve_scratch(widest)
        cleared = self._blocks_to_clear(layout, sizes)
        return TorchAttentionPlan(layout.slot_mapping, cleared, layout.num_decodes, groups, chunks)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        if not isinstance(plan, TorchAttentionPlan):
            raise TypeError(f"a plan of {type(plan).__name__} was given to the torch attention backend")
        keys, values = self._keys[layer], self._values[layer]
        if plan.cleared_blocks is not None:
            clear_blocks(keys, values, plan.cleared_blocks)
        write_kv(key, value, keys, values, plan.slot_mapping)
        window = self.windows[layer]
        if not plan.chunks and len(plan.groups) == 1:
            return self._attend_group(query, keys, values, plan.groups[0], window)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for group in plan.groups:
            rows = slice(0, plan.num_decodes) if group.rows is None else group.rows
            part = self._attend_group(query[rows], keys, values, group, window)
            out[rows] = part.view(group.num_rows, self._num_heads, self._head_dim)
        for chunk in plan.chunks:
            here = slice(chunk.start, chunk.stop)
            if chunk.blocks is None:
                all_keys, all_values = key[here], value[here]
            else:
                all_keys = gather_blocks(keys, chunk.blocks, self._key_scratch).flatten(0, 1)[: chunk.length]
                all_values = gather_blocks(values, chunk.blocks, self._value_scratch).flatten(0, 1)[: chunk.length]
            prompt_attention(query[here], all_keys, all_values, self._scale, out[here], window)
        return out.view(query.shape[0], -1)

    def _attend_group(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup, window: int | None
    ) -> torch.Tensor:
        """Attention of a group's queries [R, H, D]; returns [R, H * D]."""
        shape = (group.num_rows, -1, self._num_kv_heads, self._head_dim)
        gathered_keys = gather_blocks(keys, group.blocks, self._key_scratch).view(shape)
        gathered_values = gather_blocks(values, group.blocks, self._value_scratch).view(shape)
        return decode_attention(query, gathered_keys, gathered_values, group.masks[window], self._scale)

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
            masks = self._masks(layout.seq_lens[part], width * self._block_size)
            groups.append(DecodeGroup(rows, len(part), table.reshape(-1), masks))
        return groups

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

    def _blocks_to_clear(self, layout: BatchLayout, sizes: np.ndarray) -> torch.Tensor | None:
        """Blocks that this step begins but does not fill, int64, or None. See ``kernels.kv_write.clear_blocks``."""
        first_new = layout.seq_lens - np.diff(layout.query_start_loc)
        last = sizes - 1  # the only block of a row that can be partly filled
        begun = (last * self._block_size >= first_new) & (layout.seq_lens % self._block_size != 0)
        rows = np.flatnonzero(begun)
        if len(rows) == 0:
            return None
        at = torch.from_numpy(last[rows].astype(np.int64)).to(self._device)
        return layout.block_table[torch.from_numpy(rows).to(self._device), at].long()

    def _reserve_scratch(self, num_blocks: int) -> None:
        """Make room for this many gathered blocks."""
        needed = num_blocks * self._row_elements
        if needed > self._key_scratch.shape[0]:
            # A quarter more: contexts grow by a block every few steps.
            size = needed + needed // 4
            self._key_scratch = torch.empty(size, dtype=self._dtype, device=self._device)
            self._value_scratch = torch.empty(size, dtype=self._dtype, device=self._device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, take memory only where something is written: torch itself would touch every page."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
