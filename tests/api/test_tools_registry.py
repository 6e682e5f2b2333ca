"""Parsers by name and by chat template, and what a request's tools become."""

import re
from pathlib import Path

import pytest
from answer_reading import read
from random_schemas import GrammarWalker
from source_tree import ROOT

from octavo.api.server_args import ServerArgs
from octavo.api.tools.loose_schema import loosened
from octavo.api.tools.registry import TOOL_PARSERS, detected_parser, tool_parser_class
from octavo.api.tools.tool_use import FunctionDefinition, ToolUse
from octavo.core.errors import ConfigurationError
from octavo.core.grammar import StructuredOutputs


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("For each function call, return <tool_call></tool_call>", "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=a>", "qwen3_coder"),
        ("{{ '[TOOL_CALLS]' }}[AVAILABLE_TOOLS]", "mistral"),
        ("start with <|tool_call|> followed by a JSON list", "granite"),
        ("{{ '<|python_tag|>' }} {\"name\": function name, \"parameters\": dictionary}", "llama3_json"),
        ("<|eot_id|> {\"name\": function name, \"parameters\": dictionary}", "llama3_json"),
        ("[func_name1(params_name1=params_value1, ...)]", "pythonic"),
        ("Use exact format: [func_name1(param1=value1), func_name2(...)] <|eot|>", "pythonic"),
        ('<|eot|> {"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}", "deepseek_v3"),
        ("{{ messages }}", "hermes"),
        ("", "hermes"),
    ],
)  # fmt: skip
def test_the_format_is_found_by_the_template(template: str, name: str) -> None:
    assert detected_parser(template) is TOOL_PARSERS[name]
    assert tool_parser_class("auto", template) is TOOL_PARSERS[name]


def test_parsers_are_chosen_by_name_and_a_wrong_name_is_told() -> None:
    assert tool_parser_class("mistral", "<tool_call>") is TOOL_PARSERS["mistral"]
    assert tool_parser_class("deepseek_v31", "") is TOOL_PARSERS["deepseek_v3"]
    assert tool_parser_class("none", "<tool_call>") is None
    for name in ("hermez", "no_such_module:Parser", "json:JSONDecoder", "json:nothing"):
        with pytest.raises(ConfigurationError, match="--tool-call-parser"):
            tool_parser_class(name, "")
    with pytest.raises(ConfigurationError, match="--tool-call-parser"):
        ServerArgs(tool_call_parser="hermez").check()
    with pytest.raises(ConfigurationError, match="--reasoning-parser"):
        ServerArgs(reasoning_parser="hermez").check()


def test_the_schema_of_required_calls_keeps_each_tools_own_references() -> None:
    own = {
        "properties": {"a": {"$ref": "#/$defs/A"}, "self": {"$ref": "#"}},
        "$defs": {"A": {"type": "string"}},
    }
    tools = [FunctionDefinition(name="f", parameters=own), FunctionDefinition(name="g")]
    schema = ToolUse(tools, "required").answer_schema()
    assert schema["minItems"] == 1 and "maxItems" not in schema
    first, second = schema["items"]["anyOf"]
    assert first["properties"]["name"] == {"const": "f"}
    assert first["properties"]["parameters"] == {"$ref": "#/$defs/tool0"}
    assert second["required"] == ["name", "parameters"]
    moved = schema["$defs"]["tool0"]
    assert moved["type"] == "object"
    assert moved["properties"] == {"a": {"$ref": "#/$defs/tool0/$defs/A"}, "self": {"$ref": "#/$defs/tool0"}}
    assert own["properties"]["a"] == {"$ref": "#/$defs/A"}, "the request's own schema is left as it was"
    assert ToolUse(tools, "required", parallel=False).answer_schema()["maxItems"] == 1
    assert ToolUse(tools[:1], "named").answer_schema() == {"type": "object"} | own


def test_a_forced_call_of_a_function_without_parameters_has_no_arguments() -> None:
    walker, ping = GrammarWalker(), [FunctionDefinition(name="ping"), FunctionDefinition(name="any", parameters={})]
    for loose in (False, True):
        spec = StructuredOutputs(json=ToolUse(ping[:1], "named").answer_schema(loose)).spec()
        assert walker.accepts(spec, "{}") and not walker.accepts(spec, '{"host": "a"}')
        spec = StructuredOutputs(json=ToolUse(ping, "required").answer_schema(loose)).spec()
        call = '[{"name":"%s","parameters":{"a":1}}]'
        assert walker.accepts(spec, call % "any") and not walker.accepts(spec, call % "ping")


def test_loosened_schemas_keep_names_and_types() -> None:
    schema = {
        "type": "object",
        "title": "T",
        "properties": {
            "a": {"type": "array", "items": {"type": "string", "format": "path"}, "uniqueItems": True},
            "b": {"oneOf": [{"const": 1}, {"$ref": "#/$defs/B"}], "not": {"const": 2}},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"B": {"type": "integer", "multipleOf": 3}},
    }
    assert loosened(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "string"}},
            "b": {"anyOf": [{"const": 1}, {"$ref": "#/$defs/B"}]},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"B": {"type": "integer"}},
    }
    assert loosened({"patternProperties": {"a": {}}, "additionalProperties": False}) == {}


def test_a_loosened_tuple_keeps_the_types_of_its_places() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "string", "format": "path"}, True], "items": False}
    loose = loosened(schema | {"uniqueItems": True})
    assert loose == {"type": "array", "prefixItems": [{"type": "string"}, True], "items": False}
    walker, spec = GrammarWalker(), StructuredOutputs(json=loose).spec()
    assert walker.accepts(spec, '["a", 2]') and not walker.accepts(spec, "[1]")
    spec = StructuredOutputs(json=loosened(schema | {"items": {"type": "number"}})).spec()
    assert walker.accepts(spec, '["a", "b", 3]') and not walker.accepts(spec, '["a", "b", "c"]')


def test_the_parser_that_the_documentation_shows_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "http-api.md").read_text("utf-8")
    [code] = re.findall(r"```python\n(from octavo.api.tools.*?)```", text, re.DOTALL)
    (tmp_path / "arrow_format.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    parser = tool_parser_class("arrow_format:ArrowParser", "")
    assert parser is not None
    text = 'Now:\n-> f {"a": 1}\n-> none\nbye'
    for pieces in ([text], text):
        answer = read(parser({}), pieces)
        assert answer.calls == [("f", '{"a": 1}')] and answer.content == "Now:-> none\nbye"
