"""Log probabilities: raw, counted per request, ranked in the order of tokens."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.worker.logprobs import LogprobTensors, RowLogprobs, prompt_logprobs
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_state import SamplingState

VOCAB = 300


def sample_logprobs(
    asked: list[int | None], logits: torch.Tensor, **params: Any
) -> tuple[list[int], LogprobTensors | None]:
    state = SamplingState(len(asked), VOCAB, 64, torch.device("cpu"))
    for slot, count in enumerate(asked):
        state.add(
            slot,
            SamplingParams(logprobs=count, **params),
            seed=slot,
            prompt_token_ids=[1],
            output_token_ids=[],
            stop_token_ids=[],
            bad_words=[],
        )
    output = Sampler().sample(logits, state.batch(np.arange(len(asked))), torch.ones(len(asked), dtype=torch.int64))
    return output.token_ids.tolist(), output.logprobs


def entries(logprobs: LogprobTensors | None) -> list[RowLogprobs]:
    assert logprobs is not None
    return logprobs.to_host().compact()


def random_logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(1)) * 3


def test_each_row_gets_the_chosen_token_and_exactly_as_many_best_as_it_asked_for() -> None:
    logits = random_logits(6)
    asked = [0, None, 5, 1, None, 20]
    tokens, logprobs = sample_logprobs(asked, logits, temperature=3.0)
    assert logprobs is not None
    assert logprobs.rows.tolist() == [0, 2, 3, 5]
    exact = torch.log_softmax(logits.double(), -1).numpy()
    for row, (ids, values, rank) in zip(logprobs.rows.tolist(), entries(logprobs), strict=True):
        order = np.argsort(-exact[row], kind="stable").tolist()
        assert ids == [tokens[row], *order[: asked[row]]]
        assert values == pytest.approx([exact[row][token] for token in ids], abs=1e-5)
        assert rank == order.index(tokens[row]) + 1


def test_they_are_those_of_the_model_whatever_changes_the_draw() -> None:
    logits = random_logits(1)
    plain = entries(sample_logprobs([3], logits, temperature=0.0)[1])[0]
    changed = sample_logprobs([3], logits, temperature=0.1, top_k=2, logit_bias={250: 100.0}, min_p=0.3)
    ids, values, rank = entries(changed[1])[0]
    assert changed[0] == [250] == ids[:1]
    assert ids[1:] == plain[0][1:]
    assert values[1:] == plain[1][1:]
    assert rank == 1 + int((logits[0] > logits[0, 250]).sum())


def test_none_are_computed_when_none_are_asked_for() -> None:
    assert sample_logprobs([None, None], random_logits(2))[1] is None


def test_more_than_the_vocabulary_gives_the_vocabulary() -> None:
    ids, values, rank = entries(sample_logprobs([10**6], random_logits(1), temperature=0.0)[1])[0]
    assert len(ids) == len(values) == VOCAB + 1
    assert sorted(ids[1:]) == list(range(VOCAB))
    assert rank == 1


@pytest.mark.parametrize("count", [0, 4, 1000])
def test_prompt_logprobs_are_the_same_in_one_chunk_and_in_many(count: int) -> None:
    logits = random_logits(1500)
    targets = torch.arange(1500) % VOCAB
    whole = prompt_logprobs(logits, targets, count).compact()
    assert len(whole) == 1500
    pieces = [
        entry
        for start in range(0, 1500, 500)
        for entry in prompt_logprobs(logits[start : start + 500], targets[start : start + 500], count).compact()
    ]
    assert whole == pieces
    ids, values, rank = whole[1234]
    assert len(ids) == 1 + min(count, VOCAB)
    assert ids[0] == 1234 % VOCAB
    assert values[0] == pytest.approx(float(torch.log_softmax(logits[1234].double(), -1)[ids[0]]), abs=1e-5)
    assert rank == 1 + int((logits[1234] > logits[1234, ids[0]]).sum())
    assert all(math.isfinite(value) for value in values)


def test_no_prompt_positions_are_fine() -> None:
    assert prompt_logprobs(torch.zeros(0, VOCAB), torch.zeros(0, dtype=torch.int64), 3).compact() == []
