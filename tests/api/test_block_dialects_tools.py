"""Tools and reasoning in the Responses and Messages APIs: the same answers, in the blocks of each."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named_events import plain_of, prompt_text, stream_of
from stub_app import HI, StubApp, check_error, run, strict_json
from stub_engine import TEMPLATE, StubEngine, make_tokenizer

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TOKENIZER = make_tokenizer()
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function | tojson }}]{% endfor %}"
    "{% if enable_thinking is defined %}(thinking {{ enable_thinking }}){% endif %}"
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}~{{ message.reasoning_content }}~{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "!{{ call.id }}:{{ call.function.name }}:{{ call.function.arguments | tojson }}{% endfor %}"
    "{% if message.tool_call_id %}@{{ message.tool_call_id }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}
LAMP_CALL = '<tool_call>\n{"name": "set_lamp", "arguments": {"room": "attic", "level": 3}}\n</tool_call>'
ROOMS_CALL = '<tool_call>\n{"name": "list_rooms", "arguments": {}}\n</tool_call>'
OPENAI_TOOLS = [
    {"type": "function", "name": "set_lamp", "description": "d", "parameters": SCHEMA},
    {"type": "function", "name": "list_rooms"},
]
ANTHROPIC_TOOLS = [
    {"name": "set_lamp", "description": "d", "input_schema": SCHEMA},
    {"name": "list_rooms", "input_schema": {"type": "object"}},
]
ASK_RESPONSE = {"input": "hi", "tools": OPENAI_TOOLS, "max_output_tokens": 400}
ASK_MESSAGE = {"messages": HI, "tools": ANTHROPIC_TOOLS, "max_tokens": 400}
THINK = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def make_app(text: str = "ok", *, pieces: int = 1, template: str = TEMPLATE) -> StubApp:
    """An application whose model says ``text``, with Hermes calls and Qwen reasoning."""
    tokenizer = make_tokenizer()
    tokenizer.chat_templates["default"] = template
    engine = StubEngine(tokenizer=tokenizer, text=text, context=4096, pieces=lambda step: pieces)
    return StubApp(engine, tool_call_parser="hermes", reasoning_parser="qwen3")


def test_a_response_has_reasoning_text_and_calls_as_items() -> None:
    app = make_app(f"<think>\nhm\n</think>\n\nOne moment. {LAMP_CALL}\n{ROOMS_CALL}")
    answer = plain_of(app, RESPONSES, ASK_RESPONSE)
    reasoning, message, lamp, rooms = answer["output"]
    assert (reasoning["type"], reasoning["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "hm"}])
    assert message["content"][0]["text"].strip() == "One moment."
    assert (lamp["type"], lamp["name"], lamp["status"]) == ("function_call", "set_lamp", "completed")
    assert json.loads(lamp["arguments"]) == {"room": "attic", "level": 3}
    assert (rooms["name"], json.loads(rooms["arguments"])) == ("list_rooms", {})
    assert len({item["id"] for item in answer["output"]}) == 4 and lamp["call_id"] != rooms["call_id"]
    assert answer["status"] == "completed" and answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert [tool["name"] for tool in answer["tools"]] == ["set_lamp", "list_rooms"]


def test_a_call_streams_its_arguments_under_its_item() -> None:
    events = stream_of(make_app(LAMP_CALL), RESPONSES, ASK_RESPONSE)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert kinds == [
        "created", "in_progress", "output_item.added",
        *["function_call_arguments.delta"] * len(deltas),
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert len(deltas) > 1 and json.loads("".join(deltas)) == {"room": "attic", "level": 3}
    assert events[2]["item"]["arguments"] == "" and events[-3]["arguments"] == "".join(deltas)
    assert {event["item_id"] for event in events[3:-2]} == {events[2]["item"]["id"]}


def test_a_message_has_thinking_text_and_uses_as_blocks() -> None:
    app = make_app(f"<think>\nhm\n</think>\n\nOne moment. {LAMP_CALL}\n{ROOMS_CALL}")
    answer = plain_of(app, MESSAGES, ASK_MESSAGE | THINK)
    thinking, text, lamp, rooms = answer["content"]
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert (text["type"], text["text"].strip()) == ("text", "One moment.")
    assert (lamp["type"], lamp["name"], lamp["input"]) == ("tool_use", "set_lamp", {"room": "attic", "level": 3})
    assert (rooms["name"], rooms["input"]) == ("list_rooms", {})
    assert answer["stop_reason"] == "tool_use" and lamp["id"] != rooms["id"]


def test_thoughts_are_told_only_where_thinking_is_asked_for() -> None:
    app = make_app("<think>\nhm\n</think>\n\nyes", template=TOOL_TEMPLATE)
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        answer = plain_of(app, MESSAGES, ASK_MESSAGE | fields)
        assert answer["content"] == [{"type": "text", "text": "yes"}]
        assert "(thinking False)" in prompt_text(app)
    plain_of(app, MESSAGES, ASK_MESSAGE | {"thinking": {"type": "adaptive"}})
    assert "(thinking True)" in prompt_text(app)


def test_a_call_that_the_length_limit_cuts_is_no_finished_call() -> None:
    app = make_app(LAMP_CALL)
    answer = plain_of(app, MESSAGES, ASK_MESSAGE | {"max_tokens": 55})
    assert answer["stop_reason"] == "max_tokens" and answer["content"][-1]["input"] == {}
    response = plain_of(app, RESPONSES, ASK_RESPONSE | {"max_output_tokens": 55})
    assert response["status"] == "incomplete" and response["output"][-1]["status"] == "incomplete"


def test_a_loop_of_calls_and_results_reaches_the_template() -> None:
    app = make_app(template=TOOL_TEMPLATE)
    plain_of(
        app,
        RESPONSES,
        {
            "tools": OPENAI_TOOLS[:1],
            "input": [
                {"role": "user", "content": "q"},
                {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                {"type": "function_call", "call_id": "c1", "name": "set_lamp", "arguments": '{"room":"a"}'},
                {"type": "function_call", "call_id": "c2", "name": "set_lamp", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "done"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
            ],
        },
    )
    first = prompt_text(app)
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": ""},
        {"type": "tool_use", "id": "c1", "name": "set_lamp", "input": {"room": "a"}},
        {"type": "tool_use", "id": "c2", "name": "set_lamp", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "done"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "ok"}]},
    ]
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results},
    ]
    plain_of(app, MESSAGES, {"tools": ANTHROPIC_TOOLS[:1], "messages": turns, "max_tokens": 9})
    second = prompt_text(app).replace("(thinking False)", "")
    assert first == second
    assert first.endswith(
        '<user>q<assistant>~t~!c1:set_lamp:{"room": "a"}!c2:set_lamp:{}<tool>done@c1<tool>ok@c2<assistant>'
    )
    assert first.startswith('[{"name": "set_lamp", "description": "d", "parameters": {"type": "object"')


def test_calls_of_a_kept_response_are_gone_on_from_by_their_outputs_alone() -> None:
    app = make_app(LAMP_CALL, template=TOOL_TEMPLATE)
    first = plain_of(app, RESPONSES, ASK_RESPONSE)
    (call,) = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    plain_of(app, RESPONSES, {"input": [output], "previous_response_id": first["id"], "tools": OPENAI_TOOLS})
    assert f"!{call['call_id']}:set_lamp:" in prompt_text(app) and f"<tool>done@{call['call_id']}" in prompt_text(app)
    check_error(run(app.post(RESPONSES, {"input": [output]})), 400, "input[0].call_id")


def test_a_result_that_is_an_error_says_so_and_text_beside_results_follows_them() -> None:
    app = make_app(template=TOOL_TEMPLATE)
    use = {"type": "tool_use", "id": "c1", "name": "set_lamp", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "no bulb", "is_error": True}
    turns = [
        *HI,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}, result]},
    ]
    plain_of(app, MESSAGES, {"messages": turns, "max_tokens": 9})
    assert prompt_text(app).endswith("<tool>Error: no bulb@c1<user>go on<assistant>")


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "set_lamp"}, "named"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "list_rooms"}]}, "auto"),
    ],
)
def test_every_tool_choice_of_responses_is_taken_and_told(choice: Any, mode: str) -> None:
    forced = {"required": '[{"name": "list_rooms", "parameters": {}}]', "named": '{"room": "attic"}'}
    app = make_app(forced.get(mode, "plain"))
    answer = plain_of(app, RESPONSES, ASK_RESPONSE | {"tool_choice": choice})
    assert answer["tool_choice"] == choice
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == (["function_call"] if mode in forced else ["message"])
    assert (app.engine.started[0][2].structured_outputs is not None) == (mode in forced)


@pytest.mark.parametrize(
    ("choice", "text", "name"),
    [
        ({"type": "any"}, '[{"name": "list_rooms", "parameters": {}}]', "list_rooms"),
        ({"type": "tool", "name": "set_lamp"}, '{"room": "attic"}', "set_lamp"),
        ({"type": "none"}, "plain", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, f"{LAMP_CALL}{ROOMS_CALL}", "set_lamp"),
    ],
)
def test_every_tool_choice_of_messages_is_taken(choice: dict[str, Any], text: str, name: str | None) -> None:
    answer = plain_of(make_app(text), MESSAGES, ASK_MESSAGE | {"tool_choice": choice})
    uses = [block["name"] for block in answer["content"] if block["type"] == "tool_use"]
    assert uses == ([] if name is None else [name])
    assert answer["stop_reason"] == ("end_turn" if name is None else "tool_use")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [OPENAI_TOOLS[0], OPENAI_TOOLS[0]]}, "tools[1].name"),
        ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [], "text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
    ],
)
def test_wrong_tools_of_responses_are_refused_by_their_own_names(fields: dict, param: str) -> None:
    error = check_error(run(make_app().post(RESPONSES, ASK_RESPONSE | fields)), 400, param)
    assert "function.name" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"thinking": {"type": "deeply"}}, "thinking.type"),
        ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"tools": [], "output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "not"),
    ],
)
def test_wrong_tools_of_messages_are_refused_by_their_own_names(fields: dict, word: str) -> None:
    response = run(make_app().post(MESSAGES, ASK_MESSAGE | fields))
    error = strict_json(response.content)["error"]
    assert response.status_code == 400 and word in error["message"] and "function.name" not in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
        (
            MESSAGES,
            {"messages": HI, "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
    ],
)
def test_a_schema_for_the_text_reaches_the_engine(path: str, body: dict[str, Any]) -> None:
    app = make_app("{}")
    answer = plain_of(app, path, body)
    outputs = app.engine.started[0][2].structured_outputs
    assert outputs is not None and outputs.json == SCHEMA
    if path == RESPONSES:
        assert answer["text"]["format"] == body["text"]["format"]


def test_logprobs_are_those_of_the_text_alone() -> None:
    ask = ASK_RESPONSE | {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    for text in (f"<think>hm</think>yes {LAMP_CALL}", "<yes", "yes <tool"):
        app = make_app(text)
        plain = plain_of(app, RESPONSES, ask)
        (message,) = [item for item in plain["output"] if item["type"] == "message"]
        told = "".join(entry["token"] for entry in message["content"][0]["logprobs"])
        shown = message["content"][0]["text"]
        # The end token, and the markup that ends the text, are told too.
        assert told.startswith(shown.strip()) and "hm" not in told and "attic" not in told
        events = stream_of(app, RESPONSES, ask)
        streamed = [
            entry for event in events if event["type"].endswith("text.delta") for entry in event.get("logprobs", [])
        ]
        assert streamed == message["content"][0]["logprobs"]


def test_json_objects_reach_the_engine() -> None:
    app = make_app("{}")
    plain_of(app, RESPONSES, {"input": "hi", "text": {"format": {"type": "json_object"}}})
    outputs = app.engine.started[0][2].structured_outputs
    assert outputs is not None and outputs.json_object


PIECES = st.sampled_from(["<think>", "</think>", "hm ", "\n", LAMP_CALL, ROOMS_CALL, "<tool_call>", "{", "🧭", "a "])


@settings(max_examples=100)
@given(st.lists(PIECES, max_size=6).map("".join), st.integers(1, 5), st.integers(30, 600))
def test_a_stream_adds_up_to_the_plain_answer(text: str, pieces: int, limit: int) -> None:
    app = make_app(text, pieces=pieces)
    ask = ASK_RESPONSE | {"max_output_tokens": limit}
    plain = plain_of(app, RESPONSES, ask)
    events = stream_of(app, RESPONSES, ask)
    assert shapes(events[-1]["response"]["output"]) == shapes(plain["output"]) == shapes(rebuilt_items(events))
    assert events[-1]["response"]["usage"] == plain["usage"] and events[-1]["response"]["status"] == plain["status"]
    message = plain_of(app, MESSAGES, ASK_MESSAGE | THINK | {"max_tokens": limit})
    rebuilt, stop = rebuilt_blocks(stream_of(app, MESSAGES, ASK_MESSAGE | THINK | {"max_tokens": limit}))
    assert shapes(rebuilt) == shapes(message["content"]) and stop == message["stop_reason"]


def shapes(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items or blocks without the ids that differ from one request to the next."""
    return [{name: value for name, value in block.items() if name not in ("id", "call_id")} for block in blocks]


def rebuilt_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a response, from its deltas."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items.append(event["item"])
        elif kind == "content_part.added":
            items[-1]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            items[event["output_index"]]["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif kind == "output_item.done":
            items[event["output_index"]]["status"] = event["item"]["status"]
    return items


def rebuilt_blocks(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The blocks of a message, from its deltas, and why it stopped."""
    blocks: list[dict[str, Any]] = []
    stop = ""
    arguments: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                blocks[event["index"]][name] += delta[name]
        elif event["type"] == "message_delta":
            stop = event["delta"]["stop_reason"]
    for index, text in arguments.items():
        try:
            blocks[index]["input"] = json.loads(text)
        except ValueError:
            assert stop == "max_tokens"
    return blocks, stop
