"""Chat completions over HTTP: shapes of streams and of plain answers, on an engine that plays given tokens."""

import pytest
from stub_app import CHAT, HI, MODEL, StubApp, check_error, join_chunks, run, strict_json
from stub_engine import EOS, StubEngine, make_tokenizer


def chat(engine: StubEngine | None = None, **fields: object) -> dict:
    """The plain answer to a request that must succeed."""
    response = run(StubApp(engine).post(CHAT, {"messages": HI, **fields}))
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def stream(engine: StubEngine | None = None, **fields: object) -> list[dict]:
    """The chunks of a stream that must succeed."""
    return run(StubApp(engine).events(CHAT, {"messages": HI, **fields}))


def test_plain_answer_has_the_reference_shape() -> None:
    answer = chat()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL
    assert isinstance(answer["created"], int)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    usage = answer["usage"]
    # "Hell", "o", " world" and the end token.
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def test_every_chunk_of_a_stream_has_what_strict_clients_need() -> None:
    events = stream(max_tokens=6)
    assert {(event["id"], event["created"], event["model"], event["object"]) for event in events} == {
        (events[0]["id"], events[0]["created"], MODEL, "chat.completion.chunk")
    }
    choices = [choice for event in events for choice in event["choices"]]
    assert all({"index", "delta", "finish_reason"} <= set(choice) for choice in choices)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    for choice in choices[1:]:
        assert "role" not in choice["delta"]
        assert isinstance(choice["delta"].get("content", ""), str)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello world"


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
def test_no_usage_appears_in_a_stream_unless_asked_for(options: dict | None) -> None:
    for event in stream(stream_options=options):
        assert event["choices"] and "usage" not in event


