"""The Triton backend gives what the torch backend gives, run by Triton's interpreter: layer after layer, chunk after
chunk, with and without a window and head norms."""

import os
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import torch
from backend_steps import compare_backends
from checkpoints import make_checkpoint
from paged_model import CPU, engine_config

from octavo.kernels.triton.device import INTERPRETED
from octavo.worker.attention.backend import CacheShape
from octavo.worker.attention.torch_backend import TorchAttentionBackend
from octavo.worker.attention.triton_backend import TritonAttentionBackend
from octavo.worker.layers.norm import HeadNorm
from octavo.worker.layers.rotary import RotaryEmbedding

pytestmark = [
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="tests/gpu runs the kernels on the GPU"),
    pytest.mark.skipif(not INTERPRETED.value, reason="Triton was imported before TRITON_INTERPRET was set"),
]

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 16, 16


@pytest.mark.parametrize("normalize", [False, True], ids=["plain heads", "normalized heads"])
@pytest.mark.parametrize("windows", [(None,), (None, 9)], ids=["full", "one layer with a window"])
def test_a_prompt_in_chunks_beside_decodes(windows: tuple[int | None, ...], normalize: bool, tmp_path: Path) -> None:
    config = engine_config(make_checkpoint(tmp_path, head_dim=DIM, max_position_embeddings=64)).model
    rotary = RotaryEmbedding(config, torch.float32, CPU)
    shape = CacheShape(windows, HEADS, KV_HEADS, DIM, BLOCK, torch.float32, CPU)
    reference, backend = TorchAttentionBackend(shape), TritonAttentionBackend(shape, 8)
    norm = HeadNorm(HEADS, KV_HEADS, DIM, 1e-5, torch.float32, CPU)
    norm.weight.uniform_(0.5, 1.5)
    compare_backends(
        reference, backend, rotary, (HEADS, KV_HEADS, DIM), BLOCK, len(windows), norm if normalize else None
    )
