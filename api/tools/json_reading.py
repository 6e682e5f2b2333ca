"""Finding where a JSON value ends in a text that comes in pieces."""

import re

_STRING_STOP = re.compile(r'["\\\x00-\x1f]')
_STRUCTURE = re.compile(r'["{}\[\]]')


class JsonContainer:
    """Reads one JSON object or array, from its opening bracket to the closing one.

    The text is passed on as the model wrote it, with one repair: control characters within strings, which JSON forbids
    and models write (a plain line break above all), are escaped.
    """

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def read(self, text: str, start: int) -> tuple[str, int]:
        """What of ``text`` from ``start`` on belongs to the value, and where the rest begins."""
        pieces: list[str] = []
        at = start
        while at < len(text) and not self.done:
            at = self._string(text, at, pieces) if self._in_string else self._structure(text, at, pieces)
        return "".join(pieces), at

    def _structure(self, text: str, at: int, pieces: list[str]) -> int:
        found = _STRUCTURE.search(text, at)
        if found is None:
            pieces.append(text[at:])
            return len(text)
        character = found.group()
        if character == '"':
            self._in_string = True
        else:
            self._depth += 1 if character in "{[" else -1
            self.done = self._depth == 0
        pieces.append(text[at : found.end()])
        return found.end()

    def _string(self, text: str, at: int, pieces: list[str]) -> int:
        if self._escaped:
            self._escaped = False
            # A backslash before a real line break would escape nothing.
            pieces.append(text[at] if text[at] >= " " else _escape(text[at])[1:])
            return at + 1
        found = _STRING_STOP.search(text, at)
        if found is None:
            pieces.append(text[at:])
            return len(text)
        character = found.group()
        pieces.append(text[at : found.start()])
        if character == '"':
            self._in_string = False
        self._escaped = character == "\\"
        pieces.append(character if character >= " " else _escape(character))
        return found.end()


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"
