"""The batched sampler against a slow one: plain Python, one row and one token at a time."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.sampling_params import SamplingParams
from octavo.kernels import sampling
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_state import SamplingState

VOCAB = 48
SLOTS = 8
INF = math.inf
f32 = np.float32


@dataclass
class Row:
    """One request as the reference knows it."""

    params: SamplingParams
    seed: int
    prompt: list[int]
    output: list[int]
    stop: list[int]
    bad_words: list[list[int]]

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


def reference_logits(row: Row, logits: list[np.float32]) -> list[np.float32]:
    """Masks, bias and penalties."""
    params, values = row.params, list(logits)
    banned = {word[0] for word in row.bad_words if len(word) == 1}
    for *prefix, last in row.bad_words:
        if prefix and row.output[-len(prefix) :] == prefix:
            banned.add(last)
    if len(row.output) < params.min_tokens:
        banned |= set(row.stop)
    for token in range(len(values)):
        if token in banned or (params.allowed_token_ids is not None and token not in params.allowed_token_ids):
            values[token] = f32(-INF)
        if params.logit_bias is not None and token in params.logit_bias:
            values[token] = values[token] + f32(params.logit_bias[token])
        count = row.output.count(token)
        if count or token in row.prompt:
            factor = f32(params.repetition_penalty)
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        if count:
            values[token] -= f32(params.frequency_penalty) * f32(count)
            values[token] -= f32(params.presence_penalty)
    return values


def reference_token(row: Row, logits: list[np.float32]) -> int:
    """The token that the documented rules choose. Takes from the sampler only softmax's float32 and the noise."""
    params, values = row.params, reference_logits(row, logits)
    if params.temperature <= 1e-5:
        return min(range(len(values)), key=lambda token: (-values[token], token))
    scaled = [value / f32(params.temperature) for value in values]
    if max(scaled) == -INF:
        return 0
    probs = torch.softmax(torch.tensor(np.array(scaled)), -1).numpy()
    least = f32(params.min_p) * max(probs)
    weights = [int(float(prob) * 2**50) if prob >= least else 0 for prob in probs]
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if params.top_k:
        order = order[: params.top_k]
    target = min(math.ceil(params.top_p * float(sum(weights[token] for token in order))), sum(weights))
    kept, mass = [], 0
    for token in order:
        if mass >= target:
            break
        kept.append(token)
        mass += weights[token]
    noise = sampling.uniform(torch.tensor([row.seed]), torch.tensor([row.position])).item()
    point = min(int(noise * mass), mass - 1)
    for token in sorted(kept):
        point -= weights[token]
        if point < 0:
            return token
    raise AssertionError("the weights do not reach the noise")


tokens = st.integers(0, VOCAB - 1)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    unless = lambda default, other: draw(st.one_of(st.just(default), other))  # noqa: E731
    params = SamplingParams(
        temperature=unless(0.0, st.floats(0.05, 5.0)),
        top_p=unless(1.0, st.floats(0.01, 1.0)),
        top_k=unless(0, st.integers(1, VOCAB + 5)),
        min_p=unless(0.0, st.floats(0.0, 1.0)),
        presence_penalty=unless(0.0, st.floats(-2.0, 2.0)),
        frequency_penalty=unless(0.0, st.floats(-2.0, 2.0)),
        repetition_penalty=unless(1.0, st.floats(0.1, 5.0)),
        min_tokens=unless(0, st.integers(1, 5)),
        max_tokens=None,
        logit_bias=unless(None, st.dictionaries(tokens, st.floats(-5.0, 5.0), max_size=5)),
        allowed_token_ids=unless(None, st.lists(tokens, min_size=1, max_size=12)),
    )
    word = st.lists(st.integers(0, 5), min_size=1, max_size=3)
    return Row(
        params=params,
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        prompt=draw(st.lists(tokens, min_size=1, max_size=6)),
        output=draw(st.lists(st.integers(0, 5), max_size=4)),
        stop=draw(st.lists(tokens, max_size=3)),
        bad_words=unless([], st.lists(word, max_size=4)),
    )


def random_logits(generator: np.random.Generator, count: int, vocab: int) -> np.ndarray:
    logits = generator.normal(0, generator.uniform(0.1, 5), (count, vocab)).astype(np.float32)
    if generator.random() < 0.4:
        logits = np.round(logits)  # ties
    if generator.random() < 0.3:
        logits[generator.random(logits.shape) < 0.3] = -np.inf
    return logits


def add(state: SamplingState, slot: int, row: Row) -> None:
    state.add(
        slot,
        row.params,
        seed=row.seed,
        prompt_token_ids=row.prompt,
        output_token_ids=row.output,
        stop_token_ids=row.stop,
        bad_words=row.bad_words,
    )


@given(st.lists(rows(), min_size=1, max_size=SLOTS), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_random_mixtures_equal_the_reference_over_steps_with_coming_and_going(members: list[Row], chance: int) -> None:
    generator = np.random.default_rng(chance)
    state = SamplingState(SLOTS, VOCAB, 64, torch.device("cpu"))
    slots = generator.permutation(SLOTS)[: len(members)].tolist()
    requests = dict(zip(slots, members, strict=True))
    for slot, row in requests.items():
        add(state, slot, row)
    for _ in range(4):
        if generator.random() < 0.3:  # a preemption: gone, and back with its output
            slot = int(generator.choice(slots))
            state.remove(slot)
            add(state, slot, requests[slot])
        chosen = [slot for slot in slots if generator.random() < 0.8] or slots[:1]
        logits = random_logits(generator, len(chosen), VOCAB)
        expected = [reference_token(requests[slot], list(row)) for slot, row in zip(chosen, logits, strict=True)]
        positions = torch.tensor([requests[slot].position for slot in chosen])
        output = Sampler().sample(torch.from_numpy(logits), state.batch(np.array(chosen)), positions)
        assert output.token_ids.tolist() == expected
        for slot, token in zip(chosen, expected, strict=True):
            requests[slot].output.append(token)


WIDE = [
    {"top_p": 0.9},
    {"top_p": 0.99, "temperature": 3.0},
    {"top_k": 300},
    {"top_k": 5000, "top_p": 0.95},
    {"top_k": 30, "min_p": 0.01},
    {"min_p": 0.2},
]


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_vocabulary_equals_the_reference_in_every_tier(seed: int) -> None:
    vocab = 9001
    generator = np.random.default_rng(seed)
    members = [Row(SamplingParams(**changes), seed + 7, [1], [2], [], []) for changes in WIDE]  # type: ignore[arg-type]
    state = SamplingState(len(members), vocab, 8, torch.device("cpu"))
    for slot, row in enumerate(members):
        add(state, slot, row)
    logits = random_logits(generator, len(members), vocab)
    positions = torch.full((len(members),), 2)
    output = Sampler().sample(torch.from_numpy(logits), state.batch(np.arange(len(members))), positions)
    for row, values, token in zip(members, logits, output.token_ids.tolist(), strict=True):
        arguments: Any = list(values)
        assert token == reference_token(row, arguments)
