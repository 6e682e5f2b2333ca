"""The Triton kernels against their torch references on tiny shapes, run by Triton's interpreter on the CPU."""

import math
import os
from pathlib import Path

import pytest

# Triton reads it when a kernel's module is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton", reason="the triton package is not installed")

import kernel_cases as cases
import torch
from kernel_cases import Heads

from octavo.kernels import sampling
from octavo.kernels.triton import decode_attention as decode
from octavo.kernels.triton import prompt_attention as prompt
from octavo.kernels.triton import sampling as fast_sampling
from octavo.kernels.triton.device import INTERPRETED
from octavo.kernels.triton.matrix_vector import VectorTiling, matrix_vector

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, about infinities and NaN that are meant
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="tests/gpu runs the kernels on the GPU"),
    pytest.mark.skipif(not INTERPRETED.value, reason="Triton was imported before TRITON_INTERPRET was set"),
]

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@DTYPES
@pytest.mark.parametrize(
    ("lengths", "shape", "window", "tiling"),
    [
        ([0, 1, 17, 70, 200], Heads(4, 2, 16, 16), None, decode.DecodeTiling(16, 4, 2, 2)),
        ([33, 130, 5], Heads(3, 1, 24, 32), 40, decode.DecodeTiling(32, 4, 2, 2, 1)),
        ([100, 64], Heads(8, 8, 32, 128), None, decode.DecodeTiling(32, 4, 2, 2, 2)),
        ([1100, 3], Heads(20, 1, 16, 64), None, decode.DecodeTiling(32, 4, 2, 5)),
        ([90, 31], Heads(2, 1, 16, 16), None, None),
    ],
    ids=["even shares", "rows cut, window", "no grouping", "more parts than are merged at once", "whole rows"],
)
def test_decode_attention_equals_the_reference(
    lengths: list[int],
    shape: Heads,
    window: int | None,
    tiling: decode.DecodeTiling | None,
    dtype: torch.dtype,
) -> None:
    cases.check_decode_attention(lengths, shape, dtype, CPU, window, tiling)


def test_decode_attention_refuses_a_batch_that_its_scratch_memory_does_not_hold() -> None:
    case = cases.paged_case([(1, 5), (1, 6)], Heads(2, 1, 16, 16), torch.float32, CPU)
    scratch = decode.allocate_scratch(1, 2, 1, 16, CPU)
    caches = (case.key_cache, case.value_cache)
    with pytest.raises(ValueError, match="a batch of 2 rows"):
        decode.decode_attention(case.query, *caches, case.block_table, case.seq_lens, case.query, scratch, 1.0)


@DTYPES
@pytest.mark.parametrize(
    ("rows", "shape", "window", "tiling"),
    [
        ([(3, 20), (33, 33), (1, 50), (20, 100)], Heads(4, 2, 16, 16), None, prompt.PromptTiling(16, 16, 4, 2)),
        ([(33, 90), (1, 1)], Heads(3, 1, 24, 32), 20, prompt.PromptTiling(32, 32, 4, 2)),
        ([(70, 70), (5, 70)], Heads(4, 4, 32, 128), None, prompt.PromptTiling(64, 32, 4, 2)),
    ],
    ids=["mixed rows", "window", "no grouping"],
)
def test_prompt_attention_equals_the_reference(
    rows: list[tuple[int, int]],
    shape: Heads,
    window: int | None,
    tiling: prompt.PromptTiling,
    dtype: torch.dtype,
) -> None:
    cases.check_prompt_attention(rows, shape, dtype, CPU, window, tiling)


def test_prompt_attention_leaves_tokens_before_its_rows_alone() -> None:
    case = cases.paged_case([(2, 5), (4, 20)], Heads(2, 1, 16, 16), torch.float32, CPU)
    out = torch.full_like(case.query, 7.0)
    prompt.prompt_attention(
        case.query, case.key_cache, case.value_cache, case.query_start_loc[1:], case.seq_lens[1:],
        case.block_table[1:], out, 0.25,
    )  # fmt: skip
    assert (out[:2] == 7.0).all()
    cases.close(out[2:], cases.reference(case, 0.25, None)[2:], 1e-5, "second row")


@DTYPES
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize(
    ("shape", "rotary", "per"),
    [(Heads(4, 2, 16, 16), 16, 1), (Heads(6, 2, 24, 32), 16, 4), (Heads(3, 3, 16, 16), 8, 2)],
    ids=["one head a program", "padded and partly rotated", "no grouping"],
)
def test_rope_and_cache_equals_the_reference(
    shape: Heads, rotary: int, per: int, normalize: bool, dtype: torch.dtype
) -> None:
    cases.check_rope_and_cache(5, shape, rotary, normalize, dtype, CPU, per)


