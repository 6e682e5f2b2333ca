"""Everything a caller can get wrong is refused at the door, with the name of the field."""

from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from checkpoints import VOCAB_SIZE
from hypothesis import given
from hypothesis import strategies as st
from scripted_transport import text_config, text_tokenizer

from octavo.core.engine_input import EngineCoreRequest
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.input_processor import InputProcessor, PreparedRequest
from octavo.engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return text_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def door(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(text_config(), tokenizer)


def prepare(door: InputProcessor, prompt: Any, **params: Any) -> PreparedRequest:
    return door.prepare(prompt, SamplingParams(**params))


def forced(**fields: Any) -> SamplingParams:
    """Parameters with values of types that construction does not look at."""
    params = SamplingParams(max_tokens=4)
    for name, value in fields.items():
        msgspec.structs.force_setattr(params, name, value)
    return params


# The context of 256 tokens.


def test_the_last_token_of_the_context_can_be_used(door: InputProcessor) -> None:
    assert prepare(door, [5] * 255, max_tokens=1).message.max_total_tokens == 256


def test_one_token_more_than_the_context_is_refused_with_all_the_numbers(door: InputProcessor) -> None:
    with pytest.raises(ContextLengthError, match=r"256 .* 255 .*\b2 more") as caught:
        prepare(door, [5] * 255, max_tokens=2)
    assert caught.value.param == "max_tokens"
    assert caught.value.code == "context_length_exceeded"


def test_a_prompt_that_fills_the_context_is_refused(door: InputProcessor) -> None:
    with pytest.raises(ContextLengthError, match="256 tokens") as caught:
        prepare(door, [5] * 256, max_tokens=1)
    assert caught.value.param == "prompt"


def test_without_max_tokens_the_rest_of_the_context_is_used(door: InputProcessor) -> None:
    request = prepare(door, [5] * 250, max_tokens=None)
    assert request.message.max_total_tokens - len(request.prompt_token_ids) == 6


def test_a_context_cut_by_the_engine_counts(door: InputProcessor) -> None:
    door.max_model_len = 64
    with pytest.raises(ContextLengthError, match="64"):
        prepare(door, [5] * 60, max_tokens=5)
    assert prepare(door, [5] * 60, max_tokens=4).message.max_total_tokens == 64


def test_min_tokens_above_what_can_be_generated_is_refused(door: InputProcessor) -> None:
    with pytest.raises(RequestError, match="min_tokens is 7, but only 6") as caught:
        prepare(door, [5] * 250, max_tokens=None, min_tokens=7)
    assert caught.value.param == "min_tokens"


# Prompts.


@pytest.mark.parametrize(
    "prompt",
    [
        [VOCAB_SIZE], [-1], [True], [1.0], [5, None], ["5"], [2**31], [2**70], [np.int64(5)], [[5]],
        (5, VOCAB_SIZE), {"prompt_token_ids": [VOCAB_SIZE]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_token_id_is_refused_and_named(door: InputProcessor, prompt: Any) -> None:
    with pytest.raises(RequestError, match=f"a token id from 0 to {VOCAB_SIZE - 1} is expected") as caught:
        prepare(door, prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", ["", [], (), {"prompt": ""}, {"prompt_token_ids": []}], ids=repr)
def test_an_empty_prompt_is_refused(door: InputProcessor, prompt: Any) -> None:
    with pytest.raises(RequestError, match="the prompt is empty") as caught:
        prepare(door, prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "prompt",
    [
        5, 1.5, None, b"abc", bytearray(b"abc"), {5}, iter([5]), {}, {"text": "hi"}, {"prompt": 5},
        {"prompt": 5, "prompt_token_ids": [5]}, {"prompt_token_ids": "5"}, {"prompt_token_ids": {5: 6}},
        {"prompt_token_ids": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_prompt_is_refused(door: InputProcessor, prompt: Any) -> None:
    with pytest.raises(RequestError, match="prompt") as caught:
        prepare(door, prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [[5, 6], (5, 6), range(5, 7), array("i", [5, 6])], ids=repr)
def test_any_sequence_of_ids_is_a_prompt(door: InputProcessor, prompt: Any) -> None:
    assert prepare(door, prompt).prompt_token_ids == [5, 6]


def test_text_and_its_ids_may_come_together(door: InputProcessor, tokenizer: Tokenizer) -> None:
    assert prepare(door, "the hat").prompt_token_ids == tokenizer.encode("the hat")
    both = prepare(door, {"prompt": "the hat", "prompt_token_ids": [9]})
    assert (both.prompt, both.prompt_token_ids) == ("the hat", [9])


def test_half_a_surrogate_pair_is_broken_text_like_any_other(door: InputProcessor, tokenizer: Tokenizer) -> None:
    assert prepare(door, "a\ud83d").prompt_token_ids == tokenizer.encode("a\ufffd")


def test_a_prompt_cannot_be_changed_from_outside(door: InputProcessor) -> None:
    mine = [5, 6]
    request = prepare(door, mine)
    mine.append(7)
    assert request.prompt_token_ids == [5, 6]


class CountingTokenizer:
    """Notes whether text was tokenized."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner
        self.num_calls = 0
        self.max_token_characters = inner.max_token_characters
        self.eos_token_id = inner.eos_token_id

    def encode(self, text: str) -> list[int]:
        self.num_calls += 1
        return self.inner.encode(text)


def test_text_that_cannot_fit_is_refused_without_tokenizing_it(tokenizer: Tokenizer) -> None:
    counting = CountingTokenizer(tokenizer)
    door = InputProcessor(text_config(), counting)  # pyright: ignore[reportArgumentType]
    most = 256 * tokenizer.max_token_characters
    with pytest.raises(ContextLengthError, match=rf"256 tokens; .* {most + 1} characters, at least 257 tokens"):
        prepare(door, "x" * (most + 1))
    assert counting.num_calls == 0
    with pytest.raises(ContextLengthError, match="tokens"):
        prepare(door, "x" * most)
    assert counting.num_calls == 1


def test_only_long_text_is_kept_off_the_event_loop(door: InputProcessor) -> None:
    assert door.takes_long("x" * 20_001)
    assert door.takes_long({"prompt": "x" * 20_001})
    assert not door.takes_long("x" * 20_000)
    assert not door.takes_long([5] * 30_000)


def test_without_a_tokenizer_only_ids_are_taken() -> None:
    door = InputProcessor(text_config(), None)
    assert prepare(door, [5]).prompt_token_ids == [5]
    for prompt, params, name in (
        ("text", {}, "prompt"),
        ([5], {"stop": ["x"]}, "stop"),
        ([5], {"bad_words": ["x"]}, "bad_words"),
    ):
        with pytest.raises(RequestError, match="skip_tokenizer_init") as caught:
            prepare(door, prompt, **params)
        assert caught.value.param == name


# Sampling parameters.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", [VOCAB_SIZE]), ("allowed_token_ids", [3, VOCAB_SIZE]), ("logit_bias", {VOCAB_SIZE: 1.0}),
        ("logprobs", 21), ("prompt_logprobs", 21),
    ],
)  # fmt: skip
def test_what_the_model_does_not_have_is_refused(door: InputProcessor, name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        prepare(door, [5], **{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ignore_eos", 1), ("detokenize", "yes"), ("skip_special_tokens", None), ("include_stop_str_in_output", "no"),
        ("spaces_between_special_tokens", 0.0), ("output_kind", 7), ("stop_token_ids", [2**70]), ("temperature", "1"),
        ("stop", ["a", 5]),
    ],
)  # fmt: skip
def test_a_type_that_the_engine_could_not_read_is_refused(door: InputProcessor, name: str, value: Any) -> None:
    with pytest.raises(RequestError):
        door.prepare([5], forced(**{name: value}))


@pytest.mark.parametrize(("name", "value"), [("ignore_eos", 1), ("output_kind", 7), ("detokenize", "yes")])
def test_a_wrong_type_is_named(door: InputProcessor, name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        door.prepare([5], forced(**{name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_parameters_that_are_not_valid_unicode_are_refused(door: InputProcessor, name: str) -> None:
    with pytest.raises(RequestError, match="surrogates"):
        prepare(door, [5], **{name: ["\ud83d"]})


def test_what_is_no_sampling_params_is_refused(door: InputProcessor) -> None:
    with pytest.raises(RequestError, match="not dict") as caught:
        door.prepare([5], {"temperature": 0.0})  # pyright: ignore[reportArgumentType]
    assert caught.value.param == "sampling_params"


@pytest.mark.parametrize("salt", [5, b"x", "\ud83d"], ids=repr)
def test_a_cache_salt_must_be_text(door: InputProcessor, salt: Any) -> None:
    with pytest.raises(RequestError, match="cache_salt") as caught:
        door.prepare([5], SamplingParams(), salt)
    assert caught.value.param == "cache_salt"


# End tokens.


def test_ignore_eos_leaves_no_end_token(tokenizer: Tokenizer) -> None:
    door = with_end_tokens([2, 7], tokenizer)
    assert prepare(door, [5]).message.eos_token_ids == [2, 7]
    assert prepare(door, [5], ignore_eos=True).message.eos_token_ids == []


def test_end_tokens_outside_of_the_vocabulary_and_repeated_ones_are_dropped(tokenizer: Tokenizer) -> None:
    assert prepare(with_end_tokens([7, 2, 7, VOCAB_SIZE, -1], tokenizer), [5]).message.eos_token_ids == [2, 7]


def test_the_tokenizers_end_token_serves_a_model_that_names_none(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    assert prepare(with_end_tokens([], tokenizer), [5]).message.eos_token_ids == [tokenizer.eos_token_id]
    assert not caplog.records
    assert prepare(with_end_tokens([], None), [5]).message.eos_token_ids == []
    assert "no end token" in caplog.text


def with_end_tokens(ids: list[int], tokenizer: Tokenizer | None) -> InputProcessor:
    config = text_config()
    model = msgspec.structs.replace(config.model, eos_token_ids=ids)
    return InputProcessor(msgspec.structs.replace(config, model=model), tokenizer)


# Seeds and messages.


def messages_of(request: PreparedRequest) -> list[EngineCoreRequest]:
    return [request.core_request("r", 10 + index, index) for index in range(request.params.n)]


def test_each_completion_has_a_seed_and_a_name_of_its_own(door: InputProcessor) -> None:
    messages = messages_of(prepare(door, [5], n=3, seed=40))
    assert [message.seed for message in messages] == [40, 41, 42]
    assert [message.request_id for message in messages] == ["r-0", "r-1", "r-2"]
    assert [message.handle for message in messages] == [10, 11, 12]
    assert messages_of(prepare(door, [5]))[0].request_id == "r"


@pytest.mark.parametrize("seed", [2**64 - 1, 2**63 - 1, -(2**63), 0, -1])
def test_seeds_at_the_edges_of_64_bits_can_be_sent_and_differ(door: InputProcessor, seed: int) -> None:
    seeds = []
    for message in messages_of(prepare(door, [5], n=4, seed=seed)):
        data = msgspec.msgpack.encode(message)
        seeds.append(msgspec.msgpack.decode(data, type=EngineCoreRequest).seed)
    # What the sampler makes of them.
    assert [(given - seed) % 2**64 for given in seeds] == [0, 1, 2, 3]


def test_requests_without_a_seed_get_different_ones_the_same_in_every_run(tokenizer: Tokenizer) -> None:
    first, again = (InputProcessor(text_config(), tokenizer) for _ in range(2))
    seeds = [prepare(first, [5]).message.seed for _ in range(50)]
    assert len(set(seeds)) == 50
    assert seeds == [prepare(again, [5]).message.seed for _ in range(50)]
    other_client = InputProcessor(text_config(), tokenizer, client_index=1)
    assert seeds[0] != prepare(other_client, [5]).message.seed


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40), st.integers(1, 200))
def test_a_request_survives_the_way_to_the_engine(tmp_path_factory: Any, ids: list[int], max_tokens: int) -> None:
    door = InputProcessor(text_config(), None)
    request = door.prepare(ids, SamplingParams(max_tokens=max_tokens, logit_bias={3: -1.0}, seed=9), "salt")
    sent = request.core_request("r", 3, 0)
    got = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=EngineCoreRequest)
    assert got == sent
    assert np.frombuffer(got.prompt_token_ids, dtype=np.int32).tolist() == ids
    assert got.max_total_tokens == len(ids) + max_tokens


def test_bad_words_become_token_ids(door: InputProcessor) -> None:
    words = prepare(door, [5], bad_words=["hat"]).message.bad_words
    assert words
    assert all(isinstance(token, int) for word in words for token in word)


def test_a_tokenizer_in_a_folder_that_is_gone_is_not_needed_any_more(tmp_path: Path) -> None:
    tokenizer = text_tokenizer(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    assert prepare(InputProcessor(text_config(), tokenizer), "hat").prompt_token_ids
