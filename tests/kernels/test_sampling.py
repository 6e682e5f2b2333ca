"""The pure sampling operations: noise, order, exact sums, draws."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels import sampling

INF = math.inf


def splitmix_uniform(seed: int, position: int) -> float:
    """The documented noise in Python's unbounded integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    key = mix((seed + golden) & mask)
    return (mix((key + position * golden) & mask) >> 11) * 2.0**-53


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_noise_is_the_documented_hash(seed: int, position: int) -> None:
    noise = sampling.uniform(torch.tensor([seed]), torch.tensor([position]))
    assert noise.dtype == torch.float64
    assert noise.item() == splitmix_uniform(seed, position)


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_noise_is_uniform_and_uncorrelated_along_seeds_and_positions(vary: str) -> None:
    steps, still = torch.arange(20000), torch.full((20000,), 7)
    noise = sampling.uniform(steps, still) if vary == "seed" else sampling.uniform(still, steps)
    assert noise.min() >= 0.0
    assert noise.max() < 1.0
    counts = torch.histc(noise, bins=100, min=0, max=1)
    assert ((counts - 200.0) ** 2 / 200.0).sum() < 180  # chi-square of 99 degrees; 1 in 10^6 lies above
    centred = noise - 0.5
    assert abs((centred[1:] * centred[:-1]).mean().item() * 12) < 0.035  # 5 sigma


@pytest.mark.parametrize("size", [5, 1000, 49153])
@pytest.mark.parametrize("rows", [1, 3, 32])
def test_greedy_takes_the_lowest_id_of_equals(size: int, rows: int) -> None:
    logits = torch.zeros(rows, size)
    logits[:, size // 3] = logits[:, size // 2] = logits[:, size - 1] = 1.0
    assert sampling.greedy(logits).tolist() == [size // 3] * rows
    assert sampling.greedy(torch.full((rows, size), -INF)).tolist() == [0] * rows
    assert sampling.greedy(torch.tensor([[-0.0, 0.0]])).item() == 0


@pytest.mark.parametrize("count", [1, 3, 64, 65, 300, 999, 1000])
def test_best_tokens_order_by_logit_then_lower_id(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = torch.randint(-20, 20, (4, 1000), generator=generator) / 4.0  # many ties
    logits[1, ::7] = -INF
    logits[2] = torch.randn(1000, generator=generator) * 1e4
    logits[3, ::2], logits[3, 1::2] = 0.0, -0.0
    best = sampling.best_tokens(sampling.token_keys(logits), count)
    for row, values in enumerate(logits.tolist()):
        assert best[row].tolist() == sorted(range(1000), key=lambda i: (-values[i], i))[:count]


def test_weights_are_exact_multiples_of_the_probabilities() -> None:
    probs = torch.tensor([[0.5, 0.25, 2.0**-50, 2.0**-51, 0.0]])
    assert sampling.token_weights(probs).tolist() == [[2**49, 2**48, 1, 0, 0]]
    assert sampling.token_weights(probs, torch.tensor([0.5])).tolist() == [[2**49, 2**48, 0, 0, 0]]
    assert sampling.token_weights(probs, torch.tensor([1.0])).tolist() == [[2**49, 0, 0, 0, 0]]


def test_draw_takes_the_first_index_whose_sum_exceeds_the_target() -> None:
    weights = torch.tensor([[0, 3, 0, 1, 0]]).expand(6, 5)
    noise = torch.tensor([0.0, 0.5, 0.7499, 0.75, 0.9, 1.0 - 2.0**-53], dtype=torch.float64)
    assert sampling.draw(weights, noise).tolist() == [1, 1, 1, 3, 3, 3]


@given(st.integers(1, 2**52))
@settings(max_examples=200, deadline=None)
def test_the_highest_noise_stays_below_any_total(total: int) -> None:
    highest = torch.tensor([1.0 - 2.0**-53], dtype=torch.float64)
    assert sampling.draw(torch.tensor([[0, total, 0]]), highest).item() == 1


@given(st.lists(st.sampled_from([0, 0, 0, 1, 5, 2**50]), min_size=1, max_size=20), st.floats(0, 1 - 2**-53))
@settings(max_examples=200, deadline=None)
def test_a_weight_of_zero_is_never_drawn(weights: list[int], noise: float) -> None:
    index = sampling.draw(torch.tensor([weights]), torch.tensor([noise], dtype=torch.float64)).item()
    assert 0 <= index < len(weights)
    assert weights[int(index)] > 0 or not any(weights)


def _spread(rows: int, vocab: int) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4


@pytest.mark.parametrize("vocab", [100, 1001, 6001])
def test_rows_do_not_depend_on_the_batch(vocab: int) -> None:
    rows = 33
    logits = _spread(rows, vocab)
    logits[::2] = logits[::2].bfloat16().float()  # ties
    noise = sampling.uniform(torch.arange(rows), torch.arange(rows))
    min_p = torch.linspace(0, 0.1, rows)
    top_k = torch.tensor([1, 7, 50, 256, 257, 700, vocab])[torch.arange(rows) % 7].clamp(max=vocab)
    top_p = torch.tensor([1.0, 0.9, 0.5, 0.99, 0.1], dtype=torch.float64)[torch.arange(rows) % 5]
    plain = sampling.draw_plain(logits, noise, None)
    peaked = sampling.draw_plain(logits, noise, min_p)
    filtered = sampling.draw_filtered(logits, noise, min_p, top_k, top_p, None)
    logprobs = sampling.token_logprobs(logits, plain, 20)
    for size in (1, 2, 5):
        for start in range(0, rows - size, size):
            part = slice(start, start + size)
            alone = logits[part].clone()
            assert torch.equal(sampling.draw_plain(alone, noise[part], None), plain[part])
            assert torch.equal(sampling.draw_plain(alone, noise[part], min_p[part]), peaked[part])
            again = sampling.draw_filtered(alone, noise[part], min_p[part], top_k[part], top_p[part], None)
            assert torch.equal(again, filtered[part])
            for batched, single in zip(logprobs, sampling.token_logprobs(alone, plain[part], 20), strict=True):
                assert torch.equal(batched[part], single)


def test_filtered_draws_are_the_same_however_many_candidates_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocab = 64, 6001
    logits = _spread(rows, vocab).div(4).bfloat16().float()  # flat, with long runs of ties
    noise = sampling.uniform(torch.arange(rows), torch.arange(rows))
    top_k = torch.tensor([40, vocab])[torch.arange(rows) % 2]
    top_p = torch.tensor([0.97, 0.3, 0.999], dtype=torch.float64)[torch.arange(rows) % 3]
    whole = sampling.draw_filtered(logits, noise, None, top_k, top_p, None)
    few = top_k < vocab
    arguments = (logits[few], noise[few], None, top_k[few], top_p[few])
    for width in (40, 64, 256, vocab):
        assert torch.equal(sampling.draw_filtered(*arguments, width), whole[few])
    for first, second in ((2, 3), (1, 5999), (7000, 9000)):
        monkeypatch.setattr(sampling, "CANDIDATES", first)
        monkeypatch.setattr(sampling, "_MORE_CANDIDATES", second)
        assert torch.equal(sampling.draw_filtered(logits, noise, None, top_k, top_p, None), whole)


def test_top_k_keeps_exactly_k_of_equals_and_the_lowest_ids() -> None:
    noise = sampling.uniform(torch.arange(500), torch.arange(500))
    logits = torch.zeros(500, 300)
    logits[:, 10:] = 1.0
    ones = torch.ones(500, dtype=torch.float64)
    drawn = sampling.draw_filtered(logits, noise, None, torch.full((500,), 4), ones, 4)
    assert set(drawn.tolist()) == {10, 11, 12, 13}
    half = torch.full((500,), 0.5, dtype=torch.float64)
    drawn = sampling.draw_filtered(logits, noise, None, torch.full((500,), 4), half, 4)
    assert set(drawn.tolist()) == {10, 11}


@pytest.mark.parametrize("bad", [-INF, math.nan, INF])
def test_a_row_without_a_distribution_gives_a_token_and_leaves_others_alone(bad: float) -> None:
    logits = _spread(3, 300)
    logits[1] = bad
    noise = sampling.uniform(torch.arange(3), torch.arange(3))
    top_k, top_p = torch.full((3,), 300), torch.full((3,), 0.9, dtype=torch.float64)
    plain = sampling.draw_plain(logits, noise, None)
    filtered = sampling.draw_filtered(logits, noise, None, top_k, top_p, None)
    assert plain[1] == 0
    assert filtered[1] == 0
    assert sampling.greedy(logits)[1] == 0
    for row in (0, 2):
        only = slice(row, row + 1)
        assert plain[row] == sampling.draw_plain(logits[only], noise[only], None)[0]
        again = sampling.draw_filtered(logits[only], noise[only], None, top_k[only], top_p[only], None)
        assert filtered[row] == again[0]


def test_logprobs_and_ranks_follow_the_order_of_tokens() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, -INF]])
    values, ranks, best, best_values = sampling.token_logprobs(logits, torch.tensor([2, 3]), 3)
    assert ranks.tolist() == [2, 4]
    assert best.tolist() == [[1, 2, 3], [0, 1, 2]]
    exact = math.log(math.exp(1) + 2 * math.exp(3) + math.exp(2))
    assert values[0].item() == pytest.approx(3 - exact, abs=1e-6)
    assert values[1].item() == -INF
    assert best_values[0].tolist() == pytest.approx([3 - exact, 3 - exact, 2 - exact], abs=1e-6)
    assert sampling.token_logprobs(logits, torch.tensor([2, 3]), 0)[2].shape == (2, 0)


