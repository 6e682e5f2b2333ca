"""The compiled backend gives what the torch backend gives, and is chosen where it can run and nowhere else."""

from pathlib import Path

import pytest
import torch
from backend_steps import compare_backends
from checkpoints import make_checkpoint
from paged_model import CPU, engine_config

from octavo.core.errors import ConfigurationError
from octavo.kernels.numba import openmp_library
from octavo.worker.attention.backend import CacheShape
from octavo.worker.attention.numba_backend import NumbaAttentionBackend
from octavo.worker.attention.selection import select_backend
from octavo.worker.attention.torch_backend import TorchAttentionBackend
from octavo.worker.layers.norm import HeadNorm
from octavo.worker.layers.operators import choose_operators
from octavo.worker.layers.rotary import RotaryEmbedding


@pytest.mark.parametrize("normalize", [False, True], ids=["plain heads", "normalized heads"])
@pytest.mark.parametrize("windows", [(None,), (None, 9)], ids=["full", "one layer with a window"])
@pytest.mark.parametrize("heads", [(4, 2, 16), (9, 3, 48), (5, 1, 32)], ids=str)
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_a_prompt_in_chunks_beside_decodes(
    heads: tuple[int, int, int], block_size: int, windows: tuple[int | None, ...], normalize: bool, tmp_path: Path
) -> None:
    config = engine_config(make_checkpoint(tmp_path, head_dim=heads[2], max_position_embeddings=64)).model
    rotary = RotaryEmbedding(config, torch.float32, CPU)
    shape = CacheShape(windows, *heads, block_size, torch.float32, CPU)
    reference, backend = TorchAttentionBackend(shape), NumbaAttentionBackend(shape)
    norm = HeadNorm(*heads, 1e-5, torch.float32, CPU)
    norm.weight.uniform_(0.5, 1.5)
    compare_backends(reference, backend, rotary, heads, block_size, len(windows), norm if normalize else None)


def test_compiled_kernels_are_taken_where_they_can_run(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    assert select_backend(engine_config(folder), CPU).name == "numba"
    assert select_backend(engine_config(folder, attention_backend="torch"), CPU).name == "torch"
    assert choose_operators(CPU, torch.bfloat16).name == "numba"
    assert choose_operators(CPU, torch.float16).name == "torch"


def test_openmp_is_found_in_a_folder_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "7f0-7f1 r-xp 00000000 fe:00 123                        /home/a b/torch/lib/libgomp.so.1\n"
    monkeypatch.setattr(Path, "read_text", lambda _self: line)
    assert openmp_library() == Path("/home/a b/torch/lib/libgomp.so.1")


def test_a_backend_of_another_device_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="triton: the kernels need a CUDA GPU, and this runs on cpu"):
        select_backend(engine_config(make_checkpoint(tmp_path), attention_backend="triton"), CPU)


def test_heads_that_do_not_fit_are_left_to_torch_or_refused_with_the_reason(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, head_dim=24)
    assert select_backend(engine_config(folder), CPU).name == "torch"
    with pytest.raises(ConfigurationError, match="multiple of 16, not 24"):
        select_backend(engine_config(folder, attention_backend="numba"), CPU)
