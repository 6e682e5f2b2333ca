"""The Messages API over HTTP: shapes of streams and of plain answers, on an engine that plays given tokens."""

import asyncio

import httpx
import pytest
from live_app import live, send_request
from named_events import named_events, plain_of, prompt_text, stream_of
from stub_app import HI, MODEL, StubApp, run, strict_json
from stub_engine import StubEngine, make_tokenizer, until

from octavo.api import streaming

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BODY = {"model": MODEL, "max_tokens": 20, "messages": HI}


def answer_to(engine: StubEngine | None = None, **fields: object) -> dict:
    """The plain answer to a request that must succeed."""
    return plain_of(StubApp(engine), MESSAGES, {**BODY, **fields})


def stream(engine: StubEngine | None = None, **fields: object) -> list[dict]:
    """The events of a stream that must succeed."""
    return stream_of(StubApp(engine), MESSAGES, {**BODY, **fields})


def check_message_error(response: httpx.Response, status: int, kind: str, *words: str) -> None:
    """An error in this API's own shape."""
    body = strict_json(response.content)
    assert response.status_code == status, body
    assert set(body) == {"type", "error"} and body["type"] == "error" and set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind and all(word in body["error"]["message"] for word in words), body


def test_a_plain_answer_has_the_reference_shape() -> None:
    answer = answer_to()
    assert answer["id"].startswith("msg_")
    usage = answer["usage"]
    assert answer == {
        "id": answer["id"],
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }
    # 21 tokens of prompt, of which 4 came from the cache.
    assert usage == {
        "input_tokens": 17,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 4,
    }


def test_a_stream_has_the_full_sequence_of_events() -> None:
    events = stream()
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["input_tokens"]) == ([], None, 17)
    assert events[2]["content_block"] == {"type": "text", "text": ""}
    assert [event["delta"]["text"] for event in events[3:6]] == ["Hell", "o", " world"]
    assert all(event["index"] == 0 for event in events[2:7])
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"] == answer_to()["usage"]


@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({"max_tokens": 2}, "max_tokens", None, "Hello"),
        ({"stop_sequences": ["zzz", "o w"]}, "stop_sequence", "o w", "Hell"),
        ({"stop_sequences": ["zzz"]}, "end_turn", None, "Hello world"),
        ({"max_tokens": 100_000}, "end_turn", None, "Hello world"),
        ({"stop_token_ids": [1]}, "end_turn", None, "Hello world"),
    ],
)
def test_each_end_has_its_stop_reason(fields: dict, reason: str, sequence: str | None, text: str) -> None:
    answer = answer_to(**fields)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert answer["content"] == [{"type": "text", "text": text}]
    events = stream(**fields)
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == text


def test_asking_for_more_than_the_context_leaves_ends_at_the_context() -> None:
    engine = StubEngine(text="x" * 300)
    answer = answer_to(engine, max_tokens=4096)
    assert answer["stop_reason"] == "model_context_window_exceeded"
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 256
    too_long = {**BODY, "messages": [{"role": "user", "content": "x" * 300}]}
    check_message_error(
        run(StubApp().post(MESSAGES, too_long)), 400, "invalid_request_error", "prompt is too long", "256"
    )


def test_an_empty_answer_has_one_empty_text_block() -> None:
    assert answer_to(StubEngine(text=""))["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in stream(StubEngine(text=""))]
    assert kinds[2:4] == ["content_block_start", "content_block_stop"]


def test_sampling_fields_reach_the_engine_and_headers_of_the_reference_api_are_taken() -> None:
    engine = StubEngine()
    body = {**BODY, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "stop_sequences": ["q"]}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    without_effect = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": edits},
        "cache_control": {"type": "ephemeral"},
    }
    response = run(StubApp(engine).post(MESSAGES, {**body, **without_effect}, headers))
    assert response.status_code == 200 and "x-octavo-ignored-fields" not in response.headers
    params = engine.started[0][2]
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 5, 7)
    assert (params.stop, params.max_tokens) == (["q"], 20)