def test_mask_where_needs_one_condition_that_holds() -> None:
    logits = torch.ones(2, 3)
    rows, tokens = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 2, 0])
    sampling.mask_where(logits, rows, tokens, torch.tensor([False, True, False, True]))
    assert logits.tolist() == [[1, -INF, 1], [-INF, 1, 1]]


def test_memory_bound_of_rows() -> None:
    cpu = torch.device("cpu")
    assert sampling.rows_at_once(10**9, cpu) == 1
    assert sampling.rows_at_once(49152, cpu) == 8
    assert sampling.rows_at_once(49152, torch.device("meta")) > 8


def test_penalties_leave_unseen_tokens_bitwise_unchanged() -> None:
    rng = random.Random(0)
    logits = torch.randn(2, 50)
    before = logits.clone()
    tokens = torch.tensor([[rng.randrange(50) for _ in range(20)]], dtype=torch.int32)
    counts, in_prompt = torch.zeros(1, 50, dtype=torch.int32), torch.zeros(1, 50, dtype=torch.bool)
    counts[0, 7] = 3
    tokens[0, 5] = 7
    amounts = (torch.tensor([1.3]), torch.tensor([0.2]), torch.tensor([0.1]))
    where = (torch.tensor([1]), torch.tensor([0]), 20)
    sampling.apply_penalties(logits, *where, tokens, counts, in_prompt, *amounts)
    changed = (logits != before).nonzero().tolist()
    assert changed == [[1, 7]]
