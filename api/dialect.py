"""What a dialect is: two translations of one stream of events, into chunks and into one answer."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from .generation import Event

encode_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every chunk and every answer of a request repeats."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str


class StreamWriter(Protocol):
    """Translates events into server-sent events, in bytes ready to be sent. Holds the state of one request."""

    idle: bytes
    """Says that the stream is still there, if the dialect has something for it."""

    def write(self, events: list[Event]) -> bytes:
        """The chunks for these events; empty if they show nothing yet."""
        ...

    def end(self) -> bytes:
        """What follows the last event."""
        ...

    def fail(self, error: Exception) -> bytes:
        """What ends the stream on an error, in the dialect's shape."""
        ...


class Collector(Protocol):
    """Gathers the same events into one answer."""

    def add(self, events: list[Event]) -> None:
        """Take in these events."""
        ...

    def answer(self) -> msgspec.Struct:
        """The answer, once all events are in."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkFrame:
    """The constant bytes around a chunk's choices, made once per request: most chunks only differ in their text."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, answer: AnswerHead, kind: str, usage_null: bool) -> "ChunkFrame":
        """``usage_null``: the stream ends with a usage chunk, so every other chunk says that it has none."""
        fields = encode_json({"id": answer.id, "object": kind, "created": answer.created, "model": answer.model})
        return cls(b"data: " + fields[:-1] + b',"choices":[', b'],"usage":null}\n\n' if usage_null else b"]}\n\n")
