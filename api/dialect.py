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

    def answer(self) -> msgspec.Struct:
        """The answer, once all events are in."""
        ...
