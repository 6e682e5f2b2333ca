"""What shape an answer must have: a JSON schema, a pattern, one of several texts, a grammar, or text with tagged parts.

``StructuredOutputs`` is what a caller asks for. ``GrammarSpec`` is what travels to the engine and its workers: every
request is brought to one of three kinds of text (a JSON schema, a regular expression, a Lark grammar).
"""

import json as jsonlib
from collections.abc import Collection
from typing import Any

import msgspec

from .errors import RequestError
from .json_schema import enforceable_schema

MAX_GRAMMAR_CHARACTERS = 256 * 1024
"""Longest schema or grammar. A compiled grammar takes some hundred times its text in memory."""

MAX_CHOICE_OPTIONS = 10_000

BLANKS = r"[ \n\r\t]{1,32}"
"""What may stand between JSON's tokens. Any number of blanks would be legal, and a model can get lost in them; so many
indent ten levels."""

PARAM = "structured_outputs"
"""What errors call the field; each API renames it to its own."""

JSON_SCHEMA = "json_schema"
REGEX = "regex"
LARK = "lark"


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A grammar as text, checked as far as that needs no tokenizer. Hashable: equal specs share what is compiled."""

    kind: str
    """``json_schema``, ``regex`` or ``lark`` (a Lark or a GBNF grammar)."""
    text: str


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Constrains the answer; exactly one field must be given. The names are those of vLLM."""

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, as an object or as its text. The answer is a JSON value that satisfies it."""
    json_object: bool | None = None
    """The answer is some JSON object."""
    regex: str | None = None
    """The whole answer matches this pattern, in the syntax of Rust's regex crate (no look-around)."""
    choice: list[str] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A grammar in Lark syntax (rule ``start``) or in GBNF, llama.cpp's EBNF (rule ``root``)."""
    structural_tag: str | dict[str, Any] | None = None
    """Free text in which certain tags begin parts with a schema: ``{"structures": [{"begin", "schema", "end"}],
    "triggers": [...]}``. After a trigger one of the structures that begin with it must follow."""

    @property
    def given(self) -> list[str]:
        """Names of the fields that ask for something."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [name for name, value in values if value is not None and not (name == "json_object" and not value)]

    def spec(self, special_tokens: Collection[str] = ()) -> GrammarSpec:
        """The grammar to compile. ``special_tokens``: texts that are one token and no plain text (for triggers).

        Raises ``RequestError`` if not exactly one field is given, if a value is malformed or too long, and for schema
        keywords that cannot be enforced.
        """
        given = self.given
        if not given:
            raise RequestError(f"one of {', '.join(self.__struct_fields__)} must be given", PARAM)
        if len(given) > 1:
            raise RequestError(f"only one constraint can be given, not {' and '.join(given)}", PARAM)
        spec = self._spec(given[0], special_tokens)
        if len(spec.text) > MAX_GRAMMAR_CHARACTERS:
            raise RequestError(
                f"the {given[0]} constraint has {len(spec.text)} characters; at most {MAX_GRAMMAR_CHARACTERS} are "
                "allowed",
                PARAM,
            )
        return spec

    def _spec(self, name: str, special_tokens: Collection[str]) -> GrammarSpec:
        if name == "json_object":
            return GrammarSpec(JSON_SCHEMA, '{"type":"object"}')
        if name == "json":
            return GrammarSpec(JSON_SCHEMA, _schema_text(self.json))
        if self.regex is not None:
            check_pattern(self.regex)
            return GrammarSpec(REGEX, self.regex)
        if self.choice is not None:
            return GrammarSpec(LARK, _choice_grammar(self.choice))
        if self.grammar is not None:
            if not self.grammar.strip():
                raise RequestError("the grammar is empty", PARAM)
            if "x-guidance" in self.grammar:
                raise RequestError("x-guidance is not allowed in a grammar: it would loosen the schema's rules", PARAM)
            return GrammarSpec(LARK, self.grammar)
        return GrammarSpec(LARK, _tag_grammar(self.structural_tag, special_tokens))


def check_pattern(pattern: str) -> None:
    """Raises ``RequestError`` for a pattern that ends in the middle of an escape: its end would swallow what follows
    it in a grammar."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise RequestError(f"the pattern {pattern[:100]!r} ends with a backslash that escapes nothing", PARAM)


