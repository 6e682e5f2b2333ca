"""``ToolParser``: what the parsers of all formats share."""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..answer_parts import CallArguments, CallStart, ContentText
from .mixed_grammar import Frame
from .text_machine import MAX_DOUBT, NotACall, Steps, TextMachine

MAX_NAME = 256
_NAME = re.compile(r"[^\s\"'<>{}()\[\]\ud800-\udfff]+")


class ToolParser(TextMachine):
    """Finds a model's calls in its text. One parser reads one completion.

    To add a format, derive from this class, describe its markup and write ``run``; ``docs/http-api.md`` has an example.
    What began like a call and turns out to be none is shown as content. Once a call has started it stays one: its
    arguments are what the model wrote, and invalid JSON if that is what it wrote or if it was cut.
    """

    markers: ClassVar[tuple[str, ...]] = ()
    """The markup of the format. Where a tokenizer has one of them as a special token, special tokens are kept in the
    text that the parser gets."""
    template_signs: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """A chat template in whose source all texts of one of these groups occur is taken to use this format."""
    frame: ClassVar[Frame | None] = None
    """What the format writes before and after the JSON of a call's arguments, by the function's name. With it, calls
    stay possible beside an answer that must be JSON."""
    openings: ClassVar[tuple[str, ...]] = ()
    """What clearly begins a call, the first being the model's own. With it and ``frame``, strict functions are."""
    known_names_only: ClassVar[bool] = False
    """True for a format without clear markup: something that looks like a call counts only with an offered name."""

    def __init__(self, tools: Mapping[str, dict[str, Any]]) -> None:
        """``tools``: the parameters' JSON schema of each offered tool, by name."""
        super().__init__()
        self._tools = tools
        self._started = False
        self._num_calls = 0
        self._content_since_call = False

    def new_id(self) -> str:
        """The id of a call."""
        return f"call_{uuid.uuid4().hex[:24]}"

    def _properties(self, name: str) -> dict[str, Any]:
        """The schema of each argument of a tool; empty for an unknown one."""
        properties = self._tools.get(name, {}).get("properties")
        return properties if isinstance(properties, dict) else {}

    def _attempt(self, call: Steps[None]) -> Steps[bool]:
        """Run ``call``. False: it was no call, and nothing was consumed."""
        self._mark = self._at
        self._started = False
        try:
            yield from call
        except NotACall:
            if not self._started:
                self._at = self._mark if self._mark is not None else self._at
        self._mark = None
        return self._started

    def _start(self, name: str) -> None:
        """From here on it is a call, whatever follows. Whitespace before it is dropped. Raises ``NotACall``."""
        unknown = self.known_names_only and name not in self._tools
        doubtful = self._mark is not None and self._at - self._mark > MAX_DOUBT
        if unknown or doubtful or len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
            raise NotACall
        self._mark = None
        self._started = True
        self._space = ""
        self._content_since_call = False
        self._out.append(CallStart(self._num_calls, self.new_id(), name))
        self._num_calls += 1

    def _argue(self, text: str) -> None:
        """More of the running call's arguments."""
        if text:
            self._out.append(CallArguments(self._num_calls - 1, text))

    def _content(self, text: str) -> None:
        super()._content(text)
        self._content_since_call = self._content_since_call or bool(text.strip())

    def _calls_behind(
        self, openings: Sequence[str], call: Callable[[], Steps[None]], closings: Sequence[str] = ()
    ) -> Steps[None]:
        """The whole text: content, and a call wherever ``call`` finds one at an opening marker.

        A closing marker that is left over after a call is dropped.
        """
        while (marker := (yield from self._content_until((*openings, *closings)))) is not None:
            if marker in openings and (yield from self._attempt(call())):
                continue
            self._at += len(marker)
            if marker in openings or not self._num_calls:
                self._content(marker)
        self._finish_content()

    def _call_list(self, call: Callable[[], Steps[None]]) -> Steps[bool]:
        """Calls between brackets, with commas between them. False: the closing bracket is not there."""
        yield from self._expect("[")
        yield from self._skip_space()
        yield from call()
        while (yield from self._skip_space()) == ",":
            self._at += 1
            yield from self._skip_space()
            if not (yield from self._attempt(call())):
                break
        self._started = True  # the first one was a call
        return (yield from self._skip("]")) is not None

    def _finish_content(self) -> None:
        """The text is over: whitespace that only followed calls is no content."""
        if self._space and (self._content_since_call or not self._num_calls):
            self._out.append(ContentText(self._space))
        self._space = ""
