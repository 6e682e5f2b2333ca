"""CUDA graphs of decode steps: inputs, all layers and logits as one launch.

A graph serves every mix of requests of its size: it reads the slots to run from a buffer and everything about them from
the device's own per-slot state, which it moves on by one token. In steady decode the host copies nothing to the device.
Rows beyond the real ones are padding (slot -1).
"""

import numpy as np
import torch

from ..core.config import EngineConfig
from ..kernels.triton.decode_inputs import decode_inputs
from .attention.fused_backend import DecodeRows, FusedAttentionBackend, FusedPlan
from .graph_pool import GraphPool
from .models.causal_lm import CausalLM
from .slot_mirror import DeviceSlotMirror
from .transfer import to_device

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


def graph_sizes(config: EngineConfig) -> list[int]:
    """Batch sizes that decode steps are captured for, ascending."""
    most = min(config.scheduler.max_num_seqs, _SIZES[-1])
    return [size for size in _SIZES if size < most] + [most]


class DecodeGraphs:
    """Captured decode steps for a short list of batch sizes."""

    def __init__(
        self,
        config: EngineConfig,
        model: CausalLM,
        attention: FusedAttentionBackend,
        mirror: DeviceSlotMirror,
        pool: GraphPool,
    ) -> None:
        self._pool = pool
        self._model = model
        self._attention = attention
        self._mirror = mirror
        self._block_size = config.cache.block_size
        self.sizes = graph_sizes(config)
        most = self.sizes[-1]
        device = mirror.last_tokens.device
        self._slots = torch.full((most,), -1, dtype=torch.int32, device=device)
        self._input_ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most, dtype=torch.int64, device=device)
        self._seq_lens = torch.zeros(most, dtype=torch.int32, device=device)
        self._slot_mapping = torch.zeros(most, dtype=torch.int64, device=device)
        self._block_table = torch.zeros((most, mirror.block_table.shape[1]), dtype=torch.int32, device=device)
        self._running: np.ndarray | None = None
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    @property
    def largest(self) -> int:
        """Most rows that a graph serves."""
        return self.sizes[-1]

    def capture(self) -> None:
        """Capture all sizes, the largest first."""
        for size in reversed(self.sizes):
            self._graphs[size] = self._pool.capture(lambda size=size: self.forward(size))

    def forward(self, size: int) -> torch.Tensor:
        """Logits [size, V], in the model's dtype, of the first ``size`` slots of the buffer."""
        decode_inputs(
            self._slots[:size],
            self._mirror.num_computed,
            self._mirror.last_tokens,
            self._mirror.block_table,
            self._block_size,
            self._input_ids[:size],
            self._positions[:size],
            self._seq_lens[:size],
            self._slot_mapping[:size],
            self._block_table[:size],
        )
        rows = DecodeRows(self._seq_lens[:size], self._block_table[:size])
        plan = FusedPlan(self._slot_mapping[:size], rows, None)
        hidden = self._model.forward(self._input_ids[:size], self._positions[:size], self._attention, plan)
        return self._model.raw_logits(hidden)

    def run(self, slots: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a step for these slots (int64 [B]). Returns views that the next step overwrites: logits [B, V] and the
        positions int64 [B] of the tokens to be drawn."""
        count = len(slots)
        size = next(size for size in self.sizes if size >= count)
        if slots is not self._running:
            self._running = slots
            padded = np.full(len(self._slots), -1, dtype=np.int32)
            padded[:count] = slots
            self._slots.copy_(to_device(padded, self._slots.device))
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count], self._positions[:count] + 1
