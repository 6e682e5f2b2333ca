"""Tools with the official ``openai`` client against a live server with a real, small model: forced calls are held to
their schemas by a grammar, so that even it makes no wrong one."""

import json
from typing import Any

import pytest
from openai import OpenAI

MODEL = "SmolLM2-135M-Instruct"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"$ref": "#/$defs/Days"},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
            "$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 9}},
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time", "description": "The time of day."}}
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris for the next 3 days?"}]


def check_call(call: Any) -> None:
    """A call with arguments of the schema."""
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments.keys() == {"city", "unit", "days"}
        assert len(arguments["city"]) <= 20 and arguments["unit"] in ("celsius", "fahrenheit")
        assert arguments["days"] in range(1, 10)
    else:
        assert call.function.name == "get_time" and isinstance(arguments, dict)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_named_call_has_arguments_of_its_schema(client: OpenAI, seed: int) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=[WEATHER, TIME],
        tool_choice=choice,
        seed=seed,
        max_tokens=90,  # type: ignore[arg-type]
    ).choices[0]
    assert answer.message.tool_calls is not None and answer.message.tool_calls[0].type == "function"
    assert answer.message.tool_calls[0].function.name == "get_weather"
    if answer.finish_reason == "stop":
        check_call(answer.message.tool_calls[0])
    else:
        assert answer.finish_reason == "length"


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_stream_as_valid_ones(client: OpenAI, parallel: bool) -> None:
    body: dict[str, Any] = {
        "model": MODEL, "messages": QUESTION, "tools": [WEATHER, TIME], "tool_choice": "required",
        "temperature": 0, "max_tokens": 80, "parallel_tool_calls": parallel,
    }  # fmt: skip
    plain = client.chat.completions.create(**body).choices[0]
    calls: dict[int, dict[str, str]] = {}
    finish = None
    for chunk in client.chat.completions.create(stream=True, **body):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for delta in choice.delta.tool_calls or []:
                assert delta.function is not None
                call = calls.setdefault(delta.index, {"name": "", "arguments": ""})
                call["name"] += delta.function.name or ""
                call["arguments"] += delta.function.arguments or ""
    assert plain.message.tool_calls
    assert list(calls.values()) == [
        {"name": call.function.name, "arguments": call.function.arguments}
        for call in plain.message.tool_calls
        if call.type == "function"
    ]
    assert finish == plain.finish_reason
    assert parallel or len(calls) == 1
    if finish == "tool_calls":
        for call in plain.message.tool_calls:
            check_call(call)


def test_the_model_may_answer_in_words_and_results_go_back_to_it(client: OpenAI) -> None:
    call: Any = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TIME], temperature=0, max_tokens=12
    ).choices[0]
    assert answer.message.content or answer.message.tool_calls


def test_json_that_is_asked_for_beside_tools_is_json_or_a_call(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=[WEATHER, TIME], response_format=wanted, seed=seed, max_tokens=80
        ).choices[0]
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.message.content or "")["ok"], bool)
        elif answer.finish_reason == "tool_calls":
            assert answer.message.tool_calls
        else:
            assert answer.finish_reason == "length"
