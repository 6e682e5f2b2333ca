"""One completion's text, piece by piece, as content, reasoning and calls."""

from collections.abc import Sequence

from .answer_parts import CallArguments, CallStart, ContentText, Part, ReasoningText
from .reasoning import ReasoningMachine
from .tools.tool_parser import ToolParser


class AnswerSplitter:
    """Reads one completion: reasoning is split off first, and what is left may hold calls."""

    def __init__(
        self,
        reasoning: ReasoningMachine | None = None,
        calls: ToolParser | None = None,
        *,
        one_call: bool = False,
        show_reasoning: bool = True,
        end_of_reasoning: int | None = None,
    ) -> None:
        """``one_call``: leave out every call but the first. ``end_of_reasoning``: the token that is the closing tag,
        where it is one token: makes ``reasoning_tokens`` exact."""
        self._reasoning = reasoning
        self._calls = calls
        self._one_call = one_call
        self._show_reasoning = show_reasoning
        self._end_of_reasoning = end_of_reasoning
        self._thinking = reasoning is not None and reasoning.state != "closed"
        self.num_calls = 0
        """Calls that have started."""
        self._counted = 0

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning with its tags, so far; 0 if there was no reasoning."""
        return self._counted if self._reasoning is not None and self._reasoning.reasoned else 0

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Part]:
        """The parts that this piece makes certain."""
        if self._reasoning is None:
            return self._called([ContentText(text)] if text else [])
        parts = self._reasoning.feed(text)
        if self._thinking:
            self._count(token_ids)
        return self._called(parts)

    def finish(self) -> list[Part]:
        """What is left at the end."""
        parts: list[Part] = []
        if self._reasoning is not None:
            parts = self._called(self._reasoning.finish())
        if self._calls is not None:
            parts += self._wanted(self._calls.finish())
        return parts

    def _called(self, parts: list[Part]) -> list[Part]:
        split: list[Part] = []
        for part in parts:
            if isinstance(part, ContentText) and self._calls is not None:
                split += self._wanted(self._calls.feed(part.text))
            elif self._show_reasoning or not isinstance(part, ReasoningText):
                split.append(part)
        return split

    def _wanted(self, parts: list[Part]) -> list[Part]:
        wanted: list[Part] = []
        for part in parts:
            if isinstance(part, CallStart | CallArguments):
                if self._one_call and part.index > 0:
                    continue
                self.num_calls = max(self.num_calls, part.index + 1)
            wanted.append(part)
        return wanted

    def _count(self, token_ids: Sequence[int]) -> None:
        """Count the tokens up to the closing tag. Without a token for it, a piece counts as what it began as."""
        assert self._reasoning is not None
        ends = self._reasoning.state == "closed"
        counted = len(token_ids)
        if self._end_of_reasoning is not None and self._end_of_reasoning in token_ids:
            counted = list(token_ids).index(self._end_of_reasoning) + 1
            ends = True
        self._counted += counted
        self._thinking = not ends
