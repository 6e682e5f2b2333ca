"""What a client can get wrong: each thing is a 4xx in OpenAI's shape, and the server answers as before."""

import importlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stub_app import CHAT, COMPLETIONS, HI, StubApp, check_error, run, strict_json
from stub_engine import StubEngine

BASE = {CHAT: '"messages":[{"role":"user","content":"hi"}]', COMPLETIONS: '"prompt":"hi"'}
PATHS = [CHAT, COMPLETIONS]
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def post_raw(path: str, fields: str, app: StubApp | None = None) -> httpx.Response:
    """POST the endpoint's least body with more fields, as text."""
    return run((app or StubApp()).post(path, ("{" + BASE[path] + "," + fields + "}").encode()))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_numbers_that_are_none_are_refused(path: str, word: str) -> None:
    app = StubApp()
    for name in NUMBERS:
        for stream in ("true", "false"):
            check_error(post_raw(path, f'"stream":{stream},"{name}":{word}', app))
    assert app.engine.started == []
    assert post_raw(path, '"temperature":0', app).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "-0.1"), ("temperature", '"0.5"'), ("temperature", "true"), ("temperature", "[]"),
        ("temperature", "9" * 400), ("top_p", "0"), ("top_p", "1.01"), ("top_p", "-1"), ("top_k", "-2"),
        ("top_k", "1.5"), ("top_k", "9" * 30), ("top_k", "9" * 5000), ("min_p", "-0.1"), ("min_p", "2"),
        ("presence_penalty", "2.1"), ("frequency_penalty", "-2.1"), ("repetition_penalty", "0"),
        ("repetition_penalty", "-1"), ("n", "0"), ("n", "-1"), ("n", "129"), ("n", "1e3"), ("n", '"2"'),
        ("n", "99999999999999999999"), ("max_tokens", "-1"), ("max_tokens", "9" * 20), ("max_tokens", "true"),
        ("max_tokens", "1.5"), ("min_tokens", "-1"), ("min_tokens", "99999999999"), ("seed", '"x"'), ("seed", "1.5"),
        ("seed", "9" * 40), ("stop", "5"), ("stop", "[5]"), ("stop", '[""]'), ("stop", '""'), ("stop", '{"a":1}'),
        ("stop", "[" + ",".join(['"a"'] * 65) + "]"), ("stop_token_ids", "[-1]"), ("stop_token_ids", "[99999]"),
        ("stop_token_ids", '["a"]'), ("stop_token_ids", "5"), ("stop_token_ids", "[" + "9" * 30 + "]"),
        ("allowed_token_ids", "[" + "9" * 30 + "]"), ("logit_bias", '{"x":1}'), ("logit_bias", '{"-1":1}'),
        ("logit_bias", '{"5":101}'), ("logit_bias", '{"5":"a"}'), ("logit_bias", '{"99999":1}'),
        ("logit_bias", '{"1.5":1}'), ("logit_bias", '{"99999999999999":1}'), ("logit_bias", "[]"),
        ("allowed_token_ids", "[]"), ("allowed_token_ids", "[99999]"), ("allowed_token_ids", "[-1]"),
        ("bad_words", "[5]"), ("bad_words", '[""]'), ("prompt_logprobs", "-1"), ("prompt_logprobs", "21"),
        ("prompt_logprobs", "true"), ("priority", "9999999999"), ("priority", '"high"'), ("stream", '"yes"'),
        ("stream", "1"), ("stream_options", "5"), ("stream_options", '{"include_usage":1}'), ("model", "5"),
        ("echo", '"yes"'), ("cache_salt", "5"), ("request_id", '""'), ("request_id", '"a b"'), ("request_id", "5"),
        ("ignore_eos", "1"), ("skip_special_tokens", '"no"'), ("return_token_ids", "0"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_naming_its_field(path: str, name: str, value: str) -> None:
    app = StubApp()
    error = check_error(post_raw(path, f'"{name}":{value}', app))
    assert error["param"] is not None and error["param"].split(".")[0].split("[")[0] == name, error
    assert len(error["message"]) < 500
    assert app.engine.started == []


@pytest.mark.parametrize("path", PATHS)
def test_null_is_the_same_as_leaving_a_field_out(path: str) -> None:
    app = StubApp()
    names = [name for name in app_fields(path) if name not in ("messages", "prompt")]
    response = post_raw(path, ",".join(f'"{name}":null' for name in names), app)
    assert response.status_code == 200, response.text
    assert post_raw(path, '"user":"u"', app).status_code == 200
    assert app.engine.started[0][2] == app.engine.started[1][2]


def app_fields(path: str) -> list[str]:
    """Every known field of an endpoint: offered, without effect and refused."""
    from octavo.api.fields import CHAT_FIELDS, COMPLETION_FIELDS

    fields = CHAT_FIELDS if path == CHAT else COMPLETION_FIELDS
    return sorted(fields.offered | fields.without_effect | fields.refused.keys())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"text"', b"5", b"{}", b'{"a":}', b"\xff\xfe", b'{"\xff":1}', b"{'a':1}",
        b"\xef\xbb\xbf{}", b'{"a":1}{"b":2}', b'{"x":' + b"[" * 100_000 + b"}", b'{"a":' * 50_000, b"\x00" * 100,
        b'{"messages":[{"role":"user","content":"\\ud800"}],"prompt":"\\ud800"}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(path: str, body: bytes) -> None:
    check_error(run(StubApp().post(path, body)))


@pytest.mark.parametrize("messages", ["[]", "null", "5", '"hi"', "{}", "[5]", "[null]", "[[]]"])
def test_messages_must_be_a_list_of_messages(messages: str) -> None:
    error = check_error(run(StubApp().post(CHAT, ('{"messages":' + messages + "}").encode())))
    assert error["param"].startswith("messages")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, '"guided_whitespace_pattern":" "'), (CHAT, '"function_call":"f"'),
        (CHAT, '"modalities":["text","audio"]'), (CHAT, '"audio":{"voice":"x"}'), (CHAT, '"store":true'),
        (CHAT, '"functions":[{"name":"f"}]'), (CHAT, '"best_of":2'),
        (CHAT, '"chat_template":"{{ 1 }}"'),
        (COMPLETIONS, '"suffix":"x"'), (COMPLETIONS, '"best_of":2'), (COMPLETIONS, '"best_of":true'),
        (COMPLETIONS, '"use_beam_search":true'), (COMPLETIONS, '"suffix":NaN'),
        (COMPLETIONS, '"length_penalty":1e400'),
    ],
)  # fmt: skip
def test_a_known_field_that_is_not_offered_is_refused_and_says_so(path: str, fields: str) -> None:
    error = check_error(post_raw(path, fields))
    if "NaN" not in fields and "1e400" not in fields:
        assert error["code"] == "unsupported_parameter" and error["param"] == fields.split('"')[1]
        assert "not supported" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, '"tools":[],"tool_choice":"auto","response_format":{"type":"text"},"modalities":["text"],"store":false'),
        (
            CHAT,
            '"user":"u","metadata":{"a":"b"},"service_tier":"auto","parallel_tool_calls":true,"best_of":1,'
            '"prompt_cache_retention":"24h"',
        ),
        (COMPLETIONS, '"best_of":1,"suffix":null,"length_penalty":1,"use_beam_search":false,"user":"u"'),
    ],
)
def test_a_known_field_whose_value_asks_for_nothing_passes_in_silence(path: str, fields: str) -> None:
    response = post_raw(path, fields)
    assert response.status_code == 200, response.text
    assert "x-octavo-ignored-fields" not in response.headers


