"""The XML format of Qwen3-Coder."""

import json
from typing import Any

from .python_literals import literal_json
from .text_machine import NotACall, Steps
from .tool_parser import MAX_NAME, ToolParser

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


class Qwen3CoderParser(ToolParser):
    """``<tool_call><function=f><parameter=a>text</parameter></function></tool_call>``: Qwen3-Coder.

    Values carry no type: the tool's schema says whether one is a text, which is passed on as it comes, or JSON.
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
        is_text = _is_text(schema)
        yield from self._skip("\n")
        pieces = []
        if is_text:
            self._argue('"')
        # The line break before the closing tag belongs to the tag.
        ends = ("\n" + _END_PARAMETER, _END_PARAMETER)
        while True:
            piece, marker = yield from self._pieces_until(ends)
            if is_text:
                self._argue(json.dumps(piece, ensure_ascii=False)[1:-1])
            else:
                pieces.append(piece)
            if marker is not None:
                self._at += len(marker)
                self._argue('"' if is_text else _as_json("".join(pieces)))
                return True
            if self._ended and self._at >= len(self._text):
                return False


def _is_text(schema: Any) -> bool:
    """True for a parameter that can only be a text, and for one of which nothing is known."""
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if isinstance(kind, list):
        return set(kind) == {"string"}
    if kind is not None:
        return kind == "string"
    values = schema.get("enum")
    if isinstance(values, list):
        return all(isinstance(value, str) for value in values)
    return not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "const", "properties", "items"}


def _as_json(text: str) -> str:
    """A value that is not only text, as JSON: what is JSON already, Python's spelling of it, or else a text."""
    stripped = text.strip()
    try:
        json.loads(stripped, parse_constant=_refuse)
        return stripped
    except (ValueError, RecursionError):
        return literal_json(stripped) or json.dumps(text, ensure_ascii=False)


def _refuse(word: str) -> None:
    raise ValueError(word)