@DTYPES
@pytest.mark.parametrize("width", [64, 72])
def test_norms_equal_the_reference(width: int, dtype: torch.dtype) -> None:
    cases.check_norms(3, width, dtype, CPU)


@DTYPES
def test_silu_and_mul_equals_the_reference(dtype: torch.dtype) -> None:
    cases.check_silu_and_mul(3, 1100, dtype, CPU)


def test_decode_inputs_describe_the_next_token_of_each_slot() -> None:
    cases.check_decode_inputs(CPU)


@DTYPES
@pytest.mark.parametrize("tiling", [None, VectorTiling(2, 32, 4, 1)], ids=["default", "several rounds"])
def test_matrix_vector_products_equal_the_reference(tiling: VectorTiling | None, dtype: torch.dtype) -> None:
    cases.check_matrix_vector(13, 80, dtype, CPU, tiling)


def test_matrix_vector_refuses_many_rows() -> None:
    with pytest.raises(ValueError, match="one row, not 5"):
        matrix_vector(torch.zeros(5, 16), torch.zeros(3, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16, many ties"])
@pytest.mark.parametrize(
    ("count", "vocab", "spread", "filters"),
    [
        (12, 300, 1.0, False),
        (6, 9000, 3.0, False),
        (12, 1000, 3.0, True),
        (12, 9000, 0.3, True),
        (6, 9000, 0.001, True),
        (6, 5000, 40.0, True),
    ],
    ids=["one block", "several blocks", "filters", "flat", "too many candidates", "peaked"],
)
def test_sampling_draws_the_tokens_of_the_reference(
    count: int, vocab: int, spread: float, filters: bool, dtype: torch.dtype
) -> None:
    cases.check_sampling(count, vocab, spread, filters, dtype, CPU)


def test_a_tie_at_the_threshold_is_cut_by_the_lowest_ids() -> None:
    count, vocab = 16, 500
    rows = cases.sampling_rows(count, vocab, False, CPU)
    ones = torch.ones(count)
    rows = fast_sampling.SamplingRows(
        ones, torch.full((count,), 4), ones.double(), torch.zeros(count), rows.seeds, rows.positions
    )
    logits = torch.zeros(count, vocab)
    logits[:, 10:] = 1.0
    drawn = fast_sampling.sample(logits, rows, True, True)
    assert set(drawn.tolist()) <= {10, 11, 12, 13}
    assert drawn.tolist() == cases.reference_tokens(logits, rows, True).tolist()


@pytest.mark.parametrize("filters", [False, True])
def test_masked_tokens_and_masked_blocks_are_never_drawn(filters: bool) -> None:
    count, vocab = 40, 13_000
    logits = torch.full((count, vocab), -math.inf)
    logits[:, [4000, 4095, 12_288, 12_999]] = torch.tensor([3.0, 2.5, 2.9, 2.0])
    logits[::2, 12_999] = -200.0
    rows = cases.sampling_rows(count, vocab, filters, CPU)
    rows.temperature[:] = 1.0
    drawn = fast_sampling.sample(logits, rows, True, filters)
    assert set(drawn.tolist()) <= {4000, 4095, 12_288, 12_999}
    assert len(set(drawn.tolist())) > 2
    assert 12_999 not in drawn[::2]
    assert drawn.tolist() == cases.reference_tokens(logits, rows, filters).tolist()


@pytest.mark.parametrize("bad", [-math.inf, math.nan, math.inf])
@pytest.mark.parametrize("filters", [False, True])
def test_a_row_without_a_distribution_gives_token_0_and_leaves_others_alone(bad: float, filters: bool) -> None:
    logits = torch.randn(4, 300)
    rows = cases.sampling_rows(4, 300, filters, CPU)
    before = fast_sampling.sample(logits, rows, True, filters)
    rows.temperature[:] = 1.0
    before = fast_sampling.sample(logits, rows, True, filters)
    logits[2] = bad
    after = fast_sampling.sample(logits, rows, True, filters)
    assert after[2] == 0
    assert after[[0, 1, 3]].tolist() == before[[0, 1, 3]].tolist()


def test_greedy_rows_take_the_lowest_id_of_equals_or_the_first_nan() -> None:
    logits = torch.full((4, 5000), -math.inf)
    logits[0, [4500, 30, 31]] = 2.0
    logits[1, 77] = math.nan
    logits[1, 5] = 9.0
    logits[3, [4999]] = -0.0
    logits[3, [12]] = 0.0
    rows = cases.sampling_rows(4, 5000, False, CPU)
    rows.temperature[:] = 0.0
    tokens = fast_sampling.sample(logits, rows, False, False)
    assert tokens.tolist() == [30, 77, 0, 12]
    assert tokens.tolist() == sampling.greedy(logits).tolist()
