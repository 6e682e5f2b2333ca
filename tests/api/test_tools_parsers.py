"""The parsers of tool calls: what models write, in every split."""

import json
import random
from typing import Any

import pytest
from answer_reading import TOOLS, Answer, cut, read
from call_markup import (
    COMMON,
    DEEPSEEK_31_PAIR,
    DEEPSEEK_PAIR,
    FRAGMENTS,
    HERMES_PAIR,
    LISTED,
    LLAMA_PAIR,
    PAIR,
    PYTHONIC_PAIR,
    QWEN3_CODER_PAIR,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.api.answer_parts import CallArguments, ContentText
from octavo.api.tools.forced import ForcedCallParser
from octavo.api.tools.json_calls import HermesParser
from octavo.api.tools.registry import TOOL_PARSERS
from octavo.api.tools.text_machine import MAX_DOUBT
from octavo.api.tools.tool_parser import ToolParser

# Format, text, content, calls.
OUTPUTS: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", HERMES_PAIR, "", PAIR),
    ("hermes", "Let me look.\n\n" + HERMES_PAIR + "\n", "Let me look.", PAIR),
    ("hermes", HERMES_PAIR + "\n\nDone.\n", "\n\nDone.\n", PAIR),
    ("hermes", HERMES_PAIR.removesuffix("\n</tool_call>"), "", PAIR),
    ("hermes", '<tool_call>{"name": "list_rooms"}</tool_call>', "", [("list_rooms", {})]),
    (
        "hermes",
        '<tool_call>{"arguments": {"level": 1}, "name": "set_lamp"}</tool_call>',
        "",
        [("set_lamp", {"level": 1})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "set_lamp", "arguments": "{\\"level\\": 1}"}</tool_call>',
        "",
        [("set_lamp", {"level": 1})],
    ),
    ("hermes", '<tool_call>{"name": "list_rooms", "arguments": null}</tool_call>', "", [("list_rooms", {})]),
    (
        "hermes",
        '<tool_call>{"id": 7, "name": "list_rooms", "arguments": {}, "why": ["a", {}]}}\n</tool_call>',
        "",
        [("list_rooms", {})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "set_lamp", "arguments": {"note": "a\nb\tc"}}</tool_call>',
        "",
        [("set_lamp", {"note": "a\nb\tc"})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "set_lamp", "arguments": {"note": "</tool_call>}"}}</tool_call>',
        "",
        [("set_lamp", {"note": "</tool_call>}"})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "list_rooms"}\n{"name": "set_lamp", "arguments": {"level": 2}}</tool_call>',
        "",
        [("list_rooms", {}), ("set_lamp", {"level": 2})],
    ),
    ("hermes", '<tool_call>{"why\\\\": "\\"", "name": "list_rooms"}</tool_call>', "", [("list_rooms", {})]),
    ("hermes", "The tag <tool_call> opens a call.", "The tag <tool_call> opens a call.", []),
    ("hermes", 'A <tool_call> {"nome": "x"} </tool_call> b', 'A <tool_call> {"nome": "x"} </tool_call> b', []),
    ("hermes", "<tool_call> is a tag. " + HERMES_PAIR, "<tool_call> is a tag.", PAIR),
    ("hermes", "1 < 2 <tool", "1 < 2 <tool", []),
    ("hermes", '<tool_call>{"name": "list_ro', '<tool_call>{"name": "list_ro', []),
    ("hermes", "No call at all.\n", "No call at all.\n", []),
    ("hermes", "", "", []),
    ("granite", "<|tool_call|>" + LISTED, "", PAIR),
    ("granite", "<tool_call>" + LISTED, "", PAIR),
    ("granite", "I will. <|tool_call|> none", "I will. <|tool_call|> none", []),
    ("llama3_json", LLAMA_PAIR, "", PAIR),
    ("llama3_json", "<|python_tag|>" + LLAMA_PAIR, "", PAIR),
    ("llama3_json", '{"type": "function", "name": "list_rooms", "parameters": {}}', "", [("list_rooms", {})]),
    ("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}', '{"name": "Bob", "parameters": {"age": 3}}', []),
    ("llama3_json", ' {"a": [1, 2]} ', ' {"a": [1, 2]} ', []),
    ("llama3_json", 'Use {"name": "list_rooms"}', 'Use {"name": "list_rooms"}', []),
    ("mistral", "[TOOL_CALLS]" + LISTED, "", PAIR),
    ("mistral", "[TOOL_CALLS] " + LISTED + "\n", "", PAIR),
    (
        "mistral",
        "Well. [TOOL_CALLS]list_rooms[ARGS]{}[TOOL_CALLS]set_lamp"
        '[CALL_ID]a1b2c3d4e[ARGS]{"room": "attic \\"A\\"", "level": 3}',
        "Well.",
        PAIR,
    ),
    ("mistral", '[TOOL_CALLS]list_rooms{}[TOOL_CALLS]set_lamp{"room": "attic \\"A\\"", "level": 3}', "", PAIR),
    ("mistral", "[TOOL_CALLS] are made so", "[TOOL_CALLS] are made so", []),
    ("pythonic", PYTHONIC_PAIR, "", PAIR),
    ("pythonic", "<|python_start|>" + PYTHONIC_PAIR + "<|python_end|>", "", PAIR),
    ("pythonic", '[set_lamp("attic", 3)]', "", [("set_lamp", {"room": "attic", "level": 3})]),
    (
        "pythonic",
        "[set_lamp(colors=['a,b', \"c)\"], note=None)]",
        "",
        [("set_lamp", {"colors": ["a,b", "c)"], "note": None})],
    ),
    ("pythonic", "[set_lamp(level=true, room=kitchen)]", "", [("set_lamp", {"level": True, "room": "kitchen"})]),
    (
        "pythonic",
        "[set_lamp(room='it\\'s', colors=(1, -2.5e3))]",
        "",
        [("set_lamp", {"room": "it's", "colors": [1, -2500.0]})],
    ),
    ("pythonic", "[set_lamp(room='x\ny', level=1)]", "", [("set_lamp", {"room": "x\ny", "level": 1})]),
    ("pythonic", '[set_lamp(colors=["a\t\\"\r", "\x00"])]', "", [("set_lamp", {"colors": ['a\t"\r', "\x00"]})]),
    (
        "pythonic",
        "[set_lamp(note='''it's, a \"b)\"\r\n''', room='')]",
        "",
        [("set_lamp", {"note": 'it\'s, a "b)"\r\n', "room": ""})],
    ),
    ("pythonic", '[set_lamp(note="""a "b, c" d""", level=1)]', "", [("set_lamp", {"note": 'a "b, c" d', "level": 1})]),
    ("pythonic", "[set_lamp(room='a\\\\', note='b''')]", "", [("set_lamp", {"room": "a\\", "note": "b"})]),
    ("pythonic", "[set_lamp(note=two\nlines)]", "", [("set_lamp", {"note": "two\nlines"})]),
    ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    ("pythonic", "[sorted(a=1)]", "[sorted(a=1)]", []),
    ("pythonic", "Yes: [list_rooms()]", "Yes: [list_rooms()]", []),
    ("deepseek_v3", DEEPSEEK_PAIR, "", PAIR),
    ("deepseek_v3", "Sure.\n" + DEEPSEEK_31_PAIR, "Sure.", PAIR),
    ("deepseek_v3", "<｜tool▁call▁begin｜>list_rooms<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", [("list_rooms", {})]),
    ("deepseek_v3", "a <｜tool▁calls▁begin｜> b", "a <｜tool▁calls▁begin｜> b", []),
    ("qwen3_coder", QWEN3_CODER_PAIR, "", PAIR),
    ("qwen3_coder", "I will.\n" + QWEN3_CODER_PAIR + "\n", "I will.", PAIR),
    ("qwen3_coder", "<function=list_rooms></function>", "", [("list_rooms", {})]),
    (
        "qwen3_coder",
        '<tool_call>\n<function=set_lamp>\n<parameter=note>\na\n\n<b>\n</parameter>\n<parameter=colors>\n["x"]\n</parameter>\n</function>\n</tool_call>',
        "",
        [("set_lamp", {"note": "a\n\n<b>", "colors": ["x"]})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=set_lamp>\n"
        "<parameter=colors>\n['x\ny', None]\n</parameter>\n<parameter=level>\nfull\n</parameter>\n</function>",
        "",
        [("set_lamp", {"colors": ["x\ny", None], "level": "full"})],
    ),
    ("qwen3_coder", "<tool_call> or not", "<tool_call> or not", []),
]


def parser(name: str) -> ToolParser:
    """A fresh one, that knows the tools."""
    return TOOL_PARSERS[name](TOOLS)


def decoded(answer: Answer) -> list[tuple[str, Any]]:
    """The calls with their arguments as values."""
    return [(name, json.loads(arguments)) for name, arguments in answer.calls]


@pytest.mark.parametrize(("name", "text", "content", "calls"), OUTPUTS)
def test_a_models_output_is_read_the_same_in_every_split(
    name: str, text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    whole = read(parser(name), [text])
    assert (whole.content, decoded(whole)) == (content, calls)
    assert read(parser(name), text) == whole
    for place in range(len(text)):
        assert read(parser(name), cut(text, [place])) == whole
    chance = random.Random(text)
    for _ in range(20):
        places = chance.sample(range(len(text) + 1), min(len(text), chance.randint(1, 12)))
        assert read(parser(name), cut(text, places)) == whole


def test_two_calls_in_hermes_markup_come_out_right_in_200_random_splits() -> None:
    chance = random.Random(0)
    for _ in range(200):
        places = chance.sample(range(len(HERMES_PAIR)), chance.randint(1, 60))
        answer = read(parser("hermes"), cut(HERMES_PAIR, places))
        assert answer.content == "" and decoded(answer) == PAIR


@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@given(data=st.data())
def test_any_text_around_markup_is_read_the_same_in_any_split(name: str, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(FRAGMENTS[name] + COMMON) | st.text(max_size=3), max_size=14))
    text = "".join(pieces)
    whole = read(parser(name), [text])
    assert read(parser(name), text) == whole
    assert read(parser(name), pieces) == whole
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert read(parser(name), cut(text, places)) == whole
    if not whole.calls:
        assert whole.content == text
    forced = ForcedCallParser(TOOLS, None, parser(name))
    other = ForcedCallParser(TOOLS, None, parser(name))
    assert read(forced, [text]) == read(other, cut(text, places))


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: value if isinstance(value, dict) else {"a": value}),
    st.booleans(),
    st.integers(1, 9),
)
def test_any_arguments_arrive_as_they_were_written(arguments: dict[str, Any], ascii_only: bool, size: int) -> None:
    written = json.dumps({"name": "set_lamp", "arguments": arguments}, ensure_ascii=ascii_only)
    pythonic = ", ".join(f"a{number}={value!r}" for number, value in enumerate(arguments.values()))
    texts = {
        "hermes": f"<tool_call>\n{written}\n</tool_call>",
        "granite": f"<|tool_call|>[{written}]",
        "llama3_json": written,
        "mistral": f"[TOOL_CALLS][{written}]",
        "deepseek_v3": f"<｜tool▁call▁begin｜>set_lamp<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>",
        "pythonic": f"[set_lamp({pythonic})]",
    }
    for name, text in texts.items():
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        answer = read(parser(name), pieces)
        expected = arguments
        if name == "pythonic":
            expected = {f"a{number}": value for number, value in enumerate(arguments.values())}
        assert answer.content == "" and decoded(answer) == [("set_lamp", expected)]


