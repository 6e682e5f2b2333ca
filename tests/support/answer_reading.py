"""Feeding a parser a text in pieces, and putting together what it says."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.api.answer_parts import CallStart, ContentText, Part, ReasoningText
from octavo.api.tools.text_machine import TextMachine

TOOLS: dict[str, dict[str, Any]] = {
    "list_rooms": {"type": "object", "properties": {}},
    "set_lamp": {
        "type": "object",
        "properties": {
            "room": {"type": "string"},
            "level": {"type": "integer"},
            "colors": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
    },
}


@dataclass
class Answer:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments."""


def collect(parts: Iterable[Part]) -> Answer:
    """Join parts; a part that has no place among the others fails."""
    answer = Answer()
    ids = set()
    for part in parts:
        if isinstance(part, ContentText):
            assert part.text
            answer.content += part.text
        elif isinstance(part, ReasoningText):
            assert part.text
            answer.reasoning += part.text
        elif isinstance(part, CallStart):
            assert part.index == len(answer.calls) and part.name and part.id not in ids
            ids.add(part.id)
            answer.calls.append((part.name, ""))
        else:
            assert part.text and part.index == len(answer.calls) - 1
            name, arguments = answer.calls[-1]
            answer.calls[-1] = (name, arguments + part.text)
    return answer


def read(machine: TextMachine, pieces: Iterable[str]) -> Answer:
    """The answer that these pieces make."""
    parts: list[Part] = []
    for piece in pieces:
        parts += machine.feed(piece)
    return collect(parts + machine.finish())


def cut(text: str, places: Iterable[int]) -> Iterator[str]:
    """The text in pieces that end at these places."""
    start = 0
    for place in sorted(set(places)):
        yield text[start:place]
        start = place
    yield text[start:]
