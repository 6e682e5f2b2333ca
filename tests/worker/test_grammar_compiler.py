"""What a compiled grammar allows is what its author asked for, and what cannot be enforced is refused by name."""

import json
import threading
import time
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_schemas import FORMATS, GrammarWalker, complaint, random_schema

from octavo.core.errors import RequestError
from octavo.core.grammar import JSON_SCHEMA, LARK, REGEX, GrammarSpec, StructuredOutputs
from octavo.worker.grammar_cache import GrammarCache, GrammarError


@pytest.fixture(scope="module")
def walker() -> GrammarWalker:
    return GrammarWalker()


STRING, INTEGER = {"type": "string"}, {"type": "integer"}

ENFORCED: dict[str, Any] = {
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": -40},
    "multipleOf, a power of two": {"type": "number", "multipleOf": 0.25, "maximum": 9},
    "patternProperties": {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
    "patternProperties beside properties": {
        "type": "object", "properties": {"ab": STRING}, "patternProperties": {"^a": {"minLength": 2}},
    },
    "minProperties that required gives": {
        "type": "object", "properties": {"a": INTEGER}, "required": ["a"], "minProperties": 1,
        "additionalProperties": False,
    },
    "maxProperties": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    "pattern and maxLength": {"type": "string", "pattern": "a+", "maxLength": 4},
    "pattern and minLength": {"type": "string", "pattern": "^[ab]+$", "minLength": 3, "maxLength": 6},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 3},
    "minItems and maxItems": {"type": "array", "items": INTEGER, "minItems": 3, "maxItems": 3},
    "minimum and maximum": {"type": "integer", "minimum": 3, "maximum": 17},
    "exclusive bounds": {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.75},
    "const": {"const": {"a": [1, None, "x"]}},
    "enum of mixed types": {"enum": [1, "a", None, [1], {"b": 2}, 1.5, True]},
    "enum under other keywords": {"enum": [1, 2, "ab", "c"], "pattern": "^a", "minimum": 2},
    "additionalProperties false": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": False},
    "additionalProperties": {"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER},
    "prefixItems": {"type": "array", "prefixItems": [INTEGER, {"type": "boolean"}], "items": False},
    "prefixItems and items": {"type": "array", "prefixItems": [INTEGER], "items": {"const": "z"}, "maxItems": 3},
    "anyOf": {"anyOf": [{"type": "string", "maxLength": 2}, {"minimum": 3, "type": "number"}]},
    "allOf": {"allOf": [INTEGER, {"minimum": 3}, {"maximum": 20}]},
    "oneOf that excludes": {"oneOf": [INTEGER, {"type": "string", "maxLength": 3}]},
    "$ref beside others": {"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer", "minimum": 2}}},
    "recursion": {
        "$ref": "#/$defs/n", "$defs": {"n": {
            "type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": False,
        }},
    },
    "no type": {"properties": {"a": INTEGER}, "required": ["a"], "minimum": 5, "maxLength": 2},
    "type list": {"type": ["integer", "null"], "maximum": 3},
    "uniqueItems false": {"type": "array", "items": INTEGER, "uniqueItems": False, "maxItems": 3},
    "anything": True,
    "required without properties": {"type": "object", "required": ["a", "b"], "additionalProperties": INTEGER},
    "false property": {"type": "object", "properties": {"a": True, "b": False}, "additionalProperties": False},
    "annotations": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "description": "d", "default": 1,
        "examples": [1], "readOnly": True, "deprecated": True, "$comment": "c", "type": "boolean",
    },
} | {f"format {name}": {"type": "string", "format": name} for name in FORMATS}  # fmt: skip

REFUSED: dict[str, tuple[str, Any]] = {
    "uniqueItems": ("uniqueItems", {"type": "array", "items": INTEGER, "uniqueItems": True}),
    "not": ("not", {"not": STRING}),
    "if": ("if", {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}),
    "propertyNames": ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^x"}}),
    "dependentRequired": ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    "contains": ("contains", {"type": "array", "contains": INTEGER}),
    "minProperties": ("minProperties", {"type": "object", "minProperties": 2}),
    "multipleOf a tenth": ("multipleOf", {"type": "number", "multipleOf": 0.1}),
    "multipleOf three for numbers": ("multipleOf", {"type": "number", "multipleOf": 3}),
    "multipleOf of no type": ("multipleOf", {"multipleOf": 3}),
    "multipleOf a million": ("multipleOf", {"type": "integer", "multipleOf": 1_000_003}),
    "format": ("format", {"type": "string", "format": "regex"}),
    "format of one's own": ("format", {"type": "string", "format": "licence-plate"}),
    "unevaluatedProperties": ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
    "oneOf that may overlap": ("oneOf", {"oneOf": [INTEGER, {"type": "number"}]}),
    "look-ahead": ("look-around", {"type": "string", "pattern": "^(?!a)b"}),
    "x-guidance": ("x-guidance", {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}),
}