def test_a_key_is_taken_from_the_header_of_the_reference_api() -> None:
    app = StubApp(api_key=["secret"])
    assert run(app.post(MESSAGES, BODY, {"x-api-key": "secret"})).status_code == 200
    assert run(app.post(MESSAGES, BODY, {"x-api-key": "other"})).status_code == 401


def test_a_system_prompt_is_a_text_or_blocks() -> None:
    app = StubApp()
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    for system in ("a\nb", blocks):
        plain_of(app, MESSAGES, {**BODY, "system": system})
        assert prompt_text(app).startswith("<|im_start|>system\na\nb<|im_end|>\n<|im_start|>user\nhi<|im_end|>")


def test_a_block_that_counts_requests_does_not_spoil_the_prefix_cache() -> None:
    app = StubApp()
    for number in (1, 2):
        counted = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=1; cch={number};"}
        plain_of(app, MESSAGES, {**BODY, "system": [counted, {"type": "text", "text": "a"}]})
    assert app.engine.started[0][1] == app.engine.started[1][1] and "billing" not in prompt_text(app)


def test_turns_of_one_role_in_a_row_are_one_turn() -> None:
    app = StubApp()
    user = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    assistant = [{"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"}]
    plain_of(app, MESSAGES, {**BODY, "messages": [*user, *assistant, *HI]})
    turns = ["user\na\nb", "assistant\nc\nd", "user\nhi"]
    assert prompt_text(app) == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


def test_an_assistant_turn_at_the_end_is_the_beginning_of_the_answer() -> None:
    app = StubApp()
    body = {**BODY, "messages": [*HI, {"role": "assistant", "content": "Well,"}]}
    assert plain_of(app, MESSAGES, body)["content"][0]["text"] == "Hello world"
    assert prompt_text(app).endswith("<|im_start|>assistant\nWell,")


def test_a_system_turn_is_taken_where_it_stands_and_joins_the_system_prompt_at_the_beginning() -> None:
    app = StubApp()
    system = {"role": "system", "content": "b"}
    plain_of(app, MESSAGES, {**BODY, "system": "a", "messages": [system, *HI, system, *HI]})
    turns = ["system\na\nb", "user\nhi", "system\nb", "user\nhi"]
    assert prompt_text(app) == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


def test_a_conversation_held_by_the_server_is_refused_as_the_client_understands_it() -> None:
    response = run(StubApp().post(MESSAGES, {**BODY, "thread": {"type": "create"}}))
    assert response.status_code == 400
    assert strict_json(response.content)["error"]["details"]["error_code"] == "thread_unsupported_request"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text is required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1e9}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
        ({"stop": ["x"]}, "stop"),
        ({"max_token": 5}, "did you mean 'max_tokens'"),
    ],
)
def test_what_cannot_be_served_is_refused_naming_the_field(fields: dict, word: str) -> None:
    for streamed in (False, True):
        response = run(StubApp().post(MESSAGES, {**BODY, **fields, "stream": streamed}))
        check_message_error(response, 400, "invalid_request_error", word)


def test_errors_have_this_apis_shape_for_every_status() -> None:
    without = {name: value for name, value in BODY.items() if name != "max_tokens"}
    app = StubApp(max_body_bytes=300)
    check_message_error(run(app.post(MESSAGES, without)), 400, "invalid_request_error", "max_tokens is required")
    check_message_error(run(app.post(MESSAGES, b"{")), 400, "invalid_request_error", "JSON")
    check_message_error(run(app.post(MESSAGES, {**BODY, "model": "x"})), 404, "not_found_error", "'x'")
    check_message_error(run(app.post(MESSAGES, {**BODY, "system": "x" * 400})), 413, "request_too_large")
    check_message_error(run(app.post(COUNT, {**BODY, "model": "x"})), 404, "not_found_error", "'x'")
    loading = run(StubApp(StubEngine(status="loading")).post(MESSAGES, BODY))
    check_message_error(loading, 503, "overloaded_error", "loaded")
    assert loading.headers["retry-after"] == "1"
    refused = run(app.post(MESSAGES, {**BODY, "messages": [{"role": "user", "content": "x"}], "temperature": -1}))
    check_message_error(refused, 400, "invalid_request_error", "temperature")


