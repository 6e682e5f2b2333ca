"""Text completions over HTTP, on an engine that plays given tokens."""

from typing import Any

import pytest
from stub_app import COMPLETIONS, StubApp, check_error, join_chunks, run, strict_json
from stub_engine import START, StubEngine, make_tokenizer
from tokenizers.processors import TemplateProcessing


def complete(engine: StubEngine | None = None, **fields: Any) -> dict:
    """The plain answer to a request that must succeed."""
    response = run(StubApp(engine).post(COMPLETIONS, fields))
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def stream(engine: StubEngine | None = None, **fields: Any) -> list[dict]:
    """The chunks of a stream that must succeed."""
    return run(StubApp(engine).events(COMPLETIONS, fields))


def by_prompt_and_number(ids: list[int], params: Any, index: int) -> list[int]:
    """Another text for every prompt and choice."""
    return make_tokenizer().encode(f"{len(ids)}.{index}")


def test_plain_answer_has_the_reference_shape() -> None:
    answer = complete(prompt="ab")
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert answer["usage"]["prompt_tokens"] == 2


def test_indices_count_prompt_by_prompt_and_usage_counts_each_prompt_once() -> None:
    answer = complete(StubEngine(plays=by_prompt_and_number), prompt=["ab", "xyz"], n=2)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "2.0"),
        (1, "2.1"),
        (2, "3.0"),
        (3, "3.1"),
    ]
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 4 * 4
    events = stream(
        StubEngine(plays=by_prompt_and_number), prompt=["ab", "xyz"], n=2, stream_options={"include_usage": True}
    )
    joined = join_chunks(events[:-1])
    assert {index: choice.text for index, choice in joined.items()} == {0: "2.0", 1: "2.1", 2: "3.0", 3: "3.1"}
    assert events[-1]["usage"] == answer["usage"] and events[-1]["choices"] == []


def test_texts_and_token_ids_make_the_same_prompts() -> None:
    engine = StubEngine()
    app = StubApp(engine)
    ids = engine.tokenizer.encode("Hello")
    for prompt in ("Hello", ["Hello"], ids, [ids]):
        assert run(app.post(COMPLETIONS, {"prompt": prompt})).status_code == 200
    assert [started[1] for started in engine.started] == [ids] * 4
    run(app.post(COMPLETIONS, {"prompt": [ids, [5, 6]]}))
    assert sorted(started[1] for started in engine.started[4:]) == sorted([ids, [5, 6]])


@pytest.mark.parametrize(
    ("prompt", "value"),
    [
        ([10**6], "1000000"),
        ([-1], "-1"),
        ([5, 10000000], "10000000"),
        ([9223372036854775808], "9223372036854775808"),
        ([[5], [10**6]], "1000000"),
        ([], "empty"),
        ([[]], "empty"),
        ([[5], []], "empty"),
        ("", "empty"),
        (["a", ""], "empty"),
        ([True], "bool"),
        ([1.5], "float"),
        ([None], "null"),
        (["a", 5], "only"),
        ([[5], "a"], "only"),
        ([[5], 5], "only"),
        ([["a"]], "str"),
        ({"text": "a"}, "object"),
        (5, "int"),
        (None, "null"),
        (["a"] * 1025, "1024"),
    ],
)
def test_a_bad_prompt_is_refused_naming_what_is_wrong_and_nothing_runs(prompt: Any, value: str) -> None:
    app = StubApp()
    error = check_error(run(app.post(COMPLETIONS, {"prompt": prompt})))
    assert error["param"] is not None and error["param"].startswith("prompt")
    assert value in error["message"]
    assert app.engine.started == []
    assert run(app.post(COMPLETIONS, {"prompt": [app.engine.config.model.vocab_size - 1]})).status_code == 200


def test_a_missing_prompt_is_named() -> None:
    error = check_error(run(StubApp().post(COMPLETIONS, {})), 400, "prompt")
    assert error["code"] == "missing_required_parameter"


