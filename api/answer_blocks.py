"""One answer as a row of blocks: what the block-shaped dialects (Responses, Anthropic Messages) translate.

    ChoiceDelta, ChoiceDelta, ... --BlockReader--> started 0, delta 0, delta 0, ended 0, started 1, ..., AnswerEnded

A block is a stretch of reasoning, a stretch of text or one tool call. At most one is open; the next one's start
ends it. A stream and a plain answer are two ``BlockHandler``s.
"""

from abc import ABC, abstractmethod
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


class BlockHandler(ABC):
    """Is told of an answer's blocks, in their order."""

    @abstractmethod
    def block_started(self, block: BlockStarted) -> None:
        """A block begins."""

    @abstractmethod
    def block_delta(self, delta: BlockDelta) -> None:
        """More of the open block."""

    @abstractmethod
    def block_ended(self, block: BlockEnded) -> None:
        """The open block is over."""

    @abstractmethod
    def answer_ended(self, ended: AnswerEnded) -> None:
        """Nothing comes after this."""


class BlockReader:
    """Cuts the deltas of one answer into blocks. An answer with nothing in it gets one empty text block."""

    def __init__(self, handler: BlockHandler) -> None:
        self._handler = handler
        self._open: BlockKind | None = None
        self._count = 0
        self._held: list[TokenLogprobs] = []
        """Log probabilities at the beginning, of which it is not known yet whether they are text's."""
        self._has_calls = False

    def read(self, events: list[Event]) -> None:
        """Tell the handler what is new."""
        for event in events:
            if isinstance(event, ChoiceDelta):
                self._read_delta(event)

    def _read_delta(self, delta: ChoiceDelta) -> None:
        if delta.parts is not None:
            self._read_parts(delta.parts, delta.logprobs)
        elif delta.text or delta.logprobs:
            self._append("text", delta.text, delta.logprobs)
        if delta.finish_reason is not None:
            self._finish(delta.finish_reason, delta.stop_reason)

    def _read_parts(self, parts: list[Part], logprobs: list[TokenLogprobs] | None) -> None:
        """Log probabilities go with the text that they come with; those of reasoning and calls are left out."""
        left = self._held + (logprobs or [])
        self._held = []
        for part in parts:
            if isinstance(part, ContentText):
                self._append("text", part.text, left or None)
                left = []
            elif isinstance(part, ReasoningText):
                self._append("reasoning", part.text)
            elif isinstance(part, CallStart):
                self._has_calls = True
                self._start(BlockStarted(self._count, "tool_call", part.id, part.name))
            else:
                self._append("tool_call", part.text)
        if left and self._open == "text":
            self._append("text", "", left)
        elif left and self._open is None:
            self._held = left

    def _append(self, kind: BlockKind, text: str, logprobs: list[TokenLogprobs] | None = None) -> None:
        if self._open != kind:
            self._start(BlockStarted(self._count, kind))
        self._handler.block_delta(BlockDelta(self._count - 1, kind, text, logprobs))

    def _start(self, started: BlockStarted) -> None:
        self._end(True)
        self._open = started.kind
        self._count += 1
        self._handler.block_started(started)

    def _end(self, whole: bool) -> None:
        if self._open is not None:
            self._handler.block_ended(BlockEnded(self._count - 1, self._open, whole))
        self._open = None

    def _finish(self, reason: str, stop_reason: int | str | None) -> None:
        if self._count == 0:
            self._start(BlockStarted(0, "text"))
            if self._held:
                self._append("text", "", self._held)
        self._end(reason != "length")
        self._handler.answer_ended(AnswerEnded(reason, stop_reason, self._has_calls))
