"""Streams whose chunks are whole answers with ``choices``: what chat and text completions have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .dialect import DONE, AnswerHead, encode_json
from .error_answers import error_event
from .generation import ChoiceDelta, Event, Generation, PromptStarted
from .protocol import SamplingFields


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOptions:
    """What is wanted beside the text, whichever of the two it is."""

    return_token_ids: bool
    include_usage: bool
    continuous_usage: bool
    timings: bool

    @classmethod
    def asked(cls, request: SamplingFields, **own: Any) -> Self:
        """From the fields of a request; ``own`` are those of a derived class."""
        options = request.stream_options
        return cls(
            return_token_ids=bool(request.return_token_ids),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            timings=bool(request.timings),
            **own,
        )


class ChunkStream(ABC):
    """``StreamWriter`` of one request."""

    kind: ClassVar[str]
    """The ``object`` of a chunk."""
    idle = b""

    def __init__(self, head: AnswerHead, generation: Generation, options: ChunkOptions, logprobs: bool) -> None:
        """``logprobs``: log probabilities are wanted."""
        self._generation = generation
        self._wanted = options
        self._fields = {"id": head.id, "object": self.kind, "created": head.created, "model": head.model}
        # The bytes around a chunk's choices, made once: most chunks only differ in their text. A stream that ends with
        # a usage chunk says in every other chunk that this has none.
        self._head = b"data: " + encode_json(self._fields)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._plain = not logprobs and not options.return_token_ids and not options.continuous_usage
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
        if not self._wanted.include_usage and not self._wanted.timings:
            return DONE
        chunk: dict[str, Any] = self._fields | {"choices": []}
        if self._wanted.include_usage:
            chunk["usage"] = self._generation.usage
        if self._wanted.timings:
            chunk["timings"] = self._generation.times_told
        return b"data: " + encode_json(chunk) + b"\n\n" + DONE

    def fail(self, error: Exception) -> bytes:
        """See ``StreamWriter``."""
        return error_event(error)

    def _ended(self, choice: dict[str, Any], event: ChoiceDelta) -> dict[str, Any]:
        """The choice with what stands at its end."""
        if event.finish_reason is not None:
            choice["stop_reason"] = event.stop_reason
        if self._wanted.return_token_ids:
            choice["token_ids"] = event.token_ids
        return choice

    def _framed(self, choice: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        """The chunk with this one choice, and ``extra`` beside it."""
        tail = self._tail
        if self._wanted.continuous_usage:
            extra = {"usage": self._generation.usage} | (extra or {})
            tail = b"]}\n\n"
        if extra:
            tail = b"]," + encode_json(extra)[1:-1] + tail[1:]
        return self._head + encode_json(choice) + tail
