"""What a recorded step reads from its buffers gives the step itself, whatever the step before left in them.

The recording needs a GPU; the launches that are recorded run here, by Triton's interpreter.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import numpy as np
import torch
from checkpoints import make_checkpoint
from paged_model import CPU, Sequence, build_layout, engine_config

from octavo.kernels.triton.device import INTERPRETED
from octavo.worker.attention.backend import CacheShape
from octavo.worker.attention.triton_backend import TritonAttentionBackend
from octavo.worker.graph_pool import GraphPool
from octavo.worker.input_batch import StepInputs
from octavo.worker.loader.loader import load_model
from octavo.worker.prompt_graphs import PromptGraphs

pytestmark = [
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="tests/gpu runs the kernels on the GPU"),
    pytest.mark.skipif(not INTERPRETED.value, reason="Triton was imported before TRITON_INTERPRET was set"),
]

BLOCK = 16
STEPS = [[(0, 30), (1, 9)], [(0, 1), (2, 12)], [(0, 1), (1, 1), (2, 1), (3, 17), (4, 2)], [(4, 5)]]
"""(sequence, new tokens) of each step, decodes first. Later ones are smaller than the first, and have more rows."""


class NothingRecorded(GraphPool):
    """What is replayed is launched again."""

    def capture(self, launches: Callable[[], Any]) -> Any:
        return SimpleNamespace(replay=launches), launches()


def step_inputs(parts: list[tuple[Sequence, int]]) -> StepInputs:
    layout = build_layout(parts, BLOCK)
    ids = [t for s, count in parts for t in s.token_ids[s.num_computed : s.num_computed + count]]
    return StepInputs(layout, torch.tensor(ids), np.arange(len(parts)), None, layout.positions[:0])


def test_every_step_is_that_of_the_launches_one_by_one(tmp_path: Path) -> None:
    config = engine_config(
        make_checkpoint(tmp_path, head_dim=16, max_position_embeddings=64),
        block_size=BLOCK,
        max_num_seqs=6,
        max_num_batched_tokens=48,
    )
    model = load_model(config, CPU)
    shape = CacheShape((None,) * config.model.num_layers, 4, 2, 16, BLOCK, torch.float32, CPU)
    heads = config.model.num_heads, config.model.num_kv_heads
    assert heads == (shape.num_heads, shape.num_kv_heads)
    backends = [TritonAttentionBackend(shape, 6) for _ in range(2)]
    for backend in backends:
        backend.allocate(16)
    graphs = PromptGraphs(config, model, backends[1], NothingRecorded())
    chance = torch.Generator().manual_seed(0)
    sequences = [
        Sequence(torch.randint(3, 60, (48,), generator=chance).tolist(), 0, [1 + 3 * i + b for b in range(3)])
        for i in range(5)
    ]
    for step in STEPS:
        parts = [(sequences[index], count) for index, count in step]
        inputs = step_inputs(parts)
        with torch.inference_mode():
            plan = backends[0].plan(inputs.layout)
            wanted = model.forward(inputs.input_ids, inputs.layout.positions, backends[0], plan)
            last = inputs.layout.device_query_start_loc[1:].long() - 1
            # Either kind; where some are wanted, the second step is recorded after a larger one.
            places, right = (None, wanted) if step is STEPS[2] else (last, wanted[last])
            given = graphs.run(inputs, places)
        assert given is not None
        torch.testing.assert_close(given, right, rtol=0, atol=2e-5)
        for sequence, count in parts:
            sequence.num_computed += count
    for (keys, values), (given_keys, given_values) in zip(backends[0]._caches, backends[1]._caches, strict=True):
        torch.testing.assert_close(given_keys, keys, rtol=0, atol=2e-5)
        torch.testing.assert_close(given_values, values, rtol=0, atol=2e-5)
        assert not given_keys[0].any() and not given_values[0].any()  # padding is written nowhere


class NoMemory(GraphPool):
    """A device that is full."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def capture(self, launches: Callable[[], Any]) -> Any:
        self.asked += 1
        raise torch.OutOfMemoryError("full")


def small_graphs(folder: Path, pool: GraphPool, rows: int = 2) -> PromptGraphs:
    config = engine_config(
        make_checkpoint(folder, head_dim=16, max_position_embeddings=64),
        block_size=BLOCK,
        max_num_seqs=rows,
        max_num_batched_tokens=48,
    )
    shape = CacheShape((None,) * config.model.num_layers, 4, 2, 16, BLOCK, torch.float32, CPU)
    return PromptGraphs(config, load_model(config, CPU), TritonAttentionBackend(shape, rows), pool)


class Counting(GraphPool):
    """Records nothing."""

    def capture(self, launches: Callable[[], Any]) -> Any:
        return SimpleNamespace(), None


@pytest.mark.parametrize(("rows", "recorded"), [(2, [(48, 2, False)]), (12, [(48, 12, False), (48, 8, False)])])
def test_the_largest_are_recorded_at_once_and_none_twice(tmp_path: Path, rows: int, recorded: list[object]) -> None:
    graphs = small_graphs(tmp_path, Counting(), rows)
    assert graphs.capture_largest() == len(recorded)
    assert list(graphs._graphs) == recorded


def test_steps_too_large_are_left_to_others(tmp_path: Path) -> None:
    pool = NoMemory()
    graphs = small_graphs(tmp_path, pool)
    assert graphs.sizes == [16, 32, 48]
    rows = [(Sequence([5], 0, [1 + i]), 1) for i in range(3)]
    assert graphs.run(step_inputs(rows), None) is None
    assert graphs.run(step_inputs([(Sequence([5] * 60, 0, [1, 2, 3, 4]), 49)]), None) is None
    assert pool.asked == 0


def test_where_no_memory_is_left_steps_are_left_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = NoMemory()
    graphs = small_graphs(tmp_path, pool)
    for length in (5, 40, 5):
        assert graphs.run(step_inputs([(Sequence([5] * length, 0, [1, 2, 3]), length)]), None) is None
    assert pool.asked == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and "no device memory left" in warnings[0]
