"""The Responses API over HTTP: shapes of streams and of plain answers, on an engine that plays given tokens."""

import asyncio

import pytest
from live_app import live, send_request
from named_events import named_events, plain_of, prompt_text, stream_of
from stub_app import MODEL, StubApp, check_error, run
from stub_engine import StubEngine, until

RESPONSES = "/v1/responses"
HI = {"input": "hi"}


def respond(engine: StubEngine | None = None, **fields: object) -> dict:
    """The plain answer to a request that must succeed."""
    return plain_of(StubApp(engine), RESPONSES, {**HI, **fields})


def stream(engine: StubEngine | None = None, **fields: object) -> list[dict]:
    """The events of a stream that must succeed."""
    return stream_of(StubApp(engine), RESPONSES, {**HI, **fields})


def test_a_plain_answer_has_the_reference_shape() -> None:
    answer = respond(metadata={"a": "b"}, user="ann", max_output_tokens=9, max_tool_calls=3, temperature=0.5,
                     instructions="be brief")  # fmt: skip
    assert answer["id"].startswith("resp_") and answer["object"] == "response"
    (item,) = answer["output"]
    assert item == {
        "type": "message",
        "id": item["id"],
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello world", "annotations": [], "logprobs": []}],
    }
    assert item["id"].startswith("msg_")
    usage = answer["usage"]
    assert usage == {
        "input_tokens": usage["input_tokens"],
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["input_tokens"] + 4,
    }
    told = {
        "status": "completed", "error": None, "incomplete_details": None, "model": MODEL, "instructions": "be brief",
        "metadata": {"a": "b"}, "user": "ann", "max_output_tokens": 9, "max_tool_calls": 3, "temperature": 0.5,
        "top_p": 1.0, "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": True, "previous_response_id": None, "store": True,
        "truncation": "disabled", "background": False, "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }  # fmt: skip
    assert {name: answer[name] for name in told} == told
    assert isinstance(answer["created_at"], int) and answer["completed_at"] >= answer["created_at"]


def test_a_stream_has_the_full_sequence_of_numbered_events() -> None:
    events = stream()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    assert events[2]["item"] == {**events[9]["item"], "status": "in_progress", "content": []}
    final = events[-1]["response"]
    assert events[9]["item"] == final["output"][0] and events[9]["item"]["status"] == "completed"
    assert "".join(event["delta"] for event in events if event["type"].endswith("delta")) == events[7]["text"]
    assert events[8]["part"] == final["output"][0]["content"][0]
    places = {(event["item_id"], event["output_index"], event["content_index"]) for event in events[3:9]}
    assert places == {(final["output"][0]["id"], 0, 0)}


@pytest.mark.parametrize("text", ["Hello world", "naïve 🧭🧭 漢字 end"])
def test_characters_over_several_tokens_stream_whole(text: str) -> None:
    deltas = [event["delta"] for event in stream(StubEngine(text=text)) if event["type"].endswith("text.delta")]
    assert not any("\ufffd" in delta for delta in deltas) and "".join(deltas) == text


def test_an_answer_cut_by_its_length_is_incomplete() -> None:
    answer = respond(max_output_tokens=2)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete" and answer["completed_at"] is None
    events = stream(max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"]["status"] == "incomplete"


def test_an_empty_answer_still_has_its_message() -> None:
    engine = StubEngine(text="")
    assert respond(engine)["output"][0]["content"][0]["text"] == ""
    kinds = [event["type"] for event in stream(engine)]
    assert "response.output_text.done" in kinds and "response.output_text.delta" not in kinds


def test_logprobs_come_when_included_and_stay_away_otherwise() -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    content = respond(**fields)["output"][0]["content"][0]
    assert [entry["token"] for entry in content["logprobs"]] == ["Hell", "o", " world", "<|im_end|>"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content["logprobs"])
    events = stream(**fields)
    joined = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert joined == content["logprobs"] == events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert respond(top_logprobs=1)["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]
    assert all(event["logprobs"] == [] for event in stream() if event["type"].endswith("text.delta"))


def test_sampling_fields_reach_the_engine() -> None:
    engine = StubEngine()
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "repetition_penalty": 1.5}
    respond(engine, max_output_tokens=9, stop="q", cache_salt="s", **fields)
    params = engine.started[0][2]
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.max_tokens, params.stop, engine.salts) == (9, ["q"], ["s"])


def test_instructions_and_leading_system_items_are_one_system_message() -> None:
    app = StubApp()
    items = [
        {"role": "developer", "content": "b"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "c"}]},
    ]
    plain_of(app, RESPONSES, {"instructions": "a", "input": items})
    assert prompt_text(app) == (
        "<|im_start|>system\na\n\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_items_that_are_turns_of_their_own_stay_so() -> None:
    app = StubApp()
    roles = ["user", "assistant", "assistant", "developer", "user"]
    plain_of(app, RESPONSES, {"input": [{"role": role, "content": str(n)} for n, role in enumerate(roles)]})
    turns = ["user\n0", "assistant\n1", "assistant\n2", "system\n3", "user\n4"]
    assert prompt_text(app) == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"include": ["web_search_call.action.sources"]}, "include"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_output_token": 5}, "max_output_token"),
        ({"stream_options": {}}, "stream_options"),
        ({"input": "x" * 4000}, "input"),
    ],
)
def test_what_cannot_be_served_is_refused_naming_the_field(fields: dict, param: str) -> None:
    for streamed in (False, True):
        if "stream_options" in fields and streamed:
            continue
        check_error(run(StubApp().post(RESPONSES, {**HI, **fields, "stream": streamed})), 400, param)


