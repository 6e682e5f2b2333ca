"""State of the running requests on the worker's side, under the scheduler's slots, and the layout of each step's batch.

The scheduler sends what changed; everything else is kept here as arrays, so that a step in which the same requests
decode again is a fixed number of array operations.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..core.config import EngineConfig
from ..core.step import Chunk, NewRequest, SchedulerOutput
from .batch_layout import BatchLayout
from .slot_mirror import make_slot_mirror
from .transfer import to_device

_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class StepInputs:
    """One step, ready for the model."""

    layout: BatchLayout
    input_ids: torch.Tensor
    """int64 [T], on the device."""
    sampling_slots: np.ndarray
    """int64 [S]: slots that draw a token, in row order."""
    sampling_tokens: torch.Tensor | None
    """int64 [S]: their places in the flat batch; None: the whole batch, in order. Where none draws, one of no meaning:
    no operator is made for no rows at all."""
    draw_positions: torch.Tensor
    """int64 [S]: the position of the token that each one draws."""


class InputBatch:
    """Token counts, block tables and last tokens of all slots."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        num_slots = config.scheduler.max_num_seqs
        self._block_size = config.cache.block_size
        max_blocks = -(-config.scheduler.max_model_len // self._block_size)
        self._device = device
        self._num_computed = np.zeros(num_slots, dtype=np.int64)
        self._num_blocks = np.zeros(num_slots, dtype=np.int64)
        self._block_table = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._known: dict[int, np.ndarray] = {}
        """Tokens that a slot had when it was filled: what its chunks are cut from."""
        self.decodes = _NO_ROWS
        """int64: slots that decode, in row order. The same object while the rows are the same."""
        self.mirror = make_slot_mirror(self._block_table, device)
        # In steady decode the same rows draw step after step.
        self._drawn_slots = _NO_ROWS
        self._device_drawn_slots = self._tensor(_NO_ROWS)

    def apply(self, output: SchedulerOutput) -> None:
        """Take in what changed since the last step; released slots were released before."""
        for new in output.new:
            self._fill(new)
        for slot, block_ids in output.blocks:
            first = int(self._num_blocks[slot])
            self._block_table[slot, first : first + len(block_ids)] = block_ids
            self._num_blocks[slot] += len(block_ids)
            self.mirror.set_blocks(slot, first, block_ids)
        if output.decodes is not None:
            self.decodes = output.decodes.astype(np.int64)
        self.mirror.flush()

    def release(self, slot: int) -> None:
        """Forget what a slot held."""
        self._known.pop(slot, None)

    def _fill(self, new: NewRequest) -> None:
        slot = new.slot
        self._known[slot] = new.token_ids
        self._num_computed[slot] = new.num_computed_tokens
        self._num_blocks[slot] = len(new.block_ids)
        self._block_table[slot, : len(new.block_ids)] = new.block_ids
        self.mirror.set_blocks(slot, 0, new.block_ids)

    def known_tokens(self, slot: int) -> np.ndarray:
        """The tokens that came with the request, int32."""
        return self._known[slot]

    def keep_drawn(self, slots: np.ndarray, token_ids: torch.Tensor) -> None:
        """Remember the tokens (device, int64 [S]) drawn in these slots."""
        if slots is not self._drawn_slots:
            self._drawn_slots, self._device_drawn_slots = slots, self._tensor(slots)
        self.mirror.last_tokens.index_copy_(0, self._device_drawn_slots, token_ids)

    def advance_decodes(self) -> np.ndarray:
        """Count one token of each decoding slot as computed, for a step whose inputs the device makes by itself."""
        self._num_computed[self.decodes] += 1
        return self.decodes

    def advance(self, chunks: list[Chunk]) -> StepInputs:
        """The inputs of this step; its tokens count as computed from here on."""
        decodes = self.decodes
        if not chunks:
            return self._advance_one_each(decodes)
        slots = np.concatenate((decodes, [chunk.slot for chunk in chunks])).astype(np.int64)
        lengths = np.ones(len(slots), dtype=np.int64)
        lengths[len(decodes) :] = [chunk.num_tokens for chunk in chunks]
        starts = self._num_computed[slots]
        self._num_computed[slots] = seq_lens = starts + lengths
        query_start_loc = np.zeros(len(slots) + 1, dtype=np.int32)
        np.cumsum(lengths, out=query_start_loc[1:])
        positions = _positions(starts, lengths)
        layout = self._layout(slots, np.repeat(slots, lengths), positions, seq_lens, query_start_loc, len(decodes))
        prompt = np.concatenate([self._known[c.slot][end - c.num_tokens : end] for c, end in self._ends(chunks)])
        decoded = self.mirror.last_tokens[self._tensor(decodes)]
        input_ids = torch.cat((decoded, self._tensor(prompt.astype(np.int64))))
        draws = np.ones(len(slots), dtype=bool)
        draws[len(decodes) :] = [chunk.samples for chunk in chunks]
        ends = layout.query_start_loc[1:][draws].astype(np.int64)
        return StepInputs(
            layout=layout,
            input_ids=input_ids,
            sampling_slots=slots[draws],
            sampling_tokens=self._tensor(ends - 1 if len(ends) else np.zeros(1, dtype=np.int64)),
            draw_positions=self._tensor(seq_lens[draws]),
        )

    def _advance_one_each(self, slots: np.ndarray) -> StepInputs:
        """``advance`` where every row decodes: each array is one operation away from the last."""
        self._num_computed[slots] = seq_lens = self._num_computed[slots] + 1
        query_start_loc = np.arange(len(slots) + 1, dtype=np.int32)
        layout = self._layout(slots, slots, seq_lens - 1, seq_lens, query_start_loc, len(slots))
        return StepInputs(
            layout=layout,
            input_ids=self.mirror.last_tokens[self._tensor(slots)],
            sampling_slots=slots,
            sampling_tokens=None,
            draw_positions=self._tensor(seq_lens),
        )

    def _ends(self, chunks: list[Chunk]) -> list[tuple[Chunk, int]]:
        return [(chunk, int(self._num_computed[chunk.slot])) for chunk in chunks]

    def _layout(
        self,
        slots: np.ndarray,
        owners: np.ndarray,
        positions: np.ndarray,
        seq_lens: np.ndarray,
        query_start_loc: np.ndarray,
        num_decodes: int,
    ) -> BatchLayout:
        """``slots`` of the rows, and of the tokens (``owners``)."""
        width = -(-int(seq_lens.max()) // self._block_size)
        blocks = self._block_table[owners, positions // self._block_size].astype(np.int64)
        seq_lens = seq_lens.astype(np.int32)
        device_slots, device_seq_lens = self._tensor(slots), self._tensor(seq_lens)
        self.mirror.computed(device_slots, device_seq_lens)
        return BatchLayout(
            num_decodes=num_decodes,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            positions=self._tensor(positions),
            block_table=self.mirror.block_table[device_slots, :width],
            slot_mapping=self._tensor(blocks * self._block_size + positions % self._block_size),
            device_query_start_loc=self._tensor(query_start_loc),
            device_seq_lens=device_seq_lens,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self._device)


def _positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions of all tokens of rows that begin at ``starts`` and have ``lengths`` tokens, one row after the other."""
    first_of_row = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - first_of_row, lengths)