def _schema_text(schema: Any) -> str:
    """The schema in the form that is compiled. Raises ``RequestError``."""
    if isinstance(schema, str):
        schema = _decoded(schema, "the JSON schema")
    return jsonlib.dumps(enforceable_schema(schema), ensure_ascii=False, separators=(",", ":"))


def _embedded_schema(schema: Any) -> str:
    """The same inside of a grammar, where options of the library can only be given in the schema itself."""
    options = {"x-guidance": {"whitespace_pattern": BLANKS}}
    return jsonlib.dumps(options | jsonlib.loads(_schema_text(schema)), ensure_ascii=False, separators=(",", ":"))


def _decoded(text: str, what: str) -> Any:
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise RequestError(f"{what} has {len(text)} characters; at most {MAX_GRAMMAR_CHARACTERS} are allowed", PARAM)
    try:
        return jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is given as text that is no JSON: {error}", PARAM) from error


def _choice_grammar(options: list[str]) -> str:
    if not options:
        raise RequestError("choice must not be empty", PARAM)
    if len(options) > MAX_CHOICE_OPTIONS:
        raise RequestError(f"choice has {len(options)} options; at most {MAX_CHOICE_OPTIONS} are allowed", PARAM)
    texts = [quoted(option) for option in dict.fromkeys(options) if option]
    if len(texts) < len(set(options)):
        return "start: OPTION |\nOPTION: " + " | ".join(texts) if texts else 'start: ""'
    # One lexeme: as many rules, thousands of options would be too many for a parser's row.
    return "start: OPTION\nOPTION: " + " | ".join(texts)


def quoted(text: str) -> str:
    """A Lark string that stands for exactly ``text``."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"a text of the constraint is not valid Unicode: {error}", PARAM) from error
    return jsonlib.dumps(text, ensure_ascii=False)


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    schema: Any
    end: str


class _Tags(msgspec.Struct, forbid_unknown_fields=True):
    structures: list[_Structure]
    triggers: list[str]
    type: str = "structural_tag"


def _tag_grammar(given: Any, special_tokens: Collection[str]) -> str:
    """Text up to a trigger, then one of the structures that begin with it, over and over; then text to the end."""
    if isinstance(given, str):
        given = _decoded(given, "structural_tag")
    try:
        tags = msgspec.convert(given, _Tags)
    except msgspec.ValidationError as error:
        raise RequestError(f"structural_tag must have structures and triggers: {error}", PARAM) from error
    if not tags.structures or not tags.triggers or "" in tags.triggers:
        raise RequestError("structural_tag needs at least one structure, and triggers that are not empty", PARAM)
    rules = ["start: (" + " | ".join(f"tag_{index}" for index in range(len(tags.structures))) + ")* TEXT"]
    for index, structure in enumerate(tags.structures):
        trigger = next((text for text in tags.triggers if structure.begin.startswith(text)), None)
        if trigger is None:
            raise RequestError(f"structural_tag: no trigger begins {structure.begin[:100]!r}", PARAM)
        rest, schema = structure.begin[len(trigger) :], _embedded_schema(structure.schema)
        body = f"{quoted(rest) if rest else ''} %json {schema} {quoted(structure.end) if structure.end else ''}"
        if trigger in special_tokens:
            # One token that no text matches, so nothing has to be searched for.
            rules.append(f"tag_{index}: TEXT {trigger} {body}")
        else:
            rules.append(f"tag_{index}_begin[lazy]: TEXT {quoted(trigger)}\ntag_{index}: tag_{index}_begin {body}")
    return "\n".join([*rules, r"TEXT: /(.|\n)*/"])
