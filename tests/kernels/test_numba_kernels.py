"""Compiled CPU kernels equal the torch references, whether one thread runs them or the team."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cfunc
from paged_attention import paged_attention

from octavo.kernels import gated_activation, prompt_attention, rms_norm, rotary
from octavo.kernels.numba import openmp_library, team
from octavo.kernels.numba.causal_softmax import causal_softmax
from octavo.kernels.numba.decode_attention import Scratch, decode_attention
from octavo.kernels.numba.gated_activation import silu_and_mul
from octavo.kernels.numba.matrix_vector import matrix_vector
from octavo.kernels.numba.rms_norm import _add_rms_norm, add_rms_norm
from octavo.kernels.numba.rope_and_cache import rope_and_cache

DTYPES = [torch.bfloat16, torch.float32]
RELATIVE = {torch.bfloat16: 2**-7, torch.float32: 1e-5}
"""One rounding step of bfloat16; a few of float32."""


@pytest.fixture(params=[0, math.inf], ids=["team", "one thread"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All work by the team, or none."""
    monkeypatch.setattr(team, "SMALL_WORK", request.param)
    yield


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("width", [16, 576, 577])
def test_norm_and_activation(rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, rows, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    expected = rms_norm.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, expected[1])
    torch.testing.assert_close(normed, expected[0], rtol=2 * RELATIVE[dtype], atol=1e-6)  # it is rounded twice
    gate_up = (torch.randn(rows, 2 * width) * 6).to(dtype)
    activated = silu_and_mul(gate_up)
    torch.testing.assert_close(activated, gated_activation.silu_and_mul(gate_up), rtol=2 * RELATIVE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_gates_saturate_and_nan_stays_nan(dtype: torch.dtype) -> None:
    gate = torch.tensor([-1e38, -1e30, -100.0, 0.0, 100.0, 1e30, math.inf, math.nan])
    gate_up = torch.cat((gate, torch.full_like(gate, 2.0))).unsqueeze(0).to(dtype)
    expected = gated_activation.silu_and_mul(gate_up)
    torch.testing.assert_close(silu_and_mul(gate_up), expected, rtol=1e-2, atol=1e-35, equal_nan=True)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("rotary_dim", [8, 24])
def test_rotation_and_cache_write(rotary_dim: int, normalize: bool, dtype: torch.dtype) -> None:
    tokens, num_heads, kv_heads, head_dim, block_size = 7, 5, 2, 24, 4
    heads = torch.randn(tokens, num_heads + 2 * kv_heads, head_dim).to(dtype)
    caches = torch.zeros(2, 6, block_size, kv_heads, head_dim).to(dtype)
    positions = torch.randint(0, 50, (tokens,))
    slots = torch.randperm(6 * block_size)[:tokens]
    angles = torch.rand(50, rotary_dim // 2) * 6
    table = torch.cat((angles.cos(), angles.sin()), 1).to(dtype)
    weight = torch.randn(num_heads + kv_heads, head_dim).to(dtype) if normalize else None
    rotated = heads[:, : num_heads + kv_heads]
    if weight is not None:
        rotated = rms_norm.rms_norm(rotated, weight, 1e-6)
    cos, sin = table[positions].unsqueeze(1).chunk(2, -1)
    expected = rotary.apply_rotary(rotated, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    given_heads = heads.clone()
    rope_and_cache(heads, num_heads, positions, table, slots, caches[0], caches[1], weight, 1e-6)
    tolerance = {"rtol": RELATIVE[dtype], "atol": 4 * RELATIVE[dtype]}  # the reference rounds each of two products
    torch.testing.assert_close(heads[:, : num_heads + kv_heads], expected, **tolerance)
    keys, values = (cache.flatten(0, 1) for cache in caches)
    assert torch.equal(keys[slots], heads[:, num_heads : num_heads + kv_heads])
    assert torch.equal(values[slots], given_heads[:, num_heads + kv_heads :])
    others = torch.ones(len(keys), dtype=torch.bool)
    others[slots] = False
    assert keys[others].eq(0).all() and values[others].eq(0).all(), "a slot of somebody else was written"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(4, 16), (12, 64), (300, 576)])
def test_product_of_one_row(outputs: int, inputs: int, biased: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(1, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if biased else None
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    got = matrix_vector(x, weight, bias)
    torch.testing.assert_close(got.double(), exact, rtol=RELATIVE[dtype], atol=1e-4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 40), (7, 7), (7, 40)])
def test_softmax_of_what_queries_see(queries: int, keys: int, window: int | None, dtype: torch.dtype) -> None:
    scores = (torch.randn(3, 2, queries, keys) * 5).to(dtype)
    expected = prompt_attention.causal_softmax(scores.float(), window)
    last = torch.arange(keys - queries, keys).unsqueeze(1)
    unseen = (torch.arange(keys) > last) | (torch.arange(keys) <= last - (window or keys))
    scores.masked_fill_(unseen, torch.nan)  # they are not even looked at
    weights = causal_softmax(scores, window)
    torch.testing.assert_close(weights.float(), expected, rtol=RELATIVE[dtype], atol=1e-6)


def test_without_a_folder_for_compiled_code_kernels_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_function(*signature: object, cache: bool = False, **options: object) -> Callable[..., object]:
        if cache:
            raise RuntimeError("no locator available")
        return cfunc(*signature, **options)

    monkeypatch.setattr(team, "cfunc", compile_function)
    again = team.Kernel(_add_rms_norm._function, "qqqqqqd")
    x, residual, weight, out = torch.ones(4, 1, 16)
    again(x.dtype, 16, *(tensor.data_ptr() for tensor in (x, residual, weight, out)), 1, 16, 0.0)
    assert torch.equal(out, torch.ones(1, 16)) and torch.equal(residual, torch.full((1, 16), 2.0))
    assert "no locator available" in caplog.text


def test_the_threads_are_those_of_torch() -> None:
    path = openmp_library()
    assert path is not None and "torch" in str(path)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 70), st.integers(1, 900)), min_size=1, max_size=9),
    heads=st.sampled_from([(4, 2, 16), (3, 3, 32), (9, 3, 64), (7, 1, 48), (10, 2, 128)]),
    block_size=st.sampled_from([1, 3, 16]),
    window=st.sampled_from([None, 1, 7, 300]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_decode_attention_reads_what_it_should_and_nothing_else(
    lengths: list[int],
    heads: tuple[int, int, int],
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    num_heads, kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(seed)
    sizes = [-(-length // block_size) for length in lengths]
    free = (torch.randperm(sum(sizes), generator=generator) + 1).tolist()
    table = torch.full((len(lengths), max(sizes) + 2), 10**6, dtype=torch.int32)
    caches = torch.full((2, sum(sizes) + 1, block_size, kv_heads, head_dim), torch.nan).to(dtype)
    for row, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
        table[row, :size] = torch.tensor([free.pop() for _ in range(size)])
        for position in range(length):
            slot = caches[:, int(table[row, position // block_size]), position % block_size]
            slot.normal_(generator=generator)
    queries = torch.randn(len(lengths), num_heads + 2 * kv_heads, head_dim, generator=generator).to(dtype)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    out = torch.full((len(lengths), num_heads, head_dim), torch.nan).to(dtype)
    scale = head_dim**-0.5
    decode_attention(
        queries, num_heads, caches[0], caches[1], out, table, seq_lens, max(lengths), Scratch(), scale, window
    )
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
    expected = paged_attention(
        queries[:, :num_heads].float(), caches[0].float(), caches[1].float(), starts, seq_lens, table, scale, window
    )
    torch.testing.assert_close(out.float(), expected, rtol=RELATIVE[dtype], atol=1e-5)