STRING, NULL, INTEGER = {"type": "string"}, {"type": "null"}, {"type": "integer"}
NULLABLE = {"anyOf": [STRING, NULL]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (NULLABLE, "90210", "90210"), (NULLABLE, "true", "true"), (NULLABLE, '{"a": 1}', '{"a": 1}'),
        (NULLABLE, "null", None), (NULLABLE, "null\n", "null\n"), (NULLABLE, "nullable", "nullable"),
        (STRING, "null", "null"), ({"type": ["string", "null"]}, "[1]", "[1]"), ({"enum": ["1", None]}, "1", "1"),
        ({"const": "1"}, "1", "1"), ({"allOf": [STRING, {"title": "T"}]}, "1", "1"),
        ({"oneOf": [STRING, INTEGER]}, "5", 5), ({"oneOf": [STRING, INTEGER]}, "5.5", "5.5"),
        ({"oneOf": [STRING, INTEGER]}, "True", "True"), ({"type": ["number", "string"]}, "5", 5),
        ({"anyOf": [STRING, {"type": "array"}]}, "['x']", ["x"]), ({"enum": ["a", 1]}, "1", 1),
        ({"anyOf": [STRING, {"$ref": "#/$defs/A"}]}, "5", 5), (INTEGER, "full", "full"), (INTEGER, "5.5", 5.5),
        ({}, "5", "5"), (True, "5", "5"), ({"description": "of which nothing is known"}, "5", "5"),
        ({"type": 5}, "5", 5), ({"enum": 5}, "5", 5), ({"anyOf": 5, "allOf": {"a": 1}}, "5", 5),
    ],
)  # fmt: skip
def test_values_without_a_type_are_what_their_schema_allows(schema: Any, text: str, value: Any) -> None:
    markup = f"<function=f><parameter=a>\n{text}\n</parameter><parameter=b>b</parameter></function>"
    for place in range(len(markup)):
        reader = TOOL_PARSERS["qwen3_coder"]({"f": {"properties": {"a": schema}}})
        assert decoded(read(reader, cut(markup, [place]))) == [("f", {"a": value, "b": "b"})]