def test_the_default_length_is_16_or_what_the_context_leaves() -> None:
    engine = StubEngine(context=64)
    app = StubApp(engine)
    for length in (4, 60, 63):
        body = {"prompt": "a" * length, "ignore_eos": True}
        answer = strict_json(run(app.post(COMPLETIONS, body)).content)
        assert answer["usage"]["completion_tokens"] == min(16, 64 - length)
        assert answer["choices"][0]["finish_reason"] == "length"


def test_the_default_length_is_each_prompts_own() -> None:
    answer = complete(StubEngine(context=64), prompt=["a" * 60, "a"], ignore_eos=True, return_token_ids=True)
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [4, 16]


@pytest.mark.parametrize(
    ("length", "max_tokens", "numbers"),
    [(63, 2, ("64", "63", "2")), (64, 1, ("64",)), (64, None, ("64",)), (300, None, ("64", "300"))],
)
def test_a_prompt_over_the_context_is_refused_with_the_real_numbers(
    length: int, max_tokens: int | None, numbers: tuple[str, ...]
) -> None:
    response = run(
        StubApp(StubEngine(context=64)).post(COMPLETIONS, {"prompt": "a" * length, "max_tokens": max_tokens})
    )
    error = check_error(response)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("this model's maximum context length is 64 tokens")  # what clients look for
    assert all(number in error["message"] for number in numbers)


def test_a_huge_text_is_refused_before_it_is_tokenized() -> None:
    engine = StubEngine()
    real, encoded = engine.tokenizer.encode, []
    engine.tokenizer.encode = lambda *args, **kwargs: encoded.append(1) or real(*args, **kwargs)  # type: ignore[method-assign]
    error = check_error(run(StubApp(engine).post(COMPLETIONS, {"prompt": "word " * 600_000})))
    assert error["code"] == "context_length_exceeded" and "256" in error["message"]
    assert encoded == []


def test_a_long_text_far_over_the_context_is_refused_by_its_beginning() -> None:
    engine = StubEngine()
    engine.tokenizer.max_token_characters = 1000
    real, encoded = engine.tokenizer.encode, []
    engine.tokenizer.encode = lambda text, *args, **kwargs: encoded.append(len(text)) or real(text, *args, **kwargs)  # type: ignore[method-assign]
    for text in ("a b" * 1600, "Hell" * 3000):
        encoded.clear()
        error = check_error(run(StubApp(engine).post(COMPLETIONS, {"prompt": text})))
        assert error["code"] == "context_length_exceeded" and "256" in error["message"]
        assert max(encoded) <= 4096 < len(text)


def test_a_huge_list_of_ids_is_refused_by_its_length() -> None:
    error = check_error(run(StubApp().post(COMPLETIONS, {"prompt": [[5] * 100_000]})), 400, "prompt")
    assert error["code"] == "context_length_exceeded" and "100000" in error["message"]


def test_many_texts_keep_their_order_when_they_are_tokenized_together() -> None:
    engine = StubEngine(plays=by_prompt_and_number, context=2000)
    prompts = ["a" * (500 + number) for number in range(40)]
    answer = complete(engine, prompt=prompts)
    assert [choice["text"] for choice in answer["choices"]] == [f"{len(prompt)}.0" for prompt in prompts]


def test_a_long_text_that_may_fit_is_tokenized_in_full() -> None:
    engine = StubEngine(context=40_000)
    assert run(StubApp(engine).post(COMPLETIONS, {"prompt": "a" * 30_000})).status_code == 200
    assert len(engine.started[0][1]) == 30_000


def test_echo_puts_the_prompt_first_whether_text_or_ids() -> None:
    ids = make_tokenizer().encode("Hi ")
    for prompt in ("Hi ", ids):
        assert complete(prompt=prompt, echo=True)["choices"][0]["text"] == "Hi Hello world"
        assert join_chunks(stream(prompt=prompt, echo=True))[0].text == "Hi Hello world"