def test_an_unknown_field_is_ignored_and_named(caplog: pytest.LogCaptureFixture) -> None:
    for stream in ("true", "false"):
        response = post_raw(CHAT, f'"stream":{stream},"zzz_mode":5,"\\u00e9\\n":1')
        assert response.status_code == 200
        assert response.headers["x-octavo-ignored-fields"] == "zzz_mode, ??"
    assert "zzz_mode" in caplog.text and "\né" not in caplog.text


NESTED = [
    ('"messages":[{"role":"user","content":"hi","zzz":1},{"role":"user","content":"x","zzz":2}]', "messages[0].zzz"),
    ('"messages":[{"role":"user","content":[{"type":"text","text":"hi","mood":"glad"}]}]',
     "messages[0].content[0].mood"),
    ('"stream":true,"stream_options":{"chatty":true}', "stream_options.chatty"),
    ('"response_format":{"type":"text","indent":2}', "response_format.indent"),
    ('"tools":[{"type":"function","function":{"name":"f","color":"red"},"cost":1}],"tool_choice":"none"',
     "tools[0].cost, tools[0].function.color"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), NESTED)
def test_an_unknown_field_within_another_is_named_with_its_place(
    fields: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = fields if "messages" in fields else BASE[CHAT] + "," + fields
    response = run(StubApp(StubEngine(context=4000)).post(CHAT, ("{" + body + "}").encode()))
    assert response.status_code == 200, response.text
    assert response.headers["x-octavo-ignored-fields"] == named
    assert named in caplog.text
    check_error(run(StubApp(strict_fields=True).post(CHAT, ("{" + body + "}").encode())), 400, named.split(",")[0])


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ('"stream":true,"stream_options":{"include_usages":true}', "stream_options.include_usage"),
        ('"response_format":{"type":"json_schema","jsonSchema":{"schema":{}}}', "response_format.json_schema"),
        ('"tools":[{"type":"function","function":{"name":"f","paramters":{"type":"object"}}}]',
         "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_a_slip_within_another_field_is_refused_with_the_name_that_was_meant(fields: str, meant: str) -> None:
    error = check_error(post_raw(CHAT, fields))
    assert error["param"].startswith(meant.rpartition(".")[0]) and f"did you mean {meant!r}" in error["message"]


def test_what_answers_hold_may_be_sent_back_and_names_within_schemas_are_free() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    schema = {"type": "object", "properties": {"contents": {"type": "string"}, "typo": {}}, "titel": "t"}
    body = {
        "messages": [{"role": "user", "content": [part]}, answer | {"tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "c", "content": "1"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": False}}],
        "chat_template_kwargs": {"mesages": 1},
    }  # fmt: skip
    response = run(StubApp(StubEngine(context=4000), strict_fields=True).post(CHAT, body))
    assert response.status_code == 200, response.text
    assert "x-octavo-ignored-fields" not in response.headers


@pytest.mark.parametrize("number", ["16.0", "1e1"])
def test_a_whole_number_must_be_written_as_one(number: str) -> None:
    for name in ("max_tokens", "n", "top_k", "seed"):
        error = check_error(post_raw(CHAT, f'"{name}":{number}'), 400, name)
        assert error["code"] == "invalid_type"


def test_a_slip_is_refused_with_the_name_that_was_meant() -> None:
    for slip, meant in (("temprature", "temperature"), ("maxTokens", "max_tokens"), ("top-p", "top_p")):
        error = check_error(post_raw(CHAT, f'"{slip}":1'), 400, slip)
        assert f"did you mean '{meant}'" in error["message"]


def test_strict_fields_refuse_every_unknown_field() -> None:
    app = StubApp(strict_fields=True)
    assert "--strict-fields" in check_error(post_raw(CHAT, '"zzz_mode":5', app), 400, "zzz_mode")["message"]
    assert post_raw(CHAT, '"top_p":0.5', app).status_code == 200


def test_thousands_of_unknown_fields_are_refused_at_once() -> None:
    check_error(post_raw(CHAT, ",".join(f'"zz{n}q":1' for n in range(5000))))


def test_an_unknown_model_is_a_404_and_every_served_name_works() -> None:
    for path in PATHS:
        error = check_error(post_raw(path, '"model":"gpt-x"'), 404, "model")
        assert error["code"] == "model_not_found" and "stub-model" in error["message"]
        for name in ("stub-model", "other-name"):
            assert strict_json(post_raw(path, f'"model":"{name}"').content)["model"] == name


def test_a_body_over_the_limit_is_a_413_with_and_without_its_length_declared() -> None:
    app = StubApp(max_body_bytes=2000)
    body = b'{"prompt":"' + b"a" * 4000 + b'"}'

    async def chunked() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    async def post_chunked() -> httpx.Response:
        async with app.client() as client:
            return await client.post(COMPLETIONS, content=chunked())

    for response in (run(app.post(COMPLETIONS, body)), run(post_chunked())):
        assert "2000" in check_error(response, 413)["message"]
    assert run(app.post(COMPLETIONS, {"prompt": "a"})).status_code == 200


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [(CHAT, "messages", {}), ("/v1/messages", "messages", {"max_tokens": 5}), ("/v1/responses", "input", {})],
)
def test_more_messages_than_the_context_has_tokens_are_refused_unread(
    path: str, name: str, fields: dict[str, Any]
) -> None:
    unread = [*HI * 256, {"role": "wizard", "content": "a"}]
    response = run(StubApp().post(path, {name: unread, **fields}))
    assert response.status_code == 400 and "maximum context length is 256 tokens" in response.text
    assert "the prompt is too long: it has 257" in response.text
    assert "wizard" in run(StubApp(StubEngine(context=257)).post(path, {name: unread, **fields})).text


