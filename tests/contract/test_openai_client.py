"""The official ``openai`` client against a live server with a real model."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

MODEL = "SmolLM2-135M-Instruct"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def test_a_chat_answers_with_usage(client: OpenAI) -> None:
    answer = client.chat.completions.create(messages=FRANCE, **GREEDY)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_chat_stream_joins_to_the_plain_answer(client: OpenAI) -> None:
    plain = client.chat.completions.create(messages=FRANCE, **GREEDY)
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(
        messages=FRANCE, stream=True, stream_options={"include_usage": True}, **GREEDY
    ):
        if chunk.usage is not None:
            usage = chunk.usage
            assert chunk.choices == []
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert (text, finish) == (plain.choices[0].message.content, plain.choices[0].finish_reason)
    assert usage is not None and plain.usage is not None
    assert usage.completion_tokens == plain.usage.completion_tokens


def test_the_stream_helper_gathers_the_same_answer(client: OpenAI) -> None:
    # The helper refuses answers that end by length, so these end at a full stop.
    body: dict[str, Any] = {**GREEDY, "messages": FRANCE, "n": 2, "seed": 5, "temperature": 0.7, "max_tokens": 200}
    plain = client.chat.completions.create(stop=".", **body)
    with client.chat.completions.stream(stop=".", **body) as stream:
        for _ in stream:
            pass
        gathered = stream.get_final_completion()
    texts = [choice.message.content for choice in plain.choices]
    assert [choice.message.content for choice in gathered.choices] == texts


def test_the_default_template_makes_31_tokens_of_hi_as_text_and_as_parts(client: OpenAI) -> None:
    contents: list[Any] = ["hi", [{"type": "text", "text": "hi"}]]
    answers = [
        client.chat.completions.create(messages=[{"role": "user", "content": content}], **GREEDY)
        for content in contents
    ]
    assert [answer.usage and answer.usage.prompt_tokens for answer in answers] == [31, 31]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_chat_logprobs_are_typed_and_sorted(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=FRANCE, logprobs=True, top_logprobs=3, seed=1, **GREEDY | {"temperature": 2}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    for entry in logprobs.content:
        values = [best.logprob for best in entry.top_logprobs]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert entry.logprob <= values[0]


def test_echoed_logprobs_cover_the_prompt(client: OpenAI) -> None:
    body = {**GREEDY, "max_tokens": 1, "prompt": "Rivers run north", "echo": True, "logprobs": 1}
    choice = client.completions.create(**body).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None and choice.logprobs.tokens[:4] == ["R", "ivers", " run", " north"]
    assert choice.logprobs.text_offset == [0, 1, 6, 10, 16]
    values: list[Any] = choice.logprobs.token_logprobs or []
    assert values[0] is None and all(value < 0 for value in values[1:])
    scored = client.completions.create(**body | {"max_tokens": 0}).choices[0]
    assert scored.text == "Rivers run north" and scored.logprobs is not None
    assert scored.logprobs.token_logprobs == values[:4]


def test_completions_take_texts_and_token_ids(client: OpenAI) -> None:
    # 19556 is "Hello", 905 is " world".
    prompts: list[Any] = ["Hello world", ["Hello world"], [19556, 905], [[19556, 905]]]
    texts = [client.completions.create(prompt=prompt, **GREEDY).choices[0].text for prompt in prompts]
    assert len(set(texts)) == 1 and texts[0]


def test_several_prompts_stream_under_their_own_indices(client: OpenAI) -> None:
    body: dict[str, Any] = {
        **GREEDY,
        "prompt": ["One two", "Red"],
        "n": 2,
        "seed": 7,
        "temperature": 1,
        "max_tokens": 5,
    }
    plain = client.completions.create(**body)
    texts: dict[int, str] = {}
    for chunk in client.completions.create(stream=True, **body):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {choice.index: choice.text for choice in plain.choices}
    assert sorted(texts) == [0, 1, 2, 3]
    assert plain.usage is not None and plain.usage.completion_tokens == 20


def test_a_stop_token_ends_after_one_token_without_its_text(client: OpenAI) -> None:
    # 4528 is " London".
    body: dict[str, Any] = {**GREEDY, "prompt": "Hello", "logit_bias": {"4528": 100}}
    answer = client.completions.create(extra_body={"stop_token_ids": [4528]}, **body)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")
    assert answer.usage is not None and answer.usage.completion_tokens == 1
    kept = client.completions.create(extra_body={"stop_token_ids": [4528], "include_stop_str_in_output": True}, **body)
    assert kept.choices[0].text == " London"


@pytest.mark.parametrize("prompt", [[49152], [-1], [504, 10000000], [9223372036854775808], [[504], [49152]], [], [[]]])
def test_bad_token_ids_raise_the_clients_bad_request_error(client: OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(prompt=prompt, **GREEDY)
    assert raised.value.param == "prompt"
    assert client.completions.create(prompt=[49151], **GREEDY).choices


@pytest.mark.parametrize(
    ("length", "max_tokens", "numbers"),
    [(511, 2, ("512", "511", "2")), (512, 1, ("512",)), (512, None, ("512",)), (600, None, ("512", "600"))],
)
def test_the_context_limit_is_told_with_its_numbers(
    client: OpenAI, length: int, max_tokens: int | None, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt=" a" * length, max_tokens=max_tokens)
    assert raised.value.code == "context_length_exceeded"
    assert all(number in str(raised.value) for number in numbers)


def test_a_prompt_that_just_fits_is_served(client: OpenAI) -> None:
    full = client.completions.create(model=MODEL, prompt=" a" * 511, max_tokens=1)
    assert full.usage is not None
    assert (full.usage.completion_tokens, full.choices[0].finish_reason) == (1, "length")
    rest = client.completions.create(model=MODEL, prompt=" a" * 506, extra_body={"ignore_eos": True})
    assert rest.usage is not None and rest.usage.completion_tokens == 6


def test_an_unknown_model_and_an_unknown_path_raise_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(messages=FRANCE, **GREEDY | {"model": "gpt-x"})
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(model=MODEL, input="a")


def test_metrics_agree_with_the_usages(client: OpenAI, server_url: str) -> None:
    def total(name: str) -> float:
        lines = httpx.get(f"{server_url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"octavo:{name}{{"))

    names = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
    before = [total(name) for name in names]
    answers = [
        client.chat.completions.create(messages=FRANCE, n=n, seed=1, **GREEDY | {"temperature": 0.5}) for n in (1, 3)
    ]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    grown = [total(name) - value for name, value in zip(names, before, strict=True)]
    assert grown == [
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        len(usages),
    ]


def test_leaving_a_stream_early_frees_the_server(client: OpenAI, server_url: str) -> None:
    with client.chat.completions.create(
        messages=FRANCE, stream=True, extra_body={"ignore_eos": True}, **GREEDY | {"max_tokens": 400}
    ) as stream:
        next(iter(stream))
    for _ in range(100):
        metrics = httpx.get(f"{server_url}/metrics").text
        running = [line for line in metrics.splitlines() if line.startswith("octavo:num_requests_running{")]
        if running[0].endswith(" 0.0"):
            break
    else:
        raise AssertionError(running)
    assert 'finished_reason="abort"' in metrics