def test_echo_with_logprobs_covers_prompt_and_answer_with_offsets_from_its_start() -> None:
    engine = StubEngine(text=" world")
    body = {"prompt": "Hello world🧭", "echo": True, "logprobs": 1, "max_tokens": 1}
    plain = complete(engine, **body)["choices"][0]
    lists = plain["logprobs"]
    assert plain["text"] == "Hello world🧭 world"
    # The four bytes of the compass are four tokens that begin inside of one character.
    assert lists["tokens"][:3] == ["Hell", "o", " world"] and lists["tokens"][-1] == " world"
    assert lists["tokens"][3] == "bytes:\\xf0"
    assert lists["text_offset"] == [0, 4, 5, 11, 11, 11, 11, 12]
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in lists["token_logprobs"][1:])
    joined = join_chunks(stream(StubEngine(text=" world"), **body))[0]
    assert (joined.text, joined.lists) == (plain["text"], lists)


@pytest.mark.parametrize(
    ("prompt", "skip", "text", "offsets"),
    [
        ([START, *make_tokenizer().encode("Hello")], True, "Hello world", [0, 0, 4, 5, 5]),
        ([START, *make_tokenizer().encode("Hello")], False, "<|im_start|>Hello<|im_start|> world", [0, 12, 16, 17, 29]),
        # A text is told as it came, with the special tokens that it holds and without those that were added.
        ("Hell<|im_end|>o", True, "Hell<|im_end|>o world", [0, 0, 4, 14, 15, 15]),
    ],
)
def test_offsets_leave_out_the_tokens_that_the_text_leaves_out(
    prompt: Any, skip: bool, text: str, offsets: list[int]
) -> None:
    tokenizer = make_tokenizer()
    world = tokenizer.encode(" world")
    # As the tokenizers of many models do.
    tokenizer._backend.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", START)]
    )
    engine = StubEngine(tokenizer=tokenizer, plays=lambda ids, params, index: [START, *world])
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 2, "skip_special_tokens": skip}
    plain = complete(engine, **body)["choices"][0]
    assert (plain["text"], plain["logprobs"]["text_offset"]) == (text, offsets)
    assert join_chunks(stream(engine, **body))[0].lists == plain["logprobs"]


def test_completion_logprobs_have_one_more_entry_when_the_chosen_token_is_outside_of_the_best() -> None:
    lists = complete(prompt="a", logprobs=2)["choices"][0]["logprobs"]
    for token, value, best in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert best[token] == value
        ranked = list(best.values())
        assert len(best) == 2 or (len(best) == 3 and list(best)[-1] == token)
        assert ranked[:2] == sorted(ranked[:2], reverse=True)


def test_max_tokens_zero_scores_the_prompt_only() -> None:
    body = {"prompt": "Hello", "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = complete(**body)
    assert answer["choices"][0]["text"] == "Hello"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["Hell", "o"]
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)
    joined = join_chunks(stream(**body))[0]
    assert (joined.text, joined.finish_reason) == ("Hello", "length")
    assert joined.lists == answer["choices"][0]["logprobs"]
    check_error(run(StubApp().post(COMPLETIONS, {"prompt": "a", "max_tokens": 0})), 400, "max_tokens")


def test_too_many_completions_in_one_request_are_refused() -> None:
    error = check_error(run(StubApp().post(COMPLETIONS, {"prompt": ["a"] * 1000, "n": 5})), 400, "n")
    assert "4096" in error["message"]


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    engine = StubEngine(tokenizer=None, plays=lambda ids, params, index: [7, 8])
    app = StubApp(engine)
    answer = strict_json(run(app.post(COMPLETIONS, {"prompt": [5], "return_token_ids": True, "logprobs": 1})).content)
    assert answer["choices"][0]["text"] == "" and answer["choices"][0]["token_ids"] == [7, 8, 2]
    assert answer["choices"][0]["logprobs"]["tokens"][0] == "token_id:7"
    assert "tokenizer" in check_error(run(app.post(COMPLETIONS, {"prompt": "a"})))["message"]
    check_error(
        run(app.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})), 400, "messages"
    )
