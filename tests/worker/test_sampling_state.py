"""What is kept between steps, and when it is built anew."""

from typing import Any

import numpy as np
import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.worker.sampling_state import SamplingState
from octavo.worker.token_history import TokenHistory

VOCAB = 50


def make_state() -> SamplingState:
    return SamplingState(8, VOCAB, 32, torch.device("cpu"))


def add(state: SamplingState, slot: int, params: SamplingParams | None = None, **changes: Any) -> None:
    request: dict[str, Any] = {
        "seed": 5,
        "prompt_token_ids": [1, 2],
        "output_token_ids": [],
        "stop_token_ids": [],
        "bad_words": [],
    }
    state.add(slot, params or SamplingParams(), **(request | changes))


def test_a_batch_is_kept_while_its_rows_and_their_requests_stay() -> None:
    state = make_state()
    for slot in range(4):
        add(state, slot)
    first = state.batch(np.array([0, 2]))
    assert state.batch(np.array([0, 2], np.int32)) is first
    add(state, 5)
    state.remove(1)
    assert state.batch(np.array([0, 2])) is first


@pytest.mark.parametrize("change", ["add", "remove and add", "order", "rows"])
def test_a_batch_is_built_anew_when_something_of_it_changes(change: str) -> None:
    state = make_state()
    for slot in range(4):
        add(state, slot)
    first = state.batch(np.array([0, 2]))
    slots = [0, 2]
    if change == "remove and add":
        state.remove(2)
    if "add" in change:
        add(state, 2, SamplingParams(temperature=0.0))
    if change == "order":
        slots = [2, 0]
    if change == "rows":
        slots = [0, 2, 3]
    second = state.batch(np.array(slots))
    assert second is not first
    assert second.num_greedy == (1 if "add" in change else 0)
    assert second.num_rows == len(slots)


def test_features_that_no_row_uses_are_absent() -> None:
    state = make_state()
    add(state, 0)
    add(state, 1, SamplingParams(logit_bias={4: 1.0}, repetition_penalty=1.2, logprobs=1, min_tokens=2))
    add(state, 2, SamplingParams(allowed_token_ids=[1]), bad_words=[[3], [4, 5]])
    plain = state.batch(np.array([0]))
    assert not plain.changes_logits
    assert plain.tracked is None
    assert plain.logprobs is None
    assert plain.draws[0].min_p is None
    everything = state.batch(np.array([0, 1, 2]))
    assert everything.changes_logits
    assert everything.tracked is not None
    assert everything.tracked.rows.tolist() == [1, 2]
    assert everything.delayed is None  # no stop tokens to wait for


def test_rows_are_grouped_by_how_they_are_drawn() -> None:
    state = make_state()
    for slot, params in enumerate(({}, {"top_k": 5}, {"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": VOCAB})):
        add(state, slot, SamplingParams(**params))  # type: ignore[arg-type]
    batch = state.batch(np.arange(6))
    plain, filtered = batch.draws
    assert torch.arange(6)[plain.rows].tolist() == [0, 3, 5]
    assert torch.arange(6)[filtered.rows].tolist() == [1, 4]
    assert (plain.filters, filtered.filters) == (False, True)
    assert batch.num_greedy == 1
    neighbours = state.batch(np.array([2, 1, 4]))
    assert neighbours.draws[0].rows == slice(1, 3)


def test_few_candidates_are_enough_when_every_row_has_a_small_top_k() -> None:
    state = SamplingState(4, 10_000, 32, torch.device("cpu"))
    for slot, params in enumerate(({"top_k": 5}, {"top_k": 60, "top_p": 0.5}, {"top_p": 0.5})):
        add(state, slot, SamplingParams(**params))  # type: ignore[arg-type]
    widths = [state.batch(np.array(slots)).draws[0].width for slots in ([0], [0, 1], [0, 2])]
    assert widths == [16, 64, None]


def test_seeds_of_64_bits_of_either_sign_are_taken() -> None:
    state = make_state()
    for slot, seed in enumerate((2**64 - 1, -1, 2**63, -(2**63))):
        add(state, slot, seed=seed)
    assert state.batch(np.arange(4)).seeds.tolist() == [-1, -1, -(2**63), -(2**63)]


def test_token_ids_outside_the_vocabulary_have_no_effect() -> None:
    state = make_state()
    params = SamplingParams(logit_bias={VOCAB: 1.0, 3: 2.0}, allowed_token_ids=[3, 3, 10**9], min_tokens=1)
    add(state, 0, params, stop_token_ids=[VOCAB + 7, 2], bad_words=[[VOCAB], [1, VOCAB]])
    batch = state.batch(np.array([0]))
    assert batch.biases is not None and batch.biases.tokens.tolist() == [3]
    assert batch.allowed is not None and batch.allowed.entry_tokens.tolist() == [3]
    assert batch.delayed is not None and batch.delayed.tokens.tolist() == [2]
    assert batch.banned is None
    assert batch.bad_words is None


def test_removing_an_empty_slot_does_nothing() -> None:
    state = make_state()
    state.remove(3)
    state.remove(3)


def test_the_history_grows_and_reuses_its_rows() -> None:
    history = TokenHistory(VOCAB, 32, torch.device("cpu"))
    empty = np.zeros(0, np.int64)
    rows = [history.take(np.array([index]), np.array([index, index])) for index in range(20)]
    assert sorted(rows) == list(range(20))
    for index, row in enumerate(rows):
        assert history.tokens[row, :3].tolist() == [index] * 3
        assert history.counts[row].nonzero().tolist() == [[index]]
        assert history.counts[row, index] == 2
        assert history.in_prompt[row].nonzero().tolist() == [[index]]
    history.release(rows[4])
    again = history.take(np.array([7]), empty)
    assert again == rows[4]
    assert history.counts[again].sum() == 0
    assert history.in_prompt[again].nonzero().tolist() == [[7]]


def test_the_history_records_tokens_up_to_one_past_the_context() -> None:
    history = TokenHistory(VOCAB, 4, torch.device("cpu"))
    row = np.array([history.take(np.array([1, 2]), np.zeros(0, np.int64))])
    for position in range(2, 6):
        history.record(row, torch.from_numpy(row), torch.tensor([position]), torch.tensor([position * 9]))
    assert history.tokens[row[0], :4].tolist() == [1, 2, 18, 27]
    assert history.width(row) == 5
