"""Parsers of a text that comes in pieces.

A parser is one coroutine (``run``), written as if the whole text were there: where it needs a character that has not
come yet, it is suspended until the next piece. What it decides depends on characters alone, never on where a piece
ended, so every split of a text gives the same parts.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import TypeVar

from ..answer_parts import ContentText, Part, ReasoningText

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A part of a parser: may be suspended wherever it asks for text."""

MAX_DOUBT = 8192
"""Characters after which something that began like a call, and is none yet, is taken for text."""


class NotACall(Exception):
    """What began like a call goes on like something else."""


class TextMachine(ABC):
    """Feed it pieces of text and ``finish`` it; each gives the parts that are certain by then."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._mark: int | None = None
        """Where an attempt began that may have to be taken back."""
        self._space = ""
        """Whitespace at the end of the content so far: shown only if more content follows."""
        self._shown_as: type[ContentText | ReasoningText] = ContentText
        """What text outside of markup is."""
        self._out: list[Part] = []
        self._steps = self.run()

    @abstractmethod
    def run(self) -> Steps[None]:
        """Parse to the end of the text."""

    def feed(self, text: str) -> list[Part]:
        """The parts that this further piece makes certain."""
        keep = self._at if self._mark is None else self._mark
        if self._mark is not None:
            self._mark = 0
        self._text = self._text[keep:] + text
        self._at -= keep
        return self._resume()

    def finish(self) -> list[Part]:
        """What is left, now that the text has ended."""
        self._ended = True
        return self._resume()

    def _resume(self) -> list[Part]:
        next(self._steps, None)
        out, self._out = self._out, []
        return out

    # --- reading -----------------------------------------------------------------------------------------------------

    def _peek(self) -> Steps[str]:
        """The next character; the empty text at the end."""
        if self._mark is not None and self._at - self._mark > MAX_DOUBT:
            raise NotACall
        while self._at >= len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def _space_here(self) -> Steps[str]:
        """Go past whitespace; that whitespace."""
        space = []
        while (character := (yield from self._peek())).isspace():
            space.append(character)
            self._at += 1
        return "".join(space)

    def _skip_space(self) -> Steps[str]:
        """Go past whitespace; the next character."""
        yield from self._space_here()
        return (yield from self._peek())

    def _expect(self, character: str) -> Steps[None]:
        found = yield from self._peek()
        if found != character:
            raise NotACall
        self._at += 1

    def _starts(self, options: Sequence[str]) -> Steps[str | None]:
        """The first of ``options`` that the text here begins with. Does not go past it."""
        for option in options:
            while True:
                rest = self._text[self._at : self._at + len(option)]
                if rest == option:
                    return option
                if self._ended or not option.startswith(rest):
                    break
                yield
        return None

    def _skip(self, *options: str) -> Steps[str | None]:
        """Go past one of ``options`` if the text here begins with it."""
        found = yield from self._starts(options)
        if found is not None:
            self._at += len(found)
        return found

    def _until(self, marker: str, limit: int) -> Steps[str]:
        """The text before ``marker``, at most ``limit`` characters; goes past the marker. Raises ``NotACall``."""
        while True:
            end = self._text.find(marker, self._at, self._at + limit + len(marker))
            if end >= 0:
                found = self._text[self._at : end]
                self._at = end + len(marker)
                return found
            if self._ended or len(self._text) - self._at > limit + len(marker):
                raise NotACall
            yield

    def _word(self, pattern: re.Pattern[str], limit: int) -> Steps[str]:
        """The longest run of characters that each match ``pattern``. Raises ``NotACall`` beyond ``limit``."""
        word = []
        while True:
            character = yield from self._peek()
            if not character or not pattern.match(character):
                return "".join(word)
            word.append(character)
            self._at += 1
            if len(word) > limit:
                raise NotACall

    def _held(self, markers: Sequence[str]) -> int:
        """Length of the end of the text that may become one of ``markers``."""
        longest = max(map(len, markers)) - 1
        for length in range(min(longest, len(self._text) - self._at), 0, -1):
            end = self._text[len(self._text) - length :]
            if any(marker.startswith(end) for marker in markers):
                return length
        return 0

    def _pieces_until(self, markers: Sequence[str]) -> Steps[tuple[str, str | None]]:
        """The next certain text before one of ``markers``, and the marker once it is reached.

        Call again while the marker is None and the text is not over; goes past neither. At the end of the text: what
        is left, and None.
        """
        while True:
            found = [(end, marker) for marker in markers if (end := self._text.find(marker, self._at)) >= 0]
            # The earliest; of two at the same place, the longer one.
            end, marker = min(found, key=lambda pair: (pair[0], -len(pair[1])), default=(-1, None))
            if marker is None:
                end = len(self._text) - (0 if self._ended else self._held(markers))
            piece = self._text[self._at : end]
            self._at = end
            if piece or marker is not None or self._ended:
                return piece, marker
            yield

    # --- writing -----------------------------------------------------------------------------------------------------

    def _content(self, text: str) -> None:
        """Show text; whitespace at its end waits for what follows."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._out.append(self._shown_as(shown))

    def _content_until(self, markers: Sequence[str]) -> Steps[str | None]:
        """Show text up to the first of ``markers``, without going past it; None at the end of the text."""
        while True:
            piece, marker = yield from self._pieces_until(markers)
            self._content(piece)
            if marker is not None or (self._ended and self._at >= len(self._text)):
                return marker
