"""One answer as a row of blocks: what the block-shaped dialects (Responses, Anthropic Messages) translate.

    ChoiceDelta, ChoiceDelta, ... --BlockReader--> started 0, delta 0, delta 0, ended 0, started 1, ..., AnswerEnded

A block is a stretch of reasoning, a stretch of text or one tool call. At most one is open; the next one's start
ends it. Both a stream and a plain answer are made from these events.
"""

from dataclasses import dataclass
from typing import Literal

from ..core.outputs import TokenLogprobs
from .answer_parts import CallStart, ContentText, Part, ReasoningText
from .generation import ChoiceDelta, Event

BlockKind = Literal["text", "reasoning", "tool_call"]


@dataclass(slots=True)
class BlockStarted:
    """A block begins. ``index`` counts the answer's blocks from 0."""

    index: int
    kind: BlockKind
    call_id: str = ""
    """Of a tool call: its id."""
    name: str = ""
    """Of a tool call: the function's name."""


@dataclass(slots=True)
class BlockDelta:
    """More text of the open block; for a tool call a piece of its arguments, which are JSON once joined."""

    index: int
    kind: BlockKind
    text: str
    logprobs: list[TokenLogprobs] | None = None


@dataclass(slots=True)
class BlockEnded:
    """The block is over. ``whole`` is false for one that the length limit cut."""

    index: int
    kind: BlockKind
    whole: bool


@dataclass(slots=True)
class AnswerEnded:
    """The answer is over, for the engine's reason: ``stop``, ``length``, ``tool_calls``, ``abort``."""

    finish_reason: str
    stop_reason: int | str | None
    has_calls: bool


BlockEvent = BlockStarted | BlockDelta | BlockEnded | AnswerEnded


class BlockReader:
    """Cuts the deltas of one answer into blocks. An answer with nothing in it gets one empty text block."""

    def __init__(self) -> None:
        self._open: BlockKind | None = None
        self._count = 0
        self._held: list[TokenLogprobs] = []
        """Log probabilities at the beginning, of which it is not known yet whether they are text's."""
        self._has_calls = False

    def read(self, news: list[Event]) -> list[BlockEvent]:
        """The events of what is new."""
        events: list[BlockEvent] = []
        for delta in news:
            if isinstance(delta, ChoiceDelta):
                self._read_delta(delta, events)
        return events

    def _read_delta(self, delta: ChoiceDelta, events: list[BlockEvent]) -> None:
        if delta.parts is None:
            if delta.text or delta.logprobs:
                self._append("text", delta.text, delta.logprobs, events)
        else:
            self._read_parts(delta.parts, delta.logprobs, events)
        if delta.finish_reason is not None:
            self._finish(delta, events)

    def _read_parts(self, parts: list[Part], logprobs: list[TokenLogprobs] | None, events: list[BlockEvent]) -> None:
        """Log probabilities go with the text that they come with; those of reasoning and calls are left out."""
        left = self._held + (logprobs or [])
        self._held = []
        for part in parts:
            if isinstance(part, ContentText):
                self._append("text", part.text, left or None, events)
                left = []
            elif isinstance(part, ReasoningText):
                self._append("reasoning", part.text, None, events)
            elif isinstance(part, CallStart):
                self._has_calls = True
                self._start(BlockStarted(self._count, "tool_call", part.id, part.name), events)
            else:
                events.append(BlockDelta(self._count - 1, "tool_call", part.text))
        if left and self._open == "text":
            self._append("text", "", left, events)
        elif left and self._open is None:
            self._held = left

    def _append(
        self, kind: BlockKind, text: str, logprobs: list[TokenLogprobs] | None, events: list[BlockEvent]
    ) -> None:
        if self._open != kind:
            self._start(BlockStarted(self._count, kind), events)
        events.append(BlockDelta(self._count - 1, kind, text, logprobs))

    def _start(self, started: BlockStarted, events: list[BlockEvent]) -> None:
        self._end(True, events)
        self._open = started.kind
        self._count += 1
        events.append(started)

    def _end(self, whole: bool, events: list[BlockEvent]) -> None:
        if self._open is not None:
            events.append(BlockEnded(self._count - 1, self._open, whole))
        self._open = None

    def _finish(self, delta: ChoiceDelta, events: list[BlockEvent]) -> None:
        if self._count == 0:
            self._start(BlockStarted(0, "text"), events)
            if self._held:
                self._append("text", "", self._held, events)
        reason = delta.finish_reason or "stop"
        self._end(reason != "length", events)
        events.append(AnswerEnded(reason, delta.stop_reason, self._has_calls))
