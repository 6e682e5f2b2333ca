"""CUDA graphs of steps with prompts: all layers as one launch.

Launched kernel by kernel, such a step takes the host longer than the device until it has some thousand tokens. A graph
serves every mix of decodes and chunks of at most so many tokens and rows: what differs from step to step is read on the
device. Tokens that only fill it up belong to no row and are written nowhere.
"""

import logging

import numpy as np
import torch

from ..core.config import EngineConfig
from .attention.fused_backend import FEW_CHUNKS, ChunkRows, DecodeRows, FusedAttentionBackend, FusedPlan
from .graph_pool import GraphPool
from .input_batch import StepInputs
from .models.causal_lm import CausalLM
from .transfer import to_device

logger = logging.getLogger("octavo.worker")

_SIZES = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, *range(512, 2048, 128), *range(2048, 8193, 512))
"""Tokens. Products work in tiles of 128 anyway."""
_OPERATIONS = 2.6e11
"""In a layer, up to which an H200 is quicker than the host that launches the layer's kernels."""
_MOST_ROWS = 512
_ALIGNED = 4
"""Numbers in 16 bytes, which is what kernels are compiled for."""


def most_tokens(config: EngineConfig) -> int:
    """Tokens of the largest step that is worth a recording."""
    worth = _OPERATIONS / (2 * config.model.layer_parameters)
    largest = max((size for size in _SIZES if size <= worth), default=_SIZES[0])
    return min(config.scheduler.max_num_batched_tokens, largest)


class PromptGraphs:
    """Recorded steps, each for a number of tokens and of chunks, and for the states of some tokens or of every one."""

    def __init__(
        self, config: EngineConfig, model: CausalLM, attention: FusedAttentionBackend, pool: GraphPool
    ) -> None:
        self._model = model
        self._attention = attention
        self._pool = pool
        self._max_seq_len = config.scheduler.max_model_len
        most = most_tokens(config)
        self.sizes = [size for size in _SIZES if size < most] + [most]
        self._rows = min(config.scheduler.max_num_seqs, _MOST_ROWS)
        device = model.device
        self._input_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most, dtype=torch.int64, device=device)
        self._slot_mapping = torch.full((most,), -1, dtype=torch.int64, device=device)
        self._stride = -(-(self._rows + 1) // _ALIGNED) * _ALIGNED
        self._numbers = torch.zeros((3, self._stride), dtype=torch.int32, device=device)
        """Lengths of the rows that decode, lengths of those that are chunks, and where in the batch chunks begin."""
        width = -(-self._max_seq_len // config.cache.block_size)
        self._wanted = torch.zeros(self._rows, dtype=torch.int64, device=device)
        """Places of the tokens whose states are wanted; 0 beyond them."""
        self._block_tables = torch.zeros((2, self._rows, width), dtype=torch.int32, device=device)
        """Of rows that decode, and of chunks."""
        self._hidden = torch.zeros((most, config.model.hidden_size), dtype=model.embedding.weight.dtype, device=device)
        self._graphs: dict[tuple[int, int, bool], torch.cuda.CUDAGraph] = {}
        self._full = False

    def shape_for(self, tokens: int, chunks: int) -> tuple[int, int]:
        """Tokens and chunks of the recorded step that serves one of so many."""
        size = next(size for size in self.sizes if size >= tokens)
        return size, min(FEW_CHUNKS if chunks <= FEW_CHUNKS else self._rows, self._rows, size)

    def capture_largest(self) -> int:
        """Record those of the most tokens, which every crowd of requests needs; all others when they first come.
        Returns how many they are."""
        for shape in dict.fromkeys(self.shape_for(self.sizes[-1], chunks) for chunks in (self._rows, 1)):
            self.capture(*shape, False)
        return len(self._graphs)

    def capture(self, size: int, chunks: int, every: bool) -> None:
        """Record steps of ``size`` tokens with so many chunks, first one of the most: the others use its memory."""
        self._numbers.zero_()  # nothing is to be done when it is run
        self._slot_mapping.fill_(-1)
        self._wanted.zero_()  # those of a larger step would lie outside
        self._graphs[size, chunks, every], _ = self._pool.capture(lambda: self.forward(size, chunks, every))

    def forward(self, size: int, chunks: int, every: bool) -> torch.Tensor:
        """Hidden states of ``every`` one of the first ``size`` tokens of the buffers, or of those that are wanted of
        them, in a buffer that all recordings share."""
        decodes = min(self._rows, size)
        decode_lens, chunk_lens, starts = self._numbers
        decode_table, chunk_table = self._block_tables
        plan = FusedPlan(
            self._slot_mapping[:size],
            DecodeRows(decode_lens[:decodes], decode_table[:decodes]),
            ChunkRows(starts[: chunks + 1], chunk_lens[:chunks], chunk_table[:chunks], size, self._max_seq_len),
        )
        wanted = None if every else self._wanted[:decodes]
        hidden = self._model.forward(self._input_ids[:size], self._positions[:size], self._attention, plan, wanted)
        return self._hidden[: len(hidden)].copy_(hidden)

    def run(self, step: StepInputs, wanted: torch.Tensor | None) -> torch.Tensor | None:
        """Hidden states [S, N] of the ``wanted`` tokens of a step, int64 [S], or of all; the next one overwrites them.
        None if it is not recorded: too large, or first needed when the device's memory was used up."""
        layout = step.layout
        if layout.num_tokens > self.sizes[-1] or layout.num_rows > self._rows:
            return None
        shape = (*self.shape_for(layout.num_tokens, layout.num_rows - layout.num_decodes), wanted is None)
        if shape not in self._graphs and not self._record(*shape):
            return None
        self.fill(step, wanted)
        self._graphs[shape].replay()
        return self._hidden[: layout.num_tokens if wanted is None else len(wanted)]

    def _record(self, size: int, chunks: int, every: bool) -> bool:
        if not self._full:
            try:
                self.capture(size, chunks, every)
            except torch.OutOfMemoryError:
                self._full = True
                logger.warning(
                    "no device memory left to record steps of %d tokens: from here on unrecorded steps are launched "
                    "operation by operation; a smaller --gpu-memory-utilization leaves more",
                    size,
                )
        return not self._full

    def fill(self, step: StepInputs, wanted: torch.Tensor | None) -> None:
        """Put a step into the buffers."""
        if wanted is not None:
            self._wanted.zero_()
            self._wanted[: len(wanted)] = wanted
        layout = step.layout
        tokens, decodes = layout.num_tokens, layout.num_decodes
        chunks, width = layout.num_rows - decodes, layout.block_table.shape[1]
        numbers = np.zeros((3, self._stride), dtype=np.int32)
        numbers[0, :decodes] = layout.seq_lens[:decodes]
        numbers[1, :chunks] = layout.seq_lens[decodes:]
        numbers[2] = tokens
        numbers[2, :chunks] = layout.query_start_loc[decodes:-1]
        self._numbers.copy_(to_device(numbers, self._numbers.device))
        self._input_ids[:tokens] = step.input_ids
        self._positions[:tokens] = layout.positions
        self._slot_mapping.fill_(-1)
        self._slot_mapping[:tokens] = layout.slot_mapping
        for table, rows in zip(self._block_tables, (slice(decodes), slice(decodes, None)), strict=True):
            part = layout.block_table[rows]
            table[: len(part), :width] = part