PLACES: dict[str, Any] = {
    "at the top": lambda schema: schema,
    "in a property": lambda schema: {"type": "object", "properties": {"p": {"type": "array", "items": schema}}},
    "in $defs": lambda schema: {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}], "$defs": {"x": schema}},
    "in allOf": lambda schema: {"allOf": [schema, {}]},
}


@pytest.mark.parametrize("name", ENFORCED)
def test_every_text_that_a_schema_allows_satisfies_it(walker: GrammarWalker, name: str) -> None:
    schema = ENFORCED[name]
    texts = walker.texts(StructuredOutputs(json=schema).spec(), 40)
    assert len(texts) >= 20
    for text in texts:
        assert not complaint(schema, text), text


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_keyword_that_cannot_be_enforced_is_named(walker: GrammarWalker, name: str, place: str) -> None:
    keyword, schema = REFUSED[name]
    with pytest.raises((RequestError, GrammarError)) as caught:
        walker.compiler.compile(StructuredOutputs(json=PLACES[place](schema)).spec())
    assert keyword in str(caught.value)


def test_names_of_properties_and_values_are_no_keywords(walker: GrammarWalker) -> None:
    schema = {
        "type": "object", "required": ["uniqueItems", "x-guidance"], "additionalProperties": False,
        "properties": {
            "uniqueItems": {"enum": [{"minProperties": 9, "format": "zip"}]}, "x-guidance": {"const": {"not": 1}},
        },
    }  # fmt: skip
    (text,) = walker.texts(StructuredOutputs(json=schema).spec(), 1)
    assert not complaint(schema, text)


@settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_random_schemas_are_enforced_or_refused(walker: GrammarWalker, seed: int) -> None:
    schema = random_schema(Random(seed))
    try:
        spec = StructuredOutputs(json=schema).spec()
        texts = walker.texts(spec, 4, seed)
    except (GrammarError, RequestError):
        assume(False)
    for text in texts:
        assert not complaint(schema, text), (schema, text)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("2024-02-29", True), ("2023-02-29", False), ("2000-02-29", True), ("1900-02-29", False), ("2023-04-31", False),
        ("0000-01-01", False), ("0001-12-31", True), ("2023-13-01", False), ("2023-1-1", False),
    ],
)  # fmt: skip
def test_dates_are_days_that_there_were(walker: GrammarWalker, text: str, good: bool) -> None:
    date = StructuredOutputs(json={"type": "string", "format": "date"}).spec()
    assert walker.accepts(date, json.dumps(text)) is good
    moment = StructuredOutputs(json={"type": "string", "format": "date-time", "pattern": "Z$"}).spec()
    assert walker.accepts(moment, json.dumps(f"{text}T23:59:01.5Z")) is good
    assert not walker.accepts(moment, json.dumps(f"{text}T23:59:01+01:00"))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"regex": "("}, "unclosed group"), ({"regex": "[z-"}, "unclosed character class"),
        ({"regex": "b{5,2}"}, "repetition"), ({"regex": "\\"}, "backslash"), ({"regex": "(?=a)a"}, "look-around"),
        ({"regex": "[^\\s\\S]"}, "no text"), ({"json": {"type": "objekt"}}, "objekt"),
        ({"json": {"type": "string", "pattern": "["}}, "unclosed"), ({"json": {"properties": 5}}, "properties"),
        ({"json": "x"}, "no JSON"), ({"json": "5"}, "object or a boolean"), ({"json": {"$ref": "#/nope"}}, "nope"),
        ({"json": {"$ref": "#"}}, "no text"), ({"json": False}, "nothing"), ({"json": {"enum": []}}, "anyOf is empty"),
        ({"json": {"minLength": "x"}}, "minLength"), ({"json": {"$ref": "http://a/b"}}, "http://a/b"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 2}}, "minimum"),
        ({"json": {"type": "string", "pattern": "a\\"}}, "backslash"),
        ({"grammar": 'root ::= foo "a"'}, "foo"), ({"grammar": "start: foo"}, "foo"), ({"grammar": " "}, "empty"),
        ({"grammar": "hello"}, ""), ({"grammar": 'start: %json {"x-guidance": {}}'}, "x-guidance"),
        ({"choice": []}, "empty"), ({"choice": ["a"], "regex": "a"}, "only one"), ({}, "must be given"),
        ({"json_object": False}, "must be given"), ({"choice": ["\ud800"]}, "Unicode"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "at least one"), ({"structural_tag": "{"}, "no JSON"),
        ({"structural_tag": {"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]}}, "trigger"),
        ({"regex": "a" * 300_000}, "characters"), ({"json": "[" * 5000}, "no JSON"),
    ],
)  # fmt: skip
def test_a_bad_constraint_is_refused_with_the_reason(
    walker: GrammarWalker, wanted: dict[str, Any], reason: str
) -> None:
    with pytest.raises((RequestError, GrammarError)) as caught:
        walker.compiler.compile(StructuredOutputs(**wanted).spec())
    assert reason in str(caught.value)


def test_a_schema_nested_a_thousandfold_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(1000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="nested deeper"):
        StructuredOutputs(json=schema).spec()


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ({"choice": ["red", "blue"]}, ["red", "blue"], ["", "re", "redd", "Red", "redblue"]),
        ({"choice": ["naïve 🧭 漢", 'a"b\\\n']}, ["naïve 🧭 漢", 'a"b\\\n'], ["naïve"]),
        ({"choice": ["a", "ab", "a"]}, ["a", "ab"], ["", "abb", "b"]), ({"choice": ["", "b"]}, ["", "b"], ["bb", "a"]),
        ({"choice": [""]}, [""], ["a"]), ({"choice": ["/(|", "#"]}, ["/(|", "#"], ["/", "("]),
        ({"regex": "[0-9]{5}"}, ["12345"], ["1234", "123456", "x2345"]),
        ({"regex": "(|q.*)"}, ["", "q", "qx"], ["x", "q\n"]), ({"regex": "^a|b$"}, ["a", "b"], ["ab", "ax"]),
        ({"regex": "a/b\\/c"}, ["a/b/c"], ["a"]), ({"regex": '"#x\\\\'}, ['"#x\\'], []),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "{} ", " {}", '{"a":1,}', "{'a':1}"]),
        ({"json": '{"type": "integer"}'}, ["5", "-12"], ["5.0", "05", "+5", "x"]),
        ({"grammar": 'start: A ("+" A)*\nA: /[0-9]+/'}, ["1+22"], ["1+", "+1"]),
        ({"grammar": 'root ::= pair+\npair ::= "(" [a-c]* ")"'}, ["(ab)()"], ["(d)", ""]),
        (
            {"structural_tag": {"triggers": ["<f="], "structures": [
                {"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"},
                {"begin": "<f=say>", "schema": {"type": "string", "maxLength": 3}, "end": "</f>"},
            ]}},
            ["plain", "a <f=add>5</f> b <f=say>\"x\"</f>", "", "<f"], ["<f=add>x</f>", "<f=mul>5</f>", "<f=add>5"],
        ),
    ],
)  # fmt: skip
def test_exactly_what_is_meant_is_allowed(
    walker: GrammarWalker, wanted: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    spec = StructuredOutputs(**wanted).spec()
    for text in good:
        assert walker.accepts(spec, text), text
    for text in bad:
        assert not walker.accepts(spec, text), text


def test_large_grammars_are_followed_to_their_end(walker: GrammarWalker) -> None:
    names = [f"p{number}" for number in range(2000)]
    schema = {"type": "object", "properties": dict.fromkeys(names, INTEGER), "additionalProperties": False}
    assert walker.accepts(StructuredOutputs(json=schema).spec(), '{"p5": 1, "p1999": 2}')
    assert not walker.accepts(StructuredOutputs(json=schema).spec(), '{"p5": 1, "p2000": 2}')
    required = StructuredOutputs(json=schema | {"required": names, "properties": dict.fromkeys([*names, "q"], INTEGER)})
    assert not walker.accepts(required.spec(), "{}")
    schema["properties"]["q"] = INTEGER
    with pytest.raises(RequestError, match=r"properties.* 2001 are not required"):
        StructuredOutputs(json=schema).spec()
    options = [f"option number {number}" for number in range(10_000)]
    choice = StructuredOutputs(choice=options).spec()
    assert walker.accepts(choice, "option number 9999") and not walker.accepts(choice, "option number 10000")
    (text,) = walker.texts(choice, 1)
    assert text in options


def test_blanks_in_json_have_an_end(walker: GrammarWalker) -> None:
    spec = StructuredOutputs(json={"type": "array"}).spec()
    assert walker.accepts(spec, "[\n" + " " * 20 + "1 , 2 ]")
    assert not walker.accepts(spec, "[" + " " * 100 + "]")
    structure = {"begin": "<a>", "schema": {"type": "array"}, "end": "</a>"}
    tagged = StructuredOutputs(structural_tag={"structures": [structure], "triggers": ["<a>"]}).spec()
    assert walker.accepts(tagged, "x<a>[\n" + " " * 20 + "1 , 2 ]</a>")
    assert not walker.accepts(tagged, "x<a>[" + " " * 100 + "]</a>")


def test_forced_text_is_cut_into_exactly_its_bytes_even_by_a_tokenizer_that_adds_some() -> None:
    from tokenizers import Tokenizer, models, normalizers

    from octavo.worker.grammar_cache import Vocabulary
    from octavo.worker.grammar_compiler import GrammarCompiler

    # A sentencepiece-like tokenizer puts a blank before every text.
    pieces = ["<unk>", "</s>", "▁a", "▁", "a", "b", "{", "}", '"', ":", "1", "▁{"]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[("▁", "a"), ("▁", "{")]))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    table = [piece.replace("▁", " ").encode() for piece in pieces]
    compiler = GrammarCompiler(
        Vocabulary(token_bytes=table, special_ids=[0, 1], end_ids=[1], definition=backend.to_str())
    )
    matcher = compiler.compile(GrammarSpec(LARK, 'start: "{ab}" | "{aa}"'))
    assert matcher.compute_ff_tokens() == [6, 4]