@pytest.mark.parametrize(
    ("path", "name", "converters", "fields"),
    [
        (CHAT, "messages", ["context.template_messages"], {}),
        ("/tokenize", "messages", ["context.template_messages"], {}),
        ("/v1/messages/count_tokens", "messages", ["context.template_messages", "messages.endpoints.chat_request"], {}),
        ("/v1/responses", "input", ["responses.endpoints.chat_messages"], {"truncation": "auto"}),
    ],
)
def test_many_messages_are_converted_off_the_event_loop(
    path: str, name: str, converters: list[str], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    for converter in converters:
        module, _, function = f"octavo.api.{converter}".rpartition(".")
        real = getattr(importlib.import_module(module), function)

        def convert(*args: Any, real: Any = real) -> Any:
            threads.append(threading.current_thread())
            return real(*args)

        monkeypatch.setattr(f"octavo.api.{converter}", convert)
    turns = [{"role": role, "content": [{"type": "text", "text": "a"}]} for role in ("user", "assistant")] * 2000
    app = StubApp(StubEngine(context=256 if "truncation" in fields else 100_000))
    assert run(app.post(path, {name: [*turns, *HI], **fields})).status_code == 200
    assert len(threads) == len(converters) and threading.main_thread() not in threads


def test_a_compressed_body_is_refused_and_says_so() -> None:
    response = run(StubApp().post(CHAT, b"{}", {"content-encoding": "gzip"}))
    assert "gzip" in check_error(response)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404), ("GET", "/v1", 404), ("POST", "/v1/chat/completions/", 404), ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405), ("PUT", COMPLETIONS, 405), ("GET", "/v1/models/unknown/model", 404),
        ("GET", "//v1/models", 404), ("POST", "/health", 405),
    ],
)  # fmt: skip
def test_wrong_paths_and_methods_are_told_in_the_same_shape(method: str, path: str, status: int) -> None:
    async def request() -> httpx.Response:
        async with StubApp().client() as client:
            return await client.request(method, httpx.URL(f"http://stub{path}"))

    check_error(run(request()), status)


@pytest.mark.parametrize(
    "variables",
    [{"messages": []}, {"self": 1}, {"tools": 1}, {"add_generation_prompt": 1}, {"continue_final_message": 1}],
)
def test_template_variables_cannot_take_the_place_of_fields(variables: dict) -> None:
    check_error(
        run(StubApp().post(CHAT, {"messages": HI, "chat_template_kwargs": variables})), 400, "chat_template_kwargs"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_json_at_all_makes_a_500(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([CHAT, COMPLETIONS, "/tokenize", "/detokenize"]))
    names = st.sampled_from([*app_fields(CHAT), *app_fields(COMPLETIONS), "tokens"])
    body: dict[str, Any] = data.draw(st.dictionaries(names, JSON, max_size=5))
    base = {
        CHAT: {"messages": HI},
        COMPLETIONS: {"prompt": "hi"},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [3]},
    }
    response = run(StubApp(StubEngine(context=64)).post(path, base[path] | body if data.draw(st.booleans()) else body))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        check_error(response, response.status_code)
