"""The composed sampler: each feature's exact effect, and that neighbours have none."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_state import SamplingState

VOCAB = 100
INF = math.inf


def make_state(slots: int = 40, vocab: int = VOCAB) -> SamplingState:
    return SamplingState(slots, vocab, 64, torch.device("cpu"))


def add(state: SamplingState, slot: int, params: SamplingParams, **changes: Any) -> None:
    request: dict[str, Any] = {
        "seed": slot + 1000,
        "prompt_token_ids": [1, 2, 3],
        "output_token_ids": [],
        "stop_token_ids": [],
        "bad_words": [],
    }
    state.add(slot, params, **(request | changes))


def sample(state: SamplingState, slots: list[int], logits: torch.Tensor, position: int) -> list[int]:
    positions = torch.full((len(slots),), position)
    return Sampler().sample(logits, state.batch(np.array(slots)), positions).token_ids.tolist()


def processed(logits: torch.Tensor, params: SamplingParams, position: int, **changes: Any) -> torch.Tensor:
    """One row of logits after masks, biases and penalties."""
    state = make_state(vocab=len(logits))
    add(state, 0, params, **changes)
    batch = state.batch(np.array([0]))
    return Sampler()._apply_features(logits[None].clone(), batch, torch.tensor([position]))[0]


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def test_a_seeded_row_draws_the_same_alone_in_any_row_and_after_a_neighbour_left() -> None:
    logits = random_logits(1) / 2
    seeded = SamplingParams(temperature=1.0, top_p=0.95, seed=42)

    def run(members: dict[int, SamplingParams], leaver: int | None) -> dict[int, list[int]]:
        state = make_state()
        for slot, params in members.items():
            add(state, slot, params, seed=params.seed if params.seed is not None else 77 + slot)
        slots, drawn = list(members), {slot: [] for slot in members}
        for position in range(3, 23):
            if position == 13 and leaver is not None:
                state.remove(leaver)
                slots.remove(leaver)
            for slot, token in zip(slots, sample(state, slots, logits.repeat(len(slots), 1), position), strict=True):
                drawn[slot].append(token)
        return drawn

    alone = run({5: seeded}, None)[5]
    assert len(set(alone)) > 5
    unseeded = SamplingParams(temperature=0.7, top_k=3, presence_penalty=1.0, logprobs=2)
    among = run({0: seeded, 1: seeded, 2: unseeded, 3: seeded}, leaver=2)
    assert among[0] == among[1] == among[3] == alone
    assert among[2] != alone[:10]


def test_a_row_draws_the_same_among_31_others_of_every_kind() -> None:
    logits = random_logits(32, vocab=5000)
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.9),
        SamplingParams(top_k=40, repetition_penalty=1.3),
        SamplingParams(top_p=0.99, temperature=2.5),
        SamplingParams(min_p=0.02, frequency_penalty=0.3),
        SamplingParams(temperature=0.6, logit_bias={7: 3.0}, min_tokens=5),
        SamplingParams(top_k=1000, allowed_token_ids=list(range(0, 5000, 2))),
    ]
    batched = make_state(vocab=5000)
    for slot in range(32):
        add(batched, slot, kinds[slot % len(kinds)], stop_token_ids=[9], bad_words=[[4], [5, 6]])
    together = [sample(batched, list(range(32)), logits, position) for position in range(3, 8)]
    for slot in range(32):
        single = make_state(vocab=5000)
        add(single, slot, kinds[slot % len(kinds)], stop_token_ids=[9], bad_words=[[4], [5, 6]])
        alone = [sample(single, [slot], logits[slot : slot + 1], position)[0] for position in range(3, 8)]
        assert alone == [step[slot] for step in together]


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-8, 1e-38, 1e-45])
def test_tiny_temperatures_are_greedy_at_any_size_of_logits(temperature: float) -> None:
    logits = random_logits(3)
    logits[0, :2] = torch.tensor([1e4, 1e4 - 0.01])
    logits[1] = -1e4
    logits[1, 60] = -9999.0
    logits[2, 10:20] = 50.0
    state = make_state()
    for slot in range(3):
        add(state, slot, SamplingParams(temperature=temperature, top_p=0.9, top_k=5))
    for position in range(3, 13):
        assert sample(state, [0, 1, 2], logits, position) == [0, 60, 10]


@pytest.mark.parametrize("temperature", [1e-5, 1e-38, 1e-45])
def test_a_tiny_temperature_changes_nothing_for_its_neighbours(temperature: float) -> None:
    logits = random_logits(3)
    logits[0, 40], logits[2, 41] = 1e4, -1e4
    normal = SamplingParams(temperature=1.3, top_p=0.9)
    drawn: list[list[int]] = []
    for beside in (SamplingParams(temperature=0.0), SamplingParams(temperature=temperature)):
        state = make_state()
        for slot, params in enumerate((beside, normal, normal)):
            add(state, slot, params)
        drawn.append([token for position in range(3, 13) for token in sample(state, [0, 1, 2], logits, position)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 5 and set(drawn[0][::3]) == {40}


@pytest.mark.parametrize("repetition", [1e-300, 1e-40, 1.0, 1e6])
def test_small_temperatures_that_are_drawn_give_no_nan_with_any_repetition_penalty(repetition: float) -> None:
    logits = torch.full((2, VOCAB), -1e4)
    logits[:, 2], logits[:, 3], logits[:, 8] = 1e4, -INF, -INF
    state = make_state()
    for slot, filters in enumerate(({}, {"top_k": 3, "min_p": 0.1})):
        params = SamplingParams(temperature=2e-5, repetition_penalty=repetition, **filters)
        add(state, slot, params, prompt_token_ids=[2, 3])
    drawn = [sample(state, [0, 1], logits, position) for position in range(2, 6)]
    assert drawn == [[2, 2]] * 4


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = torch.zeros(10)
    logits[5], logits[6] = 1.0, -1.0
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    unchanged = processed(logits, params, 3, prompt_token_ids=[5, 5, 6])
    assert torch.equal(unchanged, logits)
    changed = processed(logits, params, 5, prompt_token_ids=[5, 5, 6], output_token_ids=[5, 5])
    assert changed[5] == 0.0
    assert changed[6] == -1.0


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    logits = torch.zeros(10)
    logits[5], logits[6] = 1.0, -1.0
    params = SamplingParams(repetition_penalty=2.0)
    changed = processed(logits, params, 2, prompt_token_ids=[6], output_token_ids=[5])
    assert changed[5] == 0.5
    assert changed[6] == -2.0
    assert changed[:5].abs().sum() == 0


def test_drawn_tokens_count_and_still_do_after_being_added_again() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 6], logits[0, 7] = 1.0, 0.9, 0.2
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    state = make_state()
    add(state, 0, params)
    drawn = [sample(state, [0], logits, position)[0] for position in range(3, 9)]
    assert drawn == [5, 6, 5, 6, 7, 0]  # 1, .9, .5, .4, .2, then zeros by id: 5 and 6 are at 0 and -0.1
    state.remove(0)
    add(state, 0, params, output_token_ids=drawn[:3])
    assert [sample(state, [0], logits, position)[0] for position in range(6, 9)] == drawn[3:]


def test_a_row_of_the_history_is_clean_for_its_next_request() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 1.0
    state = make_state()
    params = SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=2.0)
    for _ in range(20):
        add(state, 0, params, prompt_token_ids=[8])
        assert sample(state, [0], logits, 1) == [5]
        assert sample(state, [0], logits, 2) == [0]
        state.remove(0)


def test_only_allowed_tokens_are_drawn() -> None:
    logits = random_logits(3)
    state = make_state()
    add(state, 0, SamplingParams(allowed_token_ids=[4, 90, 17]))
    add(state, 1, SamplingParams(temperature=0.0))
    add(state, 2, SamplingParams(temperature=0.0, allowed_token_ids=[50]))
    drawn = [sample(state, [0, 1, 2], logits, position) for position in range(3, 43)]
    assert {step[0] for step in drawn} <= {4, 90, 17}
    assert {step[1] for step in drawn} == {int(logits[1].argmax())}
    assert {step[2] for step in drawn} == {50}


def test_end_tokens_wait_for_min_tokens_and_count_those_before_a_preemption() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 7], logits[0, 9] = 9.0, 8.0, 1.0
    params = SamplingParams(temperature=0.0, min_tokens=3)
    state = make_state()
    add(state, 0, params, stop_token_ids=[2, 7])
    assert [sample(state, [0], logits, position)[0] for position in range(3, 8)] == [9, 9, 9, 2, 2]
    add(state, 0, params, stop_token_ids=[2, 7], output_token_ids=[9, 9])
    assert [sample(state, [0], logits, position)[0] for position in range(5, 8)] == [9, 2, 2]


def test_bad_words_of_one_token_never_come() -> None:
    logits = random_logits(1)
    best = logits[0].argsort(descending=True).tolist()
    state = make_state()
    add(state, 0, SamplingParams(temperature=0.0), bad_words=[[best[0]], [best[1]], [best[0]]])
    assert sample(state, [0], logits, 3) == [best[2]]


def test_bad_words_of_several_tokens_lose_their_last_after_their_first_ones() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 20], logits[0, 21] = 5.0, 4.0
    state = make_state()
    # The prompt ends like the word begins, but only the output counts.
    add(state, 0, SamplingParams(temperature=0.0), prompt_token_ids=[20, 20], bad_words=[[20, 20, 20], [33, 20]])
    drawn = [sample(state, [0], logits, position)[0] for position in range(2, 8)]
    assert drawn == [20, 20, 21, 20, 20, 21]
    add(state, 0, SamplingParams(temperature=0.0), prompt_token_ids=[20], bad_words=[[20, 20]], output_token_ids=[20])
    assert sample(state, [0], logits, 2) == [21]


def test_bad_words_need_their_tokens_in_order() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 30] = 5.0
    for output, best in (([10, 11], 0), ([11, 10], 30), ([10, 11, 12], 30), ([11], 30), ([7, 10, 11], 0)):
        state = make_state()
        add(state, 0, SamplingParams(temperature=0.0), bad_words=[[10, 11, 30]], output_token_ids=output)
        assert sample(state, [0], logits, 3 + len(output)) == [best]


def test_logit_bias_is_added() -> None:
    logits = torch.zeros(1, VOCAB)
    changed = processed(logits[0], SamplingParams(logit_bias={3: 1.5, 99: -100.0}), 3)
    assert changed[3] == 1.5
    assert changed[99] == -100.0
    assert changed.count_nonzero() == 2


def test_masks_come_before_bias_and_a_wholly_masked_row_gives_token_zero() -> None:
    logits = random_logits(4)
    others = {"allowed_token_ids": [5], "logit_bias": {5: 100.0}}
    state = make_state()
    add(state, 0, SamplingParams(temperature=0.0, **others), bad_words=[[5]])
    add(state, 1, SamplingParams(temperature=1.0, **others), bad_words=[[5]])
    add(state, 2, SamplingParams(top_p=0.5, **others), bad_words=[[5]])
    add(state, 3, SamplingParams(top_k=4, min_p=0.2, repetition_penalty=3.0, **others), bad_words=[[5]])
    assert sample(state, [0, 1, 2, 3], logits, 3) == [0, 0, 0, 0]


def test_infinite_logits_of_the_model_are_never_drawn() -> None:
    logits = torch.full((2, VOCAB), -INF)
    logits[:, [30, 31]] = 1.0
    state = make_state()
    add(state, 0, SamplingParams())
    add(state, 1, SamplingParams(top_k=50, top_p=0.9))
    drawn = {token for position in range(3, 63) for token in sample(state, [0, 1], logits, position)}
    assert drawn == {30, 31}


def test_logits_are_not_changed() -> None:
    logits = random_logits(2)
    before = logits.clone()
    state = make_state()
    add(state, 0, SamplingParams(logit_bias={1: 5.0}, repetition_penalty=2.0, logprobs=3), bad_words=[[4]])
    add(state, 1, SamplingParams(top_p=0.5, min_p=0.1))
    sample(state, [0, 1], logits, 3)
    assert torch.equal(logits, before)


def test_a_greedy_batch_is_one_argmax() -> None:
    state = make_state()
    for slot in range(8):
        add(state, slot, SamplingParams(temperature=0.0))
    batch, logits, positions = state.batch(np.arange(8)), random_logits(8), torch.full((8,), 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        Sampler().sample(logits, batch, positions)
    operations = {event.key for event in profile.key_averages() if event.key.startswith("aten::")}
    # "to" float32 of float32 logits is no work.
    assert operations - {"aten::as_strided", "aten::to"} == {"aten::argmax"}


def test_operations_of_a_step_do_not_grow_with_the_rows() -> None:
    def operations(rows: int) -> int:
        state = make_state(slots=64)
        for slot in range(rows):
            params = SamplingParams(top_k=5, min_tokens=4, logit_bias={1: 1.0}, repetition_penalty=1.1, logprobs=2)
            add(state, slot, params, stop_token_ids=[2], bad_words=[[1], [2, 3]])
        batch, positions = state.batch(np.arange(rows)), torch.full((rows,), 3)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            Sampler().sample(random_logits(rows), batch, positions)
        return sum(event.count for event in profile.key_averages())

    assert operations(64) <= operations(4) * 1.1


def test_an_empty_batch_is_fine() -> None:
    output = Sampler().sample(torch.zeros(0, VOCAB), make_state().batch(np.array([], np.int64)), torch.zeros(0).long())
    assert output.token_ids.shape == (0,)
    assert output.logprobs is None