class _SlowCompiler:
    """Takes as long as the test wants."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.gate = threading.Event()
        self.compiled: list[GrammarSpec] = []

    def compile(self, spec: GrammarSpec) -> Any:
        self.compiled.append(spec)
        if spec.text.startswith("slow"):
            assert self.gate.wait(20)
        return self.inner.compile(spec)


def test_the_cache_compiles_in_the_background_once_and_keeps_what_is_held(walker: GrammarWalker) -> None:
    cache = GrammarCache(capacity=2)
    compiler = _SlowCompiler(walker.compiler)
    cache._compiler = compiler  # type: ignore[assignment]
    slow, quick, bad = GrammarSpec(REGEX, "slow"), GrammarSpec(REGEX, "quick"), GrammarSpec(REGEX, "(")
    cache.start(slow)
    cache.start(quick)
    cache.start(bad)
    _wait(lambda: cache.state(quick) == "" and cache.state(bad) is not None)
    assert cache.state(slow) is None
    assert "unclosed" in str(cache.state(bad))
    with pytest.raises(GrammarError, match="unclosed"):
        cache.matcher(bad)
    compiler.gate.set()
    assert cache.matcher(slow).is_accepting() is False
    cache.start(slow)
    for number in range(5):
        cache.start(GrammarSpec(REGEX, f"other{number}"))
        cache.release(GrammarSpec(REGEX, f"other{number}"))
    assert cache.state(slow) == "" and compiler.compiled.count(slow) == 1
    for spec in (slow, slow, quick, bad):
        cache.release(spec)
    assert len(cache._entries) <= 2 and not cache._holds
    cache.close()


def test_two_matchers_of_one_grammar_are_independent(walker: GrammarWalker) -> None:
    start = walker.compiler.compile(GrammarSpec(JSON_SCHEMA, '{"enum":["ab","cd"]}'))
    first, second = start.deep_copy(), start.deep_copy()
    quote, a, c = (walker.vocabulary.token_bytes.index(text) for text in (b'"', b"a", b"c"))
    assert first.consume_tokens([quote, a]) and second.consume_tokens([quote, c])


def _wait(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)