def test_an_engine_that_dies_ends_the_stream_with_an_error_event() -> None:
    events = stream_of(StubApp(StubEngine(fail_after=2)), MESSAGES, BODY)
    assert events[-1]["type"] == "error" and "killed" in events[-1]["error"]["message"]
    assert "message_stop" not in [event["type"] for event in events]
    for fails, streamed in ((0, True), (0, False), (2, False)):
        response = run(StubApp(StubEngine(fail_after=fails)).post(MESSAGES, {**BODY, "stream": streamed}))
        check_message_error(response, 503, "overloaded_error", "killed")


def test_tokens_are_counted_as_the_model_would_get_them() -> None:
    app = StubApp()
    fields = {"messages": HI, "system": "be brief"}
    counted = plain_of(app, COUNT, fields)
    usage = plain_of(app, MESSAGES, {**BODY, **fields})["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert len(app.engine.started) == 1
    check_message_error(run(app.post(COUNT, {"messages": []})), 400, "invalid_request_error", "messages")


def test_a_conversation_over_the_context_is_counted_so_that_a_client_can_shorten_it() -> None:
    app = StubApp()
    fixed = plain_of(app, COUNT, {"messages": HI})["input_tokens"] - len("hi")
    for length in (256, 3000, 200_000):
        body = {"messages": [{"role": "user", "content": "x" * length}]}
        assert plain_of(app, COUNT, body) == {"input_tokens": fixed + length}
    assert app.engine.started == []


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_aborts_its_request(streamed: bool) -> None:
    async def scenario() -> None:
        app = StubApp(StubEngine(context=100_000, step_seconds=0.005))
        async with live(app) as port:
            body = {**BODY, "ignore_eos": True, "max_tokens": 2000, "stream": streamed}
            _, writer = await send_request(port, MESSAGES, body)
            await until(lambda: len(app.engine.running) == 1)
            await asyncio.sleep(0.05)
            writer.close()
            await until(lambda: not app.engine.running, 2.0)
            assert len(app.engine.aborted) == 1

    run(scenario())


@pytest.mark.parametrize(
    ("path", "fields", "sign"),
    [(MESSAGES, BODY, b"event: ping\n"), ("/v1/responses", {"input": "hi"}, b": still here\n")],
)
def test_a_silent_stream_shows_that_it_is_alive(
    path: str, fields: dict, sign: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "IDLE_SECONDS", 0.03)

    async def scenario() -> bytes:
        app = StubApp(StubEngine(hold_after=2))
        async with live(app) as port:
            reader, writer = await send_request(port, path, {**fields, "stream": True})
            content = b""
            while content.count(sign) < 4:
                content += await reader.readuntil(b"\n\n")
            app.engine.release.set()
            content += await reader.readuntil(b"\r\n0\r\n\r\n")
            writer.close()
        return content

    content = run(scenario())
    assert b"message_stop" in content or b"response.completed" in content


def test_held_text_never_leaks_and_characters_stream_whole() -> None:
    text = "naïve 🧭🧭 漢字 end"
    tokenizer = make_tokenizer()
    engine = StubEngine(plays=lambda ids, params, index: tokenizer.encode(text), context=512)
    pieces = [
        event["delta"]["text"] for event in stream(engine, max_tokens=200) if event["type"] == "content_block_delta"
    ]
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
    content = run(StubApp(engine).post(MESSAGES, {**BODY, "stream": True, "stop_sequences": ["字 e"]})).content
    assert all("字" not in str(event) for event in named_events(content))
