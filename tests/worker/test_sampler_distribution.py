"""Drawn tokens follow the exact distribution: chi-square of thousands of draws at many seeds and positions."""

import numpy as np
import pytest
import torch
from scipy import stats

from octavo.core.sampling_params import SamplingParams
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_state import SamplingState

SLOTS = 128
STEPS = 60

CASES = {
    "temperature 1": {},
    "temperature 0.3": {"temperature": 0.3},
    "temperature 3": {"temperature": 3.0},
    "top-k": {"top_k": 7},
    "top-k of one": {"top_k": 1},
    "top-k above the vocabulary": {"top_k": 10**6},
    "top-p": {"top_p": 0.8},
    "tiny top-p": {"top_p": 1e-9},
    "min-p": {"min_p": 0.1},
    "top-k and top-p": {"top_k": 9, "top_p": 0.7},
    "min-p and top-k": {"min_p": 0.05, "top_k": 6},
    "everything": {"temperature": 1.7, "min_p": 0.08, "top_k": 12, "top_p": 0.9},
}


def exact_distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution in float64; independent of the sampler's code."""
    scaled = logits.astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0.0
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        probs[order[params.top_k :]] = 0.0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.top_p]] = 0.0
    return probs / probs.sum()


def draw_many(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    vocab = len(logits)
    state = SamplingState(SLOTS, vocab, 4096, torch.device("cpu"))
    for slot in range(SLOTS):
        state.add(
            slot,
            params,
            seed=slot * 7919 - 300,
            prompt_token_ids=[1],
            output_token_ids=[],
            stop_token_ids=[],
            bad_words=[],
        )
    batch = state.batch(np.arange(SLOTS))
    rows = logits.expand(SLOTS, vocab).contiguous()
    steps = [Sampler().sample(rows, batch, torch.full((SLOTS,), 1 + step)).token_ids for step in range(STEPS)]
    return torch.cat(steps).numpy()


def check(drawn: np.ndarray, probs: np.ndarray) -> None:
    counts = np.bincount(drawn, minlength=len(probs))
    assert not counts[probs == 0].any(), "a token outside the kept set was drawn"
    expected = probs * len(drawn)
    common = expected >= 5
    seen, wanted = counts[common], expected[common]
    if (~common & (probs > 0)).any():
        seen, wanted = np.append(seen, counts[~common].sum()), np.append(wanted, expected[~common].sum())
    if len(seen) > 1:
        assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4
    else:
        assert seen[0] == len(drawn)


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(5)) * 2
    params = SamplingParams(**CASES[name])
    check(draw_many(logits, params), exact_distribution(logits.numpy(), params))


def test_a_flat_top_p_over_more_tokens_than_are_tried_first() -> None:
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(6)) * 0.7
    params = SamplingParams(top_p=0.9)
    probs = exact_distribution(logits.numpy(), params)
    assert (probs > 0).sum() > 1000
    drawn = draw_many(logits, params)
    assert (probs[drawn] > 0).all()
    # Too many tokens for a chi-square of each: their ranks fall into 50 classes.
    classes = np.empty(3000, np.int64)
    classes[np.argsort(-logits.numpy(), kind="stable")] = np.arange(3000) // 60
    check(classes[drawn], np.bincount(classes, weights=probs))


def test_bias_and_penalties_move_the_distribution_as_they_say() -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(7))
    biases = {3: 2.0, 4: -100.0, 5: 1.0}
    moved = logits.clone()
    for token, bias in biases.items():
        moved[token] += bias
    params = SamplingParams(logit_bias=biases)
    check(draw_many(logits, params), exact_distribution(moved.numpy(), SamplingParams()))
    allowed = torch.full((30,), -torch.inf)
    allowed[[2, 8, 9]] = logits[[2, 8, 9]]
    params = SamplingParams(allowed_token_ids=[2, 8, 9])
    check(draw_many(logits, params), exact_distribution(allowed.numpy(), SamplingParams()))
