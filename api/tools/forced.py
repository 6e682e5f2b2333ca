"""Answers that a grammar has forced to be calls."""

from collections.abc import Mapping
from typing import Any

from .json_calls import JsonCallParser
from .text_machine import NotACall, Steps
from .tool_parser import ToolParser


class ForcedCallParser(JsonCallParser):
    """Reads what ``ToolUse.answer_schema`` has a model write: a list of calls, or for a named tool only its arguments.

    Nothing of it is content, also where the length limit cuts it. A text of another shape goes to the parser of the
    model's own format: an engine without grammars may have been asked for a call in words.
    """

    known_names_only = True

    def __init__(self, tools: Mapping[str, dict[str, Any]], named: str | None, other: ToolParser) -> None:
        super().__init__(tools)
        self._named = named
        self._other = other

    def new_id(self) -> str:
        """See ``ToolParser``."""
        return self._other.new_id()

    def run(self) -> Steps[None]:
        """See ``TextMachine``."""
        space = yield from self._space_here()
        character = yield from self._peek()
        if character in ("{", "["):
            called = yield from self._attempt(self._forced(character))
            if called or self._ended:
                # What is left can only be the beginning of another call, which the length limit cut before its name.
                while (yield from self._peek()):
                    self._at = len(self._text)
                return
        self._text = space + self._text[self._at :]
        self._at = 0
        while True:
            self._out += self._other.feed(self._text[self._at :])
            self._at = len(self._text)
            if self._ended:
                break
            yield
        self._out += self._other.finish()

    def _forced(self, character: str) -> Steps[None]:
        if self._named is None:
            yield from self._call_or_list()
        elif character == "{":
            self._start(self._named)
            yield from self._streamed_arguments()
        else:
            raise NotACall
