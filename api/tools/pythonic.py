"""Calls written as Python."""

import json
import re

from .python_literals import TRIPLE_QUOTES, literal_json, quote_behind
from .text_machine import Steps
from .tool_parser import MAX_NAME, ToolParser

_OPENING, _CLOSING = "<|python_start|>", "<|python_end|>"
_NAME_CHARACTER = re.compile(r"[-.\w]")
_KEYWORD = re.compile(r"([-.\w]+)\s*=(?!=)\s*")
_ENDS = (")", "]", "}", "")
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


class PythonicParser(ToolParser):
    """``[f(a=1, b="text"), g()]`` with nothing before it: Llama 3.2 and 4, ToolACE and others.

    Arguments are passed on one by one, as JSON. What is no Python literal becomes a text.
    """

    markers = (_OPENING, _CLOSING)
    template_signs = ((_OPENING,), ("func_name1(",))
    known_names_only = True

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        space = yield from self._space_here()
        if (yield from self._peek()) != "[" or not (yield from self._attempt(self._list())):
            self._content(space)
        yield from self._calls_behind((_OPENING,), self._marked_list, (_CLOSING,))

    def _marked_list(self) -> Steps[None]:
        yield from self._skip(_OPENING)
        yield from self._skip_space()
        yield from self._list()

    def _list(self) -> Steps[None]:
        if (yield from self._call_list(self._call)):
            yield from self._skip_space()
            yield from self._skip(_CLOSING)

    def _call(self) -> Steps[None]:
        name = yield from self._word(_NAME_CHARACTER, MAX_NAME)
        yield from self._expect("(")
        self._start(name)
        positions = iter(self._properties(name))
        opening = "{"
        while (yield from self._skip_space()) not in _ENDS:
            argument = yield from self._value()
            if argument is None:
                return  # cut within a value
            found = _KEYWORD.match(argument)
            key = found.group(1) if found else next(positions, None)
            if key is not None:
                value = argument[found.end() :] if found else argument
                self._argue(f"{opening}{json.dumps(key, ensure_ascii=False)}: {_as_json(value.strip())}")
                opening = ", "
        if (yield from self._skip(*_ENDS[:-1])) is not None:
            self._argue("{}" if opening == "{" else "}")

    def _value(self) -> Steps[str | None]:
        """The text of one value, up to the comma behind it (which is consumed) or the closing bracket. None: cut."""
        pieces: list[str] = []
        depth = 0
        quote = ""
        escaped = False
        while (character := (yield from self._peek())) != "":
            piece = character
            if character in "\"'" and not escaped:
                piece = (yield from self._starts(TRIPLE_QUOTES)) or character
                quote = quote_behind(piece, quote)
            elif not quote and depth == 0 and character in ",)]}":
                self._at += character == ","
                return "".join(pieces).strip()
            elif not quote:
                depth += _BRACKETS.get(character, 0)
            escaped = quote != "" and character == "\\" and not escaped
            pieces.append(piece)
            self._at += len(piece)
        return None


def _as_json(value: str) -> str:
    return literal_json(value) or json.dumps(value, ensure_ascii=False)
