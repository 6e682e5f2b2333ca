"""A streamed response or message, put together, is the plain one: for random tokens, pieces and options."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from named_events import plain_of, stream_of
from stub_app import HI, StubApp
from stub_engine import StubEngine, make_tokenizer

TOKENIZER = make_tokenizer()
TOKENS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)
TEXTS = st.text(alphabet="ab🧭é漢 \n", max_size=12).map(TOKENIZER.encode)
STOPS = st.lists(st.text(alphabet="ab🧭é漢 \n", min_size=1, max_size=3), max_size=2)


@st.composite
def engines(draw: st.DrawFn) -> StubEngine:
    """Plays random tokens in pieces of changing size."""
    played = draw(TOKENS | TEXTS)
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    return StubEngine(
        tokenizer=TOKENIZER, plays=lambda ids, params, index: played, pieces=lambda step: sizes[step % len(sizes)]
    )


def without_names(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one request to the next."""
    output = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    left_out = ("id", "created_at", "completed_at")
    return {name: value for name, value in response.items() if name not in left_out} | {"output": output}


def rebuilt_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a response, from its deltas alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif event["type"] == "response.content_part.added":
            items[event["output_index"]]["content"].append(event["part"])
        elif event["type"] == "response.output_text.delta":
            part = items[event["output_index"]]["content"][event["content_index"]]
            part["text"] += event["delta"]
            part["logprobs"] += event["logprobs"]
        elif event["type"] == "response.output_item.done":
            items[event["output_index"]]["status"] = event["item"]["status"]
    return items


@settings(max_examples=120)
@given(engines(), st.integers(1, 30), STOPS, st.none() | st.integers(0, 3), st.booleans())
def test_responses(engine: StubEngine, limit: int, stop: list[str], top: int | None, ignore_eos: bool) -> None:
    body: dict[str, Any] = {"input": "hi", "max_output_tokens": limit, "stop": stop, "ignore_eos": ignore_eos}
    if top is not None:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": top}
    app = StubApp(engine)
    events = stream_of(app, "/v1/responses", body)
    plain = plain_of(app, "/v1/responses", body)
    final = events[-1]["response"]
    assert events[-1]["type"] == f"response.{plain['status']}"
    assert without_names(final) == without_names(plain)
    assert rebuilt_items(events) == final["output"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def rebuilt_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's events add up to."""
    message = events[0]["message"]
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            message["content"][event["index"]]["text"] += event["delta"]["text"]
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    return message


@settings(max_examples=120)
@given(engines(), st.integers(1, 300), STOPS, st.booleans())
def test_messages(engine: StubEngine, limit: int, stop: list[str], ignore_eos: bool) -> None:
    body = {"messages": HI, "max_tokens": limit, "stop_sequences": stop, "ignore_eos": ignore_eos}
    app = StubApp(engine)
    streamed = rebuilt_message(stream_of(app, "/v1/messages", body))
    plain = plain_of(app, "/v1/messages", body)
    assert streamed | {"id": ""} == plain | {"id": ""}
