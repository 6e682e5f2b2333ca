"""Calls written as JSON objects with a name and arguments, and the formats that are made of them."""

import json
import re
from typing import ClassVar

from .json_reading import JsonContainer
from .text_machine import MAX_DOUBT, NotACall, Steps
from .tool_parser import MAX_NAME, ToolParser

_ARGUMENT_KEYS = ("arguments", "parameters")
_SCALAR = re.compile(r"[-+.\w]")


class JsonCallParser(ToolParser):
    """Reads ``{"name": "f", "arguments": {...}}``, the arguments as they come."""

    def _call_object(self) -> Steps[None]:
        """One call. ``parameters`` is as good as ``arguments``; keys come in any order, others are left out."""
        yield from self._expect("{")
        name: str | None = None
        early: str | None = None
        argued = False
        first = True
        while (yield from self._skip_space()) != "}":
            key = yield from self._key(first)
            first = False
            if key == "name" and name is None:
                name = yield from self._json_string(MAX_NAME)
            elif key in _ARGUMENT_KEYS and name is not None and not argued:
                yield from self._checked_arguments(name)
                argued = True
            elif key in _ARGUMENT_KEYS and early is None and not argued:
                early = yield from self._json_value()
            else:
                yield from self._json_value()
        self._at += 1
        if name is None:
            raise NotACall
        if not argued:
            self._start(name)
            self._argue("{}" if early is None else _as_arguments(early))

    def _call_or_list(self) -> Steps[None]:
        if (yield from self._skip_space()) == "[":
            yield from self._call_list(self._call_object)
        else:
            yield from self._call_object()

    def _key(self, first: bool) -> Steps[str]:
        """A key with what is around it, up to its value."""
        if not first:
            yield from self._expect(",")
            yield from self._skip_space()
        key = yield from self._json_string(MAX_NAME)
        yield from self._skip_space()
        yield from self._expect(":")
        yield from self._skip_space()
        return key

    def _checked_arguments(self, name: str) -> Steps[None]:
        """Start the call and pass on its arguments: as they come if they are an object."""
        if (yield from self._peek()) == "{":
            self._start(name)
            yield from self._streamed_arguments()
        else:
            value = yield from self._json_value()
            self._start(name)
            self._argue(_as_arguments(value))

    def _streamed_arguments(self) -> Steps[None]:
        """A JSON object that begins here, passed on piece by piece. The call has started."""
        reader = JsonContainer()
        while not reader.done and (yield from self._peek()):
            piece, self._at = reader.read(self._text, self._at)
            self._argue(piece)

    def _json_value(self) -> Steps[str]:
        """The text of any JSON value. Raises ``NotACall`` if there is none, or it does not end."""
        first = yield from self._peek()
        if first == '"':
            return json.dumps((yield from self._json_string(MAX_DOUBT)))
        if first not in ("{", "["):
            word = yield from self._word(_SCALAR, MAX_NAME)
            if not word:
                raise NotACall
            return word
        reader = JsonContainer()
        pieces = []
        while not reader.done:
            if not (yield from self._peek()):
                raise NotACall
            piece, self._at = reader.read(self._text, self._at)
            pieces.append(piece)
        return "".join(pieces)

    def _json_string(self, limit: int) -> Steps[str]:
        """The value of a JSON string. Raises ``NotACall``."""
        yield from self._expect('"')
        characters = ['"']
        escaped = False
        while True:
            character = yield from self._peek()
            if not character or len(characters) > limit:
                raise NotACall
            self._at += 1
            characters.append(character)
            if character == '"' and not escaped:
                break
            escaped = character == "\\" and not escaped
        try:
            return json.loads("".join(characters), strict=False)
        except ValueError:
            raise NotACall from None


def _as_arguments(value: str) -> str:
    """Arguments that were not written as an object: an object within a JSON string, or nothing at all."""
    try:
        decoded = json.loads(value)
        if isinstance(decoded, str) and isinstance(json.loads(decoded or "{}"), dict):
            return decoded.encode(errors="replace").decode() or "{}"
    except (ValueError, RecursionError):
        return value
    return "{}" if decoded in (None, []) else value


def hermes_frame(name: str) -> tuple[str, str]:
    """See ``ToolParser.frame``."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ', "}\n</tool_call>"


def llama3_frame(name: str) -> tuple[str, str]:
    """See ``ToolParser.frame``."""
    return f'{{"name": {json.dumps(name)}, "parameters": ', "}"


class HermesParser(JsonCallParser):
    """``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, and most others."""

    openings = ("<tool_call>",)
    closings: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    markers = ("<tool_call>", "</tool_call>")
    template_signs = (("<tool_call>",),)
    frame = staticmethod(hermes_frame)

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        yield from self._calls_behind(self.openings, self._call, self.closings)

    def _call(self) -> Steps[None]:
        yield from self._skip(*self.openings)
        yield from self._call_or_list()
        # Some models write several calls within one pair of tags, or a bracket too many.
        while (character := (yield from self._skip_space())) in ("{", "}", ","):
            if character == "{":
                if not (yield from self._attempt(self._call_object())):
                    break
            else:
                self._at += 1
        self._started = True
        yield from self._skip(*self.closings)


class GraniteParser(HermesParser):
    """``<|tool_call|>[{"name": "f", "arguments": {...}}, ...]``: IBM Granite 3."""

    openings = ("<|tool_call|>", "<tool_call>")
    markers = ("<|tool_call|>", "<tool_call>", "</tool_call>")
    template_signs = (("<|tool_call|>",),)
    frame = None  # its marker is a special token


class Llama3JsonParser(JsonCallParser):
    """``{"name": "f", "parameters": {...}}`` with nothing before it: Llama 3.1 to 3.3. ``;`` joins several calls."""

    markers = ("<|python_tag|>",)
    template_signs = (
        ("<|python_tag|>",),
        ("<|eom_id|>",),
        ("<|eot_id|>", '"parameters"'),
        ('"parameters": dictionary',),
    )
    known_names_only = True
    frame = staticmethod(llama3_frame)

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        space = yield from self._space_here()
        if (yield from self._peek()) != "{" or not (yield from self._attempt(self._calls())):
            self._content(space)
        yield from self._calls_behind(self.markers, self._calls)

    def _calls(self) -> Steps[None]:
        yield from self._skip(*self.markers)
        yield from self._skip_space()
        yield from self._call_object()
        while (yield from self._separated()) and (yield from self._attempt(self._call_object())):
            pass
        self._started = True

    def _separated(self) -> Steps[bool]:
        """Go past what is between two calls."""
        while (character := (yield from self._skip_space())) in (";", ","):
            self._at += 1
        return character == "{"
