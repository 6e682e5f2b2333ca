"""Tools over HTTP: what a request may ask for, what the prompt says, and the shapes of answers with calls."""

import json
from typing import Any

import pytest
from chat_answers import ARGUMENTS, CALL, LAMP, NAMED, ROOMS, SCHEMA, TOOLS, both
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schemas import GrammarWalker
from stub_app import CHAT, HI, StubApp, check_error, run
from stub_engine import TEMPLATE, StubEngine, make_tokenizer

CALL_LIST = json.dumps({"name": "set_lamp", "parameters": ARGUMENTS})
KNOWING = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{% for message in messages %}"
    "{{ message.role }}: {{ message.content }}{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function.name }} {{ call.function.arguments.room }}</tool_call>{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}{{ '\n' }}{% endfor %}"
)


def playing(text: str, template: str = TEMPLATE, piece: int = 1) -> StubEngine:
    """An engine that says this."""
    tokenizer = make_tokenizer()
    tokenizer.chat_templates["default"] = template
    return StubEngine(tokenizer=tokenizer, text=text, context=8000, pieces=lambda step: piece)


@pytest.mark.parametrize("piece", [1, 3, 500])
@pytest.mark.parametrize(
    ("choice", "text", "finish"),
    [
        (None, CALL, "tool_calls"), ("auto", CALL, "tool_calls"), ("required", CALL, "tool_calls"),
        ("required", '[{"name": "set_lamp", "parameters": {"room": "attic \\"A\\"", "level": 3}}]', "tool_calls"),
        (NAMED, CALL, "stop"), (NAMED, json.dumps(ARGUMENTS), "stop"),
    ],
)  # fmt: skip
def test_a_call_ends_by_the_kind_of_choice(choice: Any, text: str, finish: str, piece: int) -> None:
    [answer] = both(playing(text, piece=piece), tools=TOOLS, tool_choice=choice)
    message = answer["message"]
    assert answer["finish_reason"] == finish
    assert message["content"] is None and "reasoning_content" not in message
    [call] = message["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"]["name"] == "set_lamp" and json.loads(call["function"]["arguments"]) == ARGUMENTS


def test_plain_text_with_tools_given_stops_without_calls() -> None:
    [answer] = both(playing("It is bright."), tools=TOOLS)
    assert answer["finish_reason"] == "stop"
    assert answer["message"] == {"role": "assistant", "content": "It is bright.", "refusal": None}


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
@pytest.mark.parametrize("tokens", [5, 40, 70])
def test_a_call_cut_by_the_length_limit_ends_by_length(choice: Any, tokens: int) -> None:
    [answer] = both(playing(CALL), tools=TOOLS, tool_choice=choice, max_tokens=tokens)
    assert answer["finish_reason"] == "length"


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_answer_that_is_cut_anywhere_has_no_text_beside_its_calls(choice: Any) -> None:
    text = f"[{CALL_LIST}, {CALL_LIST}]" if choice == "required" else json.dumps(ARGUMENTS)
    for tokens in range(1, len(make_tokenizer().encode(text))):
        [answer] = both(playing(text, piece=7), tools=TOOLS, tool_choice=choice, max_tokens=tokens)
        assert answer["finish_reason"] == "length" and not answer["message"]["content"]


def test_text_before_calls_is_content_and_several_calls_are_counted() -> None:
    [answer] = both(playing(f"Two lamps.\n{CALL}\n{CALL}\n"), tools=TOOLS)
    assert answer["message"]["content"] == "Two lamps."
    ids = [call["id"] for call in answer["message"]["tool_calls"]]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("text", ["1 < 2 <tool", '<tool_call>{"name": "set', "Wait. \n\n", "<tool_call> no\n"])
def test_text_held_back_as_a_possible_call_comes_before_the_end(text: str) -> None:
    [answer] = both(playing(text), tools=TOOLS)
    assert answer["message"]["content"] == text and answer["finish_reason"] == "stop"
    count = len(make_tokenizer().encode(text))
    [answer] = both(playing(text), tools=TOOLS, max_tokens=count)
    assert answer["message"]["content"] == text and answer["finish_reason"] == "length"