def test_unknown_models_are_404_and_unknown_fields_are_named() -> None:
    check_error(run(StubApp().post(RESPONSES, {**HI, "model": "x"})), 404, "model")
    response = run(StubApp().post(RESPONSES, {**HI, "frobnicate": 1}))
    assert response.headers["x-octavo-ignored-fields"] == "frobnicate"


def test_truncation_leaves_out_the_oldest_turns_only_when_asked() -> None:
    turns = [{"role": role, "content": f"{role} {n} " + "x" * 20} for n in range(5) for role in ("user", "assistant")]
    body = {"instructions": "keep me", "input": [*turns, {"role": "user", "content": "last"}], "max_output_tokens": 20}
    check_error(run(StubApp().post(RESPONSES, body)), 400)
    app = StubApp()
    answer = plain_of(app, RESPONSES, {**body, "truncation": "auto"})
    text = prompt_text(app)
    assert answer["truncation"] == "auto" and "keep me" in text and "user\nlast" in text
    assert "user 0" not in text and "user 4" in text
    # One turn more would not have fitted.
    kept = [n for n in range(5) if f"user {n}" in text]
    turn_tokens = 2 * len("<|im_start|>user\nuser 0 xxxxxxxxxxxxxxxxxxxx<|im_end|>\n") - 40
    assert len(app.engine.started[-1][1]) + turn_tokens > 256 - 20 and kept == list(range(kept[0], 5))
    check_error(run(app.post(RESPONSES, {"input": "x" * 400, "truncation": "auto"})), 400, "input")


def test_an_engine_that_dies_fails_the_response_in_the_stream_and_gives_503_before_it() -> None:
    events = stream_of(StubApp(StubEngine(fail_after=2)), RESPONSES, HI)
    failed, error = events[-2:]
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert failed["response"]["output"][0]["content"][0]["text"] == "Hello"
    assert error["type"] == "error" and "killed" in error["message"] and error["error"]["message"] == error["message"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for fails in (0, 2):
        app = StubApp(StubEngine(fail_after=fails))
        check_error(run(app.post(RESPONSES, HI)), 503)
    check_error(run(StubApp(StubEngine(fail_after=0)).post(RESPONSES, {**HI, "stream": True})), 503)


def test_an_error_after_the_headers_but_before_any_event_still_makes_a_whole_stream() -> None:
    async def scenario() -> bytes:
        app = StubApp(StubEngine(hold_after=0))
        async with live(app) as port:
            reader, writer = await send_request(port, RESPONSES, {**HI, "stream": True})
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            app.engine.die("the engine process was killed")
            content = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
        return content

    content = run(scenario())
    start = content.index(b"event: ")
    events = named_events(content[start : content.rindex(b"\n\n\r\n") + 2])
    kinds = ["response.created", "response.in_progress", "response.failed", "error"]
    assert [event["type"] for event in events] == kinds


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_aborts_its_request_and_leaves_nothing_stored(streamed: bool) -> None:
    async def scenario() -> None:
        app = StubApp(StubEngine(context=100_000, step_seconds=0.005))
        async with live(app) as port:
            body = {**HI, "ignore_eos": True, "max_output_tokens": 2000, "stream": streamed}
            _, writer = await send_request(port, RESPONSES, body)
            await until(lambda: len(app.engine.running) == 1)
            await asyncio.sleep(0.05)
            writer.close()
            await until(lambda: not app.engine.running, 2.0)
            assert len(app.engine.aborted) == 1

    run(scenario())
