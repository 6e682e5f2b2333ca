"""The XML format of Qwen3-Coder."""

import json
from typing import Any

from .python_literals import literal_json
from .text_machine import NotACall, Steps
from .tool_parser import MAX_NAME, ToolParser

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_KINDS |= {type(None): "null"}
_TELLING = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties", "items"}
"""Keywords without which nothing is known of a value."""


class Qwen3CoderParser(ToolParser):
    """``<tool_call><function=f><parameter=a>text</parameter></function></tool_call>``: Qwen3-Coder.

    Values carry no type: the tool's schema says whether one is a text, which is passed on as it comes, or JSON. Where
    it may be a text or null, only a bare ``null`` is null.
    """

    markers = (_CALL, _END_CALL)
    template_signs = (("<tool_call>", "<function="),)

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        yield from self._calls_behind((_CALL, _FUNCTION), self._call, (_END_CALL,))

    def _call(self) -> Steps[None]:
        yield from self._skip(_CALL)
        yield from self._skip_space()
        if (yield from self._skip(_FUNCTION)) is None:
            raise NotACall
        name = (yield from self._until(">", MAX_NAME)).strip()
        self._start(name)
        properties = self._properties(name)
        opening = "{"
        while (yield from self._at_parameter()):
            key = (yield from self._until(">", MAX_NAME)).strip()
            self._argue(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
            opening = ", "
            if not (yield from self._value(properties.get(key))):
                return  # cut within a value
        self._argue("{}" if opening == "{" else "}")
        if (yield from self._skip(_END_FUNCTION)) is not None:
            yield from self._skip_space()
            yield from self._skip(_END_CALL)

    def _at_parameter(self) -> Steps[bool]:
        yield from self._skip_space()
        return (yield from self._skip(_PARAMETER)) is not None

    def _value(self, schema: Any) -> Steps[bool]:
        """One value, from behind its opening tag to behind its closing one. False: the text ended before."""
        kinds = _kinds(schema)
        yield from self._skip("\n")
        # The line break before the closing tag belongs to the tag.
        ends = ("\n" + _END_PARAMETER, _END_PARAMETER)
        is_null = "null" in kinds and (yield from self._starts([f"null{end}" for end in ends])) is not None
        is_text = kinds - {"null"} == {"string"} and not is_null
        pieces = []
        if is_text:
            self._argue('"')
        while True:
            piece, marker = yield from self._pieces_until(ends)
            if is_text:
                self._argue(json.dumps(piece, ensure_ascii=False)[1:-1])
            else:
                pieces.append(piece)
            if marker is not None:
                self._at += len(marker)
                self._argue('"' if is_text else _as_json("".join(pieces), kinds))
                return True
            if self._ended and self._at >= len(self._text):
                return False


def _kinds(schema: Any) -> set[str]:
    """The types of JSON that a parameter can have; of one of which nothing is known, a text."""
    return _allowed(schema) if isinstance(schema, dict) and schema.keys() & _TELLING else {"string"}


def _allowed(schema: Any) -> set[str]:
    kinds = set(_KINDS.values())
    if not isinstance(schema, dict):
        return kinds
    given = schema.get("type")
    given = {given} if isinstance(given, str) else {kind for kind in _listed(given) if isinstance(kind, str)}
    if given:
        kinds &= given | {"integer"} if "number" in given else given
    values = [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    if values:
        kinds &= {_KINDS[type(value)] for value in values}
    alternatives = _listed(schema.get("anyOf")) or _listed(schema.get("oneOf"))
    if alternatives:
        kinds &= set[str]().union(*map(_allowed, alternatives))
    return kinds.intersection(*map(_allowed, _listed(schema.get("allOf"))))


def _listed(value: Any) -> list[Any]:
    """What nobody has checked: a schema that is not enforced may hold anything."""
    return value if isinstance(value, list) else []


def _as_json(text: str, kinds: set[str]) -> str:
    """A value that is not only text, as JSON: what is JSON already, Python's spelling of it, or else a text. What can
    be a text is one, too, if it reads like a type that is not allowed."""
    found: str | None = text.strip()
    try:
        json.loads(found, parse_constant=_refuse)
    except (ValueError, RecursionError):
        found = literal_json(found)
    if found is None or ("string" in kinds and _KINDS[type(json.loads(found))] not in kinds):
        return json.dumps(text, ensure_ascii=False)
    return found


def _refuse(word: str) -> None:
    raise ValueError(word)
