"""Streams whose chunks are whole answers with ``choices``: what chat and text completions have in common."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from .dialect import DONE, AnswerHead, encode_json
from .error_answers import error_event
from .generation import ChoiceDelta, Event, Generation, PromptStarted
from .protocol import SamplingFields, StreamOptions


class ChunkStream(ABC):
    """``StreamWriter`` of one request."""

    kind: ClassVar[str]
    """The ``object`` of a chunk."""
    idle = b""

    def __init__(self, head: AnswerHead, generation: Generation, asked: SamplingFields, logprobs: bool) -> None:
        """``logprobs``: log probabilities are wanted."""
        options = asked.stream_options or StreamOptions()
        self._generation = generation
        self._wants_ids = asked.return_token_ids
        self._wants_timings = asked.timings
        self._wants_usage = options.include_usage
        self._usage_goes_on = options.continuous_usage_stats
        self._fields = {"id": head.id, "object": self.kind, "created": head.created, "model": head.model}
        # The bytes around a chunk's choices, made once: most chunks only differ in their text. A stream that ends with
        # a usage chunk says in every other chunk that this has none.
        self._head = b"data: " + encode_json(self._fields)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._wants_usage else b"]}\n\n"
        self._plain = not (logprobs or self._wants_ids or self._usage_goes_on)
        """Most chunks tell a text and nothing else."""

    def write(self, events: list[Event]) -> bytes:
        """See ``StreamWriter``."""
        return b"".join([self._start(e) if isinstance(e, PromptStarted) else self._chunk(e) for e in events])

    @abstractmethod
    def _start(self, event: PromptStarted) -> bytes:
        """What is told at the beginning of every choice."""

    @abstractmethod
    def _chunk(self, event: ChoiceDelta) -> bytes:
        """What is new in a choice."""

    def end(self) -> bytes:
        """See ``StreamWriter``."""
        if not self._wants_usage and not self._wants_timings:
            return DONE
        chunk: dict[str, Any] = self._fields | {"choices": []}
        if self._wants_usage:
            chunk["usage"] = self._generation.usage
        if self._wants_timings:
            chunk["timings"] = self._generation.times_told
        return b"data: " + encode_json(chunk) + b"\n\n" + DONE

    def fail(self, error: Exception) -> bytes:
        """See ``StreamWriter``."""
        return error_event(error)

    def _ended(self, choice: dict[str, Any], event: ChoiceDelta) -> dict[str, Any]:
        """The choice with what stands at its end."""
        if event.finish_reason is not None:
            choice["stop_reason"] = event.stop_reason
        if self._wants_ids:
            choice["token_ids"] = event.token_ids
        return choice

    def _framed(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        """The chunk with this one choice, and ``extra`` beside it."""
        tail = self._tail
        if self._usage_goes_on:
            extra = {"usage": self._generation.usage} | (extra or {})
            tail = b"]}\n\n"
        if extra:
            tail = b"]," + encode_json(extra)[1:-1] + tail[1:]
        return self._head + encode_json(choice) + tail