def test_arguments_stream_as_they_come_and_not_at_the_end() -> None:
    machine = parser("hermes")
    machine.feed('<tool_call>{"name": "set_lamp", "arguments": {"note": "')
    for word in ("one ", "two "):
        assert machine.feed(word) == [CallArguments(0, word)]
    coder = parser("qwen3_coder")
    coder.feed("<function=set_lamp><parameter=room>")
    coder.feed("line")
    assert coder.feed('"1"\n') == [CallArguments(0, '\\"1\\"')]
    coder.feed("</parameter><parameter=note>null")
    assert coder.feed(" and") == [CallArguments(0, '"'), CallArguments(0, "null and")]


def test_plain_text_is_not_held_back() -> None:
    machine = parser("hermes")
    for word in ("Hello", " world", " 1 < 2"):
        assert machine.feed(word) == [ContentText(word)]


def test_calls_that_are_cut_keep_what_was_written() -> None:
    cases = {
        "hermes": '<tool_call>{"name": "set_lamp", "arguments": {"room": "att',
        "qwen3_coder": "<tool_call>\n<function=set_lamp>\n<parameter=room>\natt",
        "mistral": '[TOOL_CALLS]set_lamp[ARGS]{"room": "att',
    }
    for name, text in cases.items():
        assert read(parser(name), text) == Answer(calls=[("set_lamp", '{"room": "att')])


