"""Drives a model step by step over a paged cache, with shuffled blocks, as the runner would."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from octavo.core.config import EngineConfig
from octavo.core.engine_args import EngineArgs
from octavo.worker.attention.backend import AttentionBackend
from octavo.worker.attention.selection import select_backend
from octavo.worker.batch_layout import BatchLayout
from octavo.worker.loader.loader import load_model
from octavo.worker.models.causal_lm import CausalLM

BLOCK_SIZE = 8
CPU = torch.device("cpu")


def engine_config(folder: Path, **settings: object) -> EngineConfig:
    """The configuration of a checkpoint for tests: float32 on the CPU unless told otherwise."""
    chosen: dict[str, object] = {"device": "cpu", "dtype": "float32", "block_size": BLOCK_SIZE, **settings}
    return EngineArgs(**chosen).build(folder)  # pyright: ignore[reportArgumentType]


@dataclass
class Sequence:
    """The tokens of one request, how many of them are computed, and its blocks."""

    token_ids: list[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)


def build_layout(parts: list[tuple[Sequence, int]], block_size: int) -> BatchLayout:
    """The layout of a step that computes so many further tokens of each sequence. Rows of one token come first.

    Entries of the block table past a row's blocks are set far out of range, since a backend must not read them.
    """
    starts = np.cumsum([0] + [count for _, count in parts]).astype(np.int32)
    seq_lens = np.array([sequence.num_computed + count for sequence, count in parts], dtype=np.int32)
    width = max(len(sequence.blocks) for sequence, _ in parts)
    table = np.full((len(parts), width), 2**30, dtype=np.int32)
    positions: list[int] = []
    slots: list[int] = []
    for row, (sequence, count) in enumerate(parts):
        needed = -(-int(seq_lens[row]) // block_size)
        table[row, :needed] = sequence.blocks[:needed]
        for position in range(sequence.num_computed, sequence.num_computed + count):
            positions.append(position)
            slots.append(sequence.blocks[position // block_size] * block_size + position % block_size)
    num_decodes = 0
    while num_decodes < len(parts) and parts[num_decodes][1] == 1:
        num_decodes += 1
    return BatchLayout(
        num_decodes=num_decodes,
        query_start_loc=starts,
        seq_lens=seq_lens,
        positions=torch.tensor(positions),
        block_table=torch.from_numpy(table),
        slot_mapping=torch.tensor(slots),
        device_query_start_loc=torch.from_numpy(starts),
        device_seq_lens=torch.from_numpy(seq_lens),
    )


class PagedModel:
    """A loaded model with its cache, and sequences that take blocks from a shuffled pool."""

    def __init__(self, config: EngineConfig, num_blocks: int = 256, seed: int = 0) -> None:
        self.model: CausalLM = load_model(config, CPU)
        self.backend: AttentionBackend = select_backend(config, CPU)
        self.backend.allocate(num_blocks)
        self.block_size = config.cache.block_size
        self.free = (np.random.default_rng(seed).permutation(num_blocks - 1) + 1).tolist()

    def start(self, token_ids: list[int]) -> Sequence:
        """A new sequence; its blocks are taken as it grows."""
        return Sequence(list(token_ids))

    def release(self, sequence: Sequence) -> None:
        """Give the blocks back, dirty as they are."""
        self.free = sequence.blocks + self.free
        sequence.blocks, sequence.num_computed = [], 0

    def step(self, parts: list[tuple[Sequence, int]]) -> list[torch.Tensor]:
        """Compute so many further tokens of each sequence, in one batch. Returns logits [count, vocab] of each."""
        for sequence, count in parts:
            while len(sequence.blocks) * self.block_size < sequence.num_computed + count:
                sequence.blocks.append(self.free.pop(0))
        layout = build_layout(parts, self.block_size)
        ids = [t for s, count in parts for t in s.token_ids[s.num_computed : s.num_computed + count]]
        with torch.inference_mode():
            plan = self.backend.plan(layout)
            hidden = self.model.forward(torch.tensor(ids), layout.positions, self.backend, plan)
            logits = self.model.compute_logits(hidden)
        for sequence, count in parts:
            sequence.num_computed += count
        return list(logits.split([count for _, count in parts]))

    def prompt_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [T, vocab] of a whole prompt in one step."""
        return self.step([(self.start(token_ids), len(token_ids))])[0]