@pytest.mark.parametrize("piece", [1, 2, 5, 500])
def test_a_call_without_arguments_takes_none_from_the_next_one(piece: int) -> None:
    text = f'<tool_call>\n{{"name": "list_rooms", "arguments": {{}}}}\n</tool_call>\n{CALL}'
    [answer] = both(playing(text, piece=piece), tools=TOOLS)
    calls = [call["function"] for call in answer["message"]["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("list_rooms", {}),
        ("set_lamp", ARGUMENTS),
    ]
    assert answer["message"]["content"] is None and answer["finish_reason"] == "tool_calls"


def test_parallel_calls_can_be_ruled_out() -> None:
    [answer] = both(playing(f"{CALL}{CALL}"), tools=TOOLS, parallel_tool_calls=False)
    assert len(answer["message"]["tool_calls"]) == 1 and answer["finish_reason"] == "tool_calls"


def test_each_choice_of_several_is_read_by_itself() -> None:
    engine = playing("")
    tokenizer = make_tokenizer()
    texts = [CALL, "No.", CALL + CALL]
    engine.plays = lambda ids, params, index: tokenizer.encode(texts[index])
    answers = both(engine, tools=TOOLS, n=3)
    assert [len(answer["message"].get("tool_calls", [])) for answer in answers] == [1, 0, 2]
    assert [answer["finish_reason"] for answer in answers] == ["tool_calls", "stop", "tool_calls"]


def test_without_tools_and_with_tool_choice_none_markup_is_text() -> None:
    engine = playing(CALL)
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        [answer] = both(engine, **fields)
        assert answer["message"]["content"] == CALL and answer["finish_reason"] == "stop"
    assert all("set_lamp" not in prompt_of(engine, number) for number in range(len(engine.started)))


def prompt_of(engine: StubEngine, number: int = -1) -> str:
    """A prompt that the engine got."""
    assert engine.tokenizer is not None
    return engine.tokenizer.decode(engine.started[number][1], skip_special_tokens=False)


def test_logprobs_and_token_ids_go_with_calls() -> None:
    body = {"tools": TOOLS, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    engine = playing(CALL)
    [answer] = both(engine, **body)
    events = run(StubApp(engine).events(CHAT, {"messages": HI, **body}))
    parts = [part for event in events for part in event["choices"]]
    assert [each for part in parts for each in part.get("token_ids", [])] == answer["token_ids"]
    streamed = [each for part in parts for each in (part.get("logprobs") or {"content": []})["content"]]
    assert streamed == answer["logprobs"]["content"]


CONVERSATION = [
    {"role": "user", "content": "Light!"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "set_lamp", "arguments": '{"room": "x"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "done"},
]  # fmt: skip


def test_tools_calls_and_results_reach_a_template_that_knows_them() -> None:
    engine = playing("Fine.", KNOWING)
    both(engine, messages=CONVERSATION, tools=[ROOMS])
    assert prompt_of(engine) == (
        '{"type": "function", "function": {"name": "list_rooms", "parameters": {"type": "object", "properties": {}}}}\n'
        "user: Light!\nassistant: <tool_call>set_lamp x</tool_call>\ntool: done(call_1)\n"
    )


def test_arguments_are_json_text_for_a_template_that_joins_them_to_text() -> None:
    engine = playing(
        "Fine.",
        "{{ tools }}{% for message in messages %}{{ message.role }}{% for call in message.tool_calls or [] %}"
        "{{ ' ' + call['function']['name'] + call['function']['arguments'] }}{% endfor %};{% endfor %}",
    )
    both(engine, messages=CONVERSATION)
    assert prompt_of(engine) == 'Noneuser;assistant set_lamp{"room": "x"};tool;'


def test_a_template_without_tools_gets_them_in_words() -> None:
    engine = playing("Fine.")
    [answer] = both(engine, messages=[{"role": "system", "content": "Be kind."}, *CONVERSATION], tools=[LAMP])
    prompt = prompt_of(engine)
    assert prompt.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n")
    assert f"<tools>\n{json.dumps(LAMP)}\n</tools>" in prompt
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "set_lamp", "arguments": {"room": "x"}}\n</tool_call>' in prompt
    )
    assert prompt.endswith(
        "<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer["message"]["content"] == "Fine."


def test_several_results_in_a_row_share_one_message_for_such_a_template() -> None:
    engine = playing("Fine.")
    more = [*CONVERSATION, {"role": "tool", "tool_call_id": "call_2", "content": "too"}]
    both(engine, messages=more)
    assert prompt_of(engine).count("<|im_start|>user") == 2


def function(**fields: Any) -> dict[str, Any]:
    """A tool."""
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name"),
        ({"tools": [function(name="x" * 200)]}, "tools[0].function.name"),
        ({"tools": [ROOMS, LAMP, ROOMS]}, "tools[2].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function(parameters={"type": "objekt"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function(parameters={"properties": 5})]}, "tools[0].function.parameters.properties"),
        ({"tools": [function(parameters={"properties": {"a": {"type": "strin"}}})]},
         "tools[0].function.parameters.properties.a.type"),
        ({"tools": [function(parameters={"required": "a"})]}, "tools[0].function.parameters.required"),
        ({"tools": [function(parameters={"anyOf": {}})]}, "tools[0].function.parameters.anyOf"),
        ({"tools": 5}, "tools"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
         "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "fly"}}]}}}, "tool_choice.allowed_tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tools_is_told_with_its_place(fields: dict[str, Any], param: str) -> None:
    app = StubApp(playing("x"))
    check_error(run(app.post(CHAT, {"messages": HI, **fields})), 400, param)
    assert app.engine.started == []


def test_deeply_nested_parameters_are_refused_and_not_followed() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"properties": {"a": schema}}
    check_error(run(StubApp(playing("x")).post(CHAT, {"messages": HI, "tools": [function(parameters=schema)]})))


def test_allowed_tools_restrict_what_is_called_but_not_what_is_shown() -> None:
    engine = playing('[{"name": "list_rooms", "parameters": {}}]')
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "list_rooms"}}]}
    [answer] = both(engine, tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert answer["finish_reason"] == "tool_calls" and "set_lamp" in prompt_of(engine)


def test_forced_calls_are_held_to_a_schema() -> None:
    engine = playing(CALL)
    both(engine, tools=TOOLS)
    assert engine.started[-1][2].structured_outputs is None
    both(engine, tools=TOOLS, tool_choice=NAMED)
    constraint = engine.started[-1][2].structured_outputs
    assert constraint is not None and constraint.json == SCHEMA
    both(engine, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    constraint = engine.started[-1][2].structured_outputs
    assert constraint is not None and isinstance(constraint.json, dict)
    assert constraint.json["maxItems"] == constraint.json["minItems"] == 1


def test_tools_can_be_switched_off() -> None:
    app = StubApp(playing("x"), tool_call_parser="none")
    check_error(run(app.post(CHAT, {"messages": HI, "tools": TOOLS})), 400, "tools")
    assert run(app.post(CHAT, {"messages": HI, "tools": TOOLS, "tool_choice": "none"})).status_code == 200


def test_markup_of_special_tokens_is_read_too() -> None:
    engine = playing('<|im_start|>[{"name": "set_lamp", "arguments": {}}]')
    args = {"tool_call_parser": "special_markup:Special"}
    [answer] = both(engine, args, tools=TOOLS)
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "set_lamp", "arguments": "{}"}
    [answer] = both(engine, args)
    assert "<|im_start|>" not in answer["message"]["content"]


def test_a_schema_that_cannot_be_enforced_binds_only_strict_functions() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    engine = playing('{"a": []}')
    named = {"type": "function", "function": {"name": "f"}}
    both(engine, tools=[function(parameters=schema)], tool_choice=named)
    constraint = engine.started[-1][2].structured_outputs
    assert constraint is not None
    assert constraint.json == {"type": "object", "properties": {"a": {"type": "array"}}}
    body = {"messages": HI, "tools": [function(parameters=schema, strict=True)], "tool_choice": named}
    assert "uniqueItems" in check_error(run(StubApp(engine).post(CHAT, body)), 400, "tools")["message"]


STRICT_LAMP = {"type": "function", "function": LAMP["function"] | {"strict": True}}


def test_calls_of_strict_functions_are_held_to_their_schema_where_the_model_may_also_answer_in_words() -> None:
    engine = playing(f"Light.\n{CALL}")
    [answer] = both(engine, tools=[STRICT_LAMP, ROOMS])
    assert answer["message"]["content"] == "Light." and len(answer["message"]["tool_calls"]) == 1
    constraint = engine.started[-1][2].structured_outputs
    assert constraint is not None
    walker, spec = GrammarWalker(), constraint.spec()
    opening = '<tool_call>\n{"name": "'
    for good in (
        "Words only.", "1 < 2 <tool", CALL, f"Light.\n{CALL}\n{CALL} Done.", f"{CALL}<tool_call",
        opening + 'list_rooms", "arguments": {}}\n</tool_call>',
    ):  # fmt: skip
        assert walker.accepts(spec, good), good
    for bad in (
        CALL.replace("3", '"three"'), opening + 'set_lamp", "arguments": []}\n</tool_call>', CALL[:-20],
        opening + 'fly", "arguments": {}}\n</tool_call>', "<tool_call> is a tag.",
    ):  # fmt: skip
        assert not walker.accepts(spec, bad), bad


def test_strict_functions_cost_nothing_else() -> None:
    engine = playing("<think>hm</think>It is bright.", "{{ tools }}{{ messages[0].content }}{# </think> #}")
    [answer] = both(engine, tools=[STRICT_LAMP])
    assert answer["message"]["reasoning_content"] == "hm" and answer["message"]["content"] == "It is bright."
    assert engine.started[-1][2].structured_outputs is not None
    engine = playing("Words.")
    for args, fields in (
        ({}, {"tools": [LAMP]}), ({}, {"tools": [STRICT_LAMP], "tool_choice": "none"}),
        ({"tool_call_parser": "pythonic"}, {"tools": [STRICT_LAMP]}),
        ({"tool_call_parser": "llama3_json"}, {"tools": [STRICT_LAMP]}),
    ):  # fmt: skip
        both(engine, args, **fields)
        assert engine.started[-1][2].structured_outputs is None
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    body = {"messages": HI, "tools": [function(parameters=schema, strict=True)]}
    message = check_error(run(StubApp(engine).post(CHAT, body)), 400, "tools")["message"]
    assert "uniqueItems" in message and "TEXT" not in message
    assert run(StubApp(engine).post(CHAT, {"messages": HI, "tools": [function(parameters=schema)]})).status_code == 200


def test_json_that_is_asked_for_leaves_calls_possible() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    for text, calls in ((CALL, 1), ('{"a": 1}', 0)):
        engine = playing(text)
        [answer] = both(engine, tools=TOOLS, response_format=wanted)
        assert len(answer["message"].get("tool_calls", [])) == calls
        constraint = engine.started[-1][2].structured_outputs
        assert constraint is not None and constraint.grammar is not None
        assert '%json {"type":"object"}' in constraint.grammar and "set_lamp" in constraint.grammar
    both(engine, tools=TOOLS, response_format=wanted, tool_choice="none")
    assert engine.started[-1][2].structured_outputs.json == {"type": "object"}
    both(engine, {"tool_call_parser": "mistral"}, tools=TOOLS, response_format=wanted)
    assert engine.started[-1][2].structured_outputs.json == {"type": "object"}


WORDS = st.sampled_from(
    ["type", "properties", "items", "required", "anyOf", "$ref", "$defs", "enum", "const", "object", "string", "array",
     "#", "#/$defs/a", "a", "additionalProperties", "patternProperties", "not", "\ud800", "format", "x-guidance", ""]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
TOOL = st.fixed_dictionaries(
    {"type": st.just("function")},
    optional={
        "function": JSON
        | st.fixed_dictionaries(
            {"name": st.sampled_from(["f", "g", "h"]), "parameters": st.dictionaries(WORDS, JSON, max_size=4)},
            optional={"description": WORDS, "strict": st.booleans()},
        )
    },
)
CHOICES = st.sampled_from(["auto", "required", "none"]) | st.just(
    {"type": "function", "function": {"name": "f"}}
) | JSON  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(TOOL, max_size=3), CHOICES, st.sampled_from([None, {"type": "json_object"}]))
def test_no_tools_at_all_make_a_500(tools: list[Any], choice: Any, wanted: Any) -> None:
    body = {"messages": HI, "tools": tools, "tool_choice": choice, "response_format": wanted, "max_tokens": 3}
    response = run(StubApp(playing("{}")).post(CHAT, body))
    assert response.status_code in (200, 400), response.text


def test_a_forced_call_has_no_reasoning_before_it() -> None:
    engine = playing('{"room": "</think>"}', "{{ messages[0].content }}<think>\n")
    [answer] = both(engine, tools=TOOLS, tool_choice=NAMED)
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"room": "</think>"}'
    assert "reasoning_content" not in answer["message"]
