"""The torch attention backend equals the plain reference for any cut of the work, and its planning is sound."""

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_attention import paged_attention
from paged_model import Sequence, build_layout, engine_config

from octavo.core.errors import ConfigurationError
from octavo.worker.attention.backend import AttentionPlan, CacheShape
from octavo.worker.attention.padded_groups import group_rows
from octavo.worker.attention.selection import select_backend
from octavo.worker.attention.torch_backend import TorchAttentionBackend

CPU = torch.device("cpu")


def make_backend(
    windows: tuple[int | None, ...] = (None,),
    heads: tuple[int, int, int] = (4, 2, 8),
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    num_blocks: int = 400,
) -> TorchAttentionBackend:
    backend = TorchAttentionBackend(CacheShape(windows, *heads, block_size, dtype, CPU))
    backend.allocate(num_blocks)
    return backend


def attend_and_compare(
    backend: TorchAttentionBackend, rows: list[tuple[int, int]], heads: tuple[int, int, int], block_size: int, seed: int
) -> None:
    """Attend ``rows`` of (computed before, new tokens) and compare each layer with the reference."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(seed)
    caches = [backend.cache(layer) for layer in range(len(backend.shape.windows))]
    free = (torch.randperm(caches[0][0].shape[0] - 1, generator=generator) + 1).tolist()
    parts: list[tuple[Sequence, int]] = []
    for before, new in sorted(rows, key=lambda row: row[1]):
        count = -(-(before + new) // block_size)
        parts.append((Sequence([], before, [free.pop() for _ in range(count)]), new))
    layout = build_layout(parts, block_size)
    for keys, values in caches:
        keys.normal_(generator=generator)
        values.normal_(generator=generator)
        keys[0], values[0] = 0, 0
    total = layout.num_tokens
    dtype = caches[0][0].dtype
    query = torch.randn(total, num_heads, head_dim, generator=generator).to(dtype)
    key = torch.randn(total, num_kv_heads, head_dim, generator=generator).to(dtype)
    value = torch.randn(total, num_kv_heads, head_dim, generator=generator).to(dtype)
    with torch.inference_mode():
        plan = backend.plan(layout)
        for layer, window in enumerate(backend.shape.windows):
            out = backend.attend(layer, query, key, value, plan)
            expected = paged_attention(
                query,
                *caches[layer],
                torch.from_numpy(layout.query_start_loc),
                torch.from_numpy(layout.seq_lens),
                layout.block_table,
                head_dim**-0.5,
                window,
            )
            tolerance = 2e-5 if dtype == torch.float32 else 0.04
            torch.testing.assert_close(out.view_as(expected), expected, rtol=0, atol=tolerance)
            flat_keys = caches[layer][0].flatten(0, 1)
            assert torch.equal(flat_keys[layout.slot_mapping], key), "keys are not where the slots say"


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 60), st.one_of(st.just(1), st.integers(1, 40))), min_size=1, max_size=12),
    heads=st.sampled_from([(4, 2, 8), (3, 3, 8), (6, 1, 16), (9, 3, 8)]),
    block_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([None, 1, 7, 30]),
    seed=st.integers(0, 2**31),
)
def test_any_batch_equals_the_reference(
    rows: list[tuple[int, int]], heads: tuple[int, int, int], block_size: int, window: int | None, seed: int
) -> None:
    backend = make_backend((None, window), heads, block_size, num_blocks=1300)
    attend_and_compare(backend, rows, heads, block_size, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rows",
    [
        [(1999, 1)],
        [(255, 1)] * 9,
        [(300 + 7 * i, 1) for i in range(6)],
        [(10, 1), (900, 1), (12, 1), (880, 1), (9, 1)],
        [(0, 300)],
        [(500, 130), (3, 129), (0, 128), (40, 1)],
    ],
    ids=["long row", "equal rows", "similar rows", "short and long rows", "long prompt", "tiles of chunks"],
)
def test_large_batches_and_long_prompts_equal_the_reference(rows: list[tuple[int, int]], dtype: torch.dtype) -> None:
    heads = (4, 2, 8)
    attend_and_compare(make_backend((None, 50), heads, 16, dtype), rows, heads, 16, seed=3)


def test_only_slots_that_were_written_are_read() -> None:
    backend = make_backend(block_size=4)
    for cache in backend.cache(0):
        cache.fill_(torch.nan)
    blocks = [[1, 2], [3]]
    data = torch.randn(7, 4, 8)
    first = build_layout([(Sequence([], 0, blocks[0]), 5), (Sequence([], 0, blocks[1]), 2)], 4)
    backend.attend(0, data, data[:, :2], data[:, :2], backend.plan(first))
    then = build_layout([(Sequence([], 5, blocks[0]), 1), (Sequence([], 2, blocks[1]), 2)], 4)
    out = backend.attend(0, data[:3], data[:3, :2], data[:3, :2], backend.plan(then))
    assert out.isfinite().all(), "a slot past a sequence's end was read"


def test_bytes_per_block_count_keys_and_values_of_all_layers() -> None:
    backend = make_backend((None, None, None), (4, 2, 8), block_size=16, dtype=torch.bfloat16, num_blocks=5)
    allocated = sum(cache.nbytes for layer in range(3) for cache in backend.cache(layer))
    assert backend.bytes_per_block * 5 == allocated


def test_the_plan_of_another_backend_is_refused() -> None:
    data = torch.randn(1, 4, 8)
    with pytest.raises(TypeError, match="AttentionPlan"):
        make_backend().attend(0, data, data[:, :2], data[:, :2], AttentionPlan())


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=60), overhead=st.integers(1, 400))
def test_groups_hold_each_row_once_and_stay_under_the_limit(sizes: list[int], overhead: int) -> None:
    array = np.array(sizes)
    groups = group_rows(array, overhead, limit=500)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or len(group) * array[group].max() <= 500
    padded = sum(len(group) * int(array[group].max()) for group in groups)
    unlimited = group_rows(array, overhead, limit=10**9)
    cost = sum(len(group) * int(array[group].max()) + overhead for group in unlimited)
    assert cost <= len(sizes) * int(array.max()) + overhead, "grouping costs more than padding all rows to the longest"
    assert padded <= len(sizes) * int(array.max())


def test_similar_rows_stay_together_and_a_long_one_goes_apart() -> None:
    assert [group.tolist() for group in group_rows(np.array([7, 8, 7, 6]), 40, 10**6)] == [[0, 1, 2, 3]]
    groups = [sorted(group.tolist()) for group in group_rows(np.array([7, 300, 7, 6]), 40, 10**6)]
    assert sorted(groups) == [[0, 2, 3], [1]]


def test_an_attention_backend_that_does_not_exist_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"))
    with pytest.raises(ConfigurationError, match=r"--attention-backend 'flash9'.*auto or numba, torch"):
        select_backend(engine_config(folder, attention_backend="flash9"), CPU)