def test_usage_is_one_last_chunk_with_empty_choices() -> None:
    events = stream(stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == chat()["usage"]
    assert all(event["usage"] is None and event["choices"] for event in events[:-1])


def test_continuous_usage_counts_up_in_every_chunk() -> None:
    events = stream(stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [1, 1, 2, 3, 4, 4]


@pytest.mark.parametrize("options", [{"include_usage": True}, {}])
def test_stream_options_without_stream_are_refused(options: dict) -> None:
    response = run(StubApp().post(CHAT, {"messages": HI, "stream_options": options}))
    check_error(response, 400, "stream_options")


def test_each_of_n_choices_has_its_role_its_index_and_one_end() -> None:
    tokenizer = make_tokenizer()
    texts = ["one", "two!", "Hello"]
    engine = StubEngine(plays=lambda ids, params, index: tokenizer.encode(texts[index]))
    events = stream(engine, n=3, seed=7)
    roles = [c["index"] for event in events for c in event["choices"] if "role" in c["delta"]]
    ends = [c["index"] for event in events for c in event["choices"] if c["finish_reason"]]
    assert roles == [0, 1, 2] and sorted(ends) == [0, 1, 2]
    assert {index: choice.text for index, choice in join_chunks(events).items()} == dict(enumerate(texts))


def test_logprobs_list_the_best_tokens_from_high_to_low() -> None:
    for content in (
        chat(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"],
        join_chunks(stream(logprobs=True, top_logprobs=2))[0].logprobs,
    ):
        assert [entry["token"] for entry in content] == ["Hell", "o", " world", "<|im_end|>"]
        for entry in content:
            values = [best["logprob"] for best in entry["top_logprobs"]]
            assert len(values) == 2 and values == sorted(values, reverse=True)
            assert entry["bytes"] == list(entry["token"].encode())
            same = [best for best in entry["top_logprobs"] if best["token"] == entry["token"]]
            assert all(best["logprob"] == entry["logprob"] for best in same)


def test_logprobs_without_top_logprobs_have_no_alternatives() -> None:
    logprobs = chat(logprobs=True)["choices"][0]["logprobs"]
    content = logprobs["content"]
    choices = [choice for event in stream(logprobs=True) for choice in event["choices"] if "logprobs" in choice]
    assert all(told["refusal"] is None for told in (logprobs, *(choice["logprobs"] for choice in choices)))
    assert len(content) == 4 and all(entry["top_logprobs"] == [] for entry in content)


def test_minus_infinity_is_told_as_a_floor_that_json_can_say() -> None:
    content = chat(logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    lowest = [entry["top_logprobs"][-1]["logprob"] for entry in content]
    assert lowest == [-9999.0] * 4
    assert all(entry["logprob"] > -9999.0 for entry in content)


def test_top_logprobs_need_logprobs_and_keep_to_the_limit() -> None:
    for fields in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
        check_error(run(StubApp().post(CHAT, {"messages": HI, **fields})), 400, "top_logprobs")


def test_a_stop_string_over_several_tokens_never_shows_in_any_chunk() -> None:
    engine = StubEngine(text="Nine small boats sail")
    for stop in (["all bo"], ["zzz", "all bo"], "all bo"):
        answer = chat(engine, stop=stop)["choices"][0]
        assert (answer["message"]["content"], answer["finish_reason"]) == ("Nine sm", "stop")
        assert answer["stop_reason"] == "all bo"
        joined = join_chunks(stream(engine, stop=stop))[0]
        assert (joined.text, joined.finish_reason, joined.stop_reason) == ("Nine sm", "stop", "all bo")


@pytest.mark.parametrize(("stop", "max_tokens"), [(["efgh"], None), (["efgh"], 5), (["x" * 200], None)])
def test_text_held_back_for_a_stop_string_comes_before_the_end(stop: list[str], max_tokens: int | None) -> None:
    engine = StubEngine(text="abcdef")
    joined = join_chunks(stream(engine, stop=stop, max_tokens=max_tokens))[0]
    plain = chat(engine, stop=stop, max_tokens=max_tokens)["choices"][0]
    assert joined.text == plain["message"]["content"] == "abcdef"[:max_tokens]
    assert joined.finish_reason == plain["finish_reason"] == ("stop" if max_tokens is None else "length")


def test_a_stop_token_is_named_and_an_end_token_is_not() -> None:
    tokenizer = make_tokenizer()
    hello = tokenizer.encode("Hello world")
    engine = StubEngine(plays=lambda ids, params, index: [*hello, 1])
    by_id = chat(engine, stop_token_ids=[1])["choices"][0]
    assert (by_id["message"]["content"], by_id["finish_reason"], by_id["stop_reason"]) == ("Hello world", "stop", 1)
    by_end = chat(StubEngine(plays=lambda ids, params, index: [*hello, EOS]))["choices"][0]
    assert (by_end["message"]["content"], by_end["stop_reason"]) == ("Hello world", None)


def test_characters_over_several_tokens_stream_whole() -> None:
    text = "naïve 🧭🧭 漢字 👨‍👩‍👧‍👦 end"
    events = stream(StubEngine(text=text))
    pieces = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text == chat(StubEngine(text=text))["choices"][0]["message"]["content"]


def test_text_parts_are_joined_with_a_newline() -> None:
    app = StubApp()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    run(app.post(CHAT, {"messages": [{"role": "system", "content": parts}, {"role": "user", "content": parts[:1]}]}))
    run(app.post(CHAT, {"messages": [{"role": "system", "content": "one\ntwo"}, {"role": "user", "content": "one"}]}))
    assert app.engine.started[0][1] == app.engine.started[1][1]


def test_what_the_model_once_refused_is_said_again_as_text() -> None:
    app = StubApp()
    part = {"type": "refusal", "refusal": "I cannot."}
    for path, name, said in (
        (CHAT, "messages", {"content": [part]}),
        (CHAT, "messages", {"content": None, "refusal": "I cannot."}),
        (CHAT, "messages", {"content": "I cannot."}),
        ("/v1/responses", "input", {"content": [part]}),
    ):
        response = run(app.post(path, {name: [*HI, {"role": "assistant", **said}, *HI]}))
        assert response.status_code == 200 and "x-octavo-ignored-fields" not in response.headers
    assert len({tuple(ids) for _, ids, _ in app.engine.started}) == 1
    open_turn = {"messages": [*HI, {"role": "assistant", "refusal": "I can"}], "continue_final_message": True}
    answer = strict_json(run(app.post(CHAT, open_turn | {"echo": True})).content)
    assert answer["choices"][0]["message"]["content"] == "I canHello world"
    broken = {"role": "assistant", "content": [{"type": "refusal"}]}
    check_error(run(app.post(CHAT, {"messages": [broken]})), 400, "messages[0].content[0].type")


@pytest.mark.parametrize(
    ("message", "param", "word"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "[0].content[0]",
            "image_url",
        ),
        ({"role": "user", "content": [{"type": "hologram"}]}, "[0].content[0]", "hologram"),
        ({"role": "user", "content": [{"type": "text"}]}, "[0].content[0].text", "text"),
        ({"role": "user", "content": []}, "[0].content", "part"),
        ({"role": "user", "content": 5}, "[0].content", "int"),
        ({"role": "user", "content": None}, "[0].content", "required"),
        ({"role": "user"}, "[0].content", "required"),
        ({"role": "wizard", "content": "hi"}, "[0].role", "wizard"),
        ({"content": "hi"}, "[0].role", "required"),
    ],
)
def test_a_bad_message_is_refused_naming_it(message: dict, param: str, word: str) -> None:
    error = check_error(run(StubApp().post(CHAT, {"messages": [message]})))
    assert param in error["param"] and word in error["message"]


def test_what_the_template_refuses_is_a_400_with_its_own_words() -> None:
    app = StubApp()
    for streamed in (False, True):
        body = {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}], "stream": streamed}
        assert "a tool cannot speak first" in check_error(run(app.post(CHAT, body)))["message"]
    assert run(app.post(CHAT, {"messages": HI})).status_code == 200


STRICT_TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- message.content }}
{%- endfor %}"""


@pytest.mark.parametrize("streamed", [False, True])
def test_a_template_that_wants_a_certain_conversation_is_heard(
    streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_templates["default"] = STRICT_TEMPLATE
    app = StubApp(StubEngine(tokenizer=tokenizer))
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    for messages, words in (
        ([system, user], "no system role here"), ([user, user], "roles must alternate"),
        ([{"role": "developer", "content": "s"}, user], "no system role here"),
        ([{"role": "wizard", "content": "w"}], "wizard"),
    ):  # fmt: skip
        response = run(app.post(CHAT, {"messages": messages, "stream": streamed}))
        assert words in check_error(response)["message"] and "Traceback" not in response.text
    assert "Traceback" not in caplog.text and app.engine.started == []
    assert run(app.post(CHAT, {"messages": [user], "stream": streamed})).status_code == 200


def test_developer_is_the_system_role_and_names_and_calls_reach_the_template() -> None:
    app = StubApp()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
    ]
    assert run(app.post(CHAT, {"messages": messages})).status_code == 200
    text = app.engine.tokenizer.decode(app.engine.started[0][1], skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nbe brief")


def test_continue_final_message_leaves_the_last_turn_open_and_echo_repeats_it() -> None:
    messages = [*HI, {"role": "assistant", "content": "Well, "}]
    app = StubApp()
    response = run(app.post(CHAT, {"messages": messages, "continue_final_message": True, "echo": True}))
    assert strict_json(response.content)["choices"][0]["message"]["content"] == "Well, Hello world"
    text = app.engine.tokenizer.decode(app.engine.started[0][1], skip_special_tokens=False)
    assert text.endswith("Well, ")
    both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    check_error(run(app.post(CHAT, both)), 400, "continue_final_message")


def test_token_ids_are_returned_on_request() -> None:
    engine = StubEngine()
    answer = chat(engine, return_token_ids=True)
    assert answer["prompt_token_ids"] == engine.started[0][1]
    assert answer["choices"][0]["token_ids"][-1] == EOS
    events = stream(StubEngine(), return_token_ids=True)
    assert join_chunks(events)[0].token_ids == answer["choices"][0]["token_ids"]
    assert events[0]["prompt_token_ids"] == answer["prompt_token_ids"]


def test_prompt_logprobs_have_one_entry_per_prompt_token() -> None:
    answer = chat(prompt_logprobs=1)
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None and answer["prompt_logprobs"][1]
    assert stream(prompt_logprobs=1)[0]["prompt_logprobs"] == answer["prompt_logprobs"]


def test_max_completion_tokens_wins_and_its_absence_leaves_the_rest_of_the_context() -> None:
    engine = StubEngine()
    app = StubApp(engine)
    run(app.post(CHAT, {"messages": HI, "max_tokens": 3, "max_completion_tokens": 2}))
    run(app.post(CHAT, {"messages": HI}))
    assert [params.max_tokens for _, _, params in engine.started] == [2, None]


def test_absent_fields_take_the_models_own_defaults_and_given_ones_win() -> None:
    engine = StubEngine(default_sampling={"temperature": 0.6, "top_k": 20})
    app = StubApp(engine)
    run(app.post(CHAT, {"messages": HI}))
    run(app.post(CHAT, {"messages": HI, "temperature": 0, "top_k": None, "top_p": 0.5}))
    first, second = (params for _, _, params in engine.started)
    assert (first.temperature, first.top_k, first.top_p) == (0.6, 20, 1.0)
    assert (second.temperature, second.top_k, second.top_p) == (0.0, 20, 0.5)


def test_every_sampling_field_reaches_the_engine() -> None:
    engine = StubEngine()
    fields = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.25,
        "frequency_penalty": 0.5, "repetition_penalty": 1.5, "seed": 7, "max_tokens": 9, "min_tokens": 2,
        "stop_token_ids": [9], "include_stop_str_in_output": True, "ignore_eos": True, "allowed_token_ids": [3, 4],
        "bad_words": ["x"], "prompt_logprobs": 1, "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "priority": -1,
    }  # fmt: skip
    body = {"messages": HI, "logit_bias": {"12": -5.5}, "stop": "q", "cache_salt": "s", **fields}
    response = run(StubApp(engine).post(CHAT, body))
    assert response.status_code == 200, response.text
    params = engine.started[0][2]
    for name, value in fields.items():
        assert getattr(params, name) == value, name
    assert (params.logit_bias, params.stop, engine.salts) == ({12: -5.5}, ["q"], ["s"])


def test_request_ids_come_back_in_the_answer_and_in_the_header() -> None:
    app = StubApp()
    response = run(app.post(CHAT, {"messages": HI, "request_id": "abc"}, {"x-request-id": "trace-1"}))
    assert strict_json(response.content)["id"] == "chatcmpl-abc"
    assert response.headers["x-request-id"] == response.headers["request-id"] == "trace-1"
    name = app.engine.started[0][0]
    assert name.startswith("chatcmpl-abc-") and len(name) > len("chatcmpl-abc-")
    unusable = run(app.post(CHAT, {"messages": HI}, {"x-request-id": "has spaces"}))
    assert unusable.headers["x-request-id"] not in ("", "has spaces")
    check_error(run(app.post(CHAT, {"messages": HI, "request_id": "two\nlines"})), 400, "request_id")