def test_what_stays_doubtful_for_too_long_is_text() -> None:
    text = '<tool_call>{"id": "' + "x" * (2 * MAX_DOUBT) + '", "name": "list_rooms"}</tool_call>'
    assert read(parser("hermes"), [text]) == read(parser("hermes"), text) == Answer(content=text)


def test_many_openings_without_calls_take_no_quadratic_time() -> None:
    text = '<tool_call>{"a": "' * 3000
    assert read(parser("hermes"), [text[i : i + 50] for i in range(0, len(text), 50)]).content == text


def test_mistrals_ids_have_nine_letters_or_digits() -> None:
    start = parser("mistral").feed("[TOOL_CALLS]list_rooms{}")[0]
    assert len(start.id) == 9 and start.id.isalnum()  # type: ignore[union-attr]
    other = parser("hermes").feed('<tool_call>{"name": "a"}')[0]
    assert other.id.startswith("call_")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("named", "text", "calls"),
    [
        ("set_lamp", '{"room": "a", "level": 1}', [("set_lamp", {"room": "a", "level": 1})]),
        ("list_rooms", " {}\n", [("list_rooms", {})]),
        (None, '[{"name": "set_lamp", "parameters": {"level": 1}}, {"name": "list_rooms", "parameters": {}}]',
         [("set_lamp", {"level": 1}), ("list_rooms", {})]),
        (None, HERMES_PAIR, PAIR),
        ("set_lamp", HERMES_PAIR, PAIR),
    ],
)  # fmt: skip
def test_forced_calls_are_read_in_every_split(named: str | None, text: str, calls: list[tuple[str, Any]]) -> None:
    for place in range(len(text)):
        answer = read(ForcedCallParser(TOOLS, named, HermesParser(TOOLS)), cut(text, [place]))
        assert (answer.content, decoded(answer)) == ("", calls)
