"""What an answer's text is made of, once it has been read: content, reasoning, and calls of tools.

The parts of one completion come in the order of its text. A call is one ``CallStart`` and then ``CallArguments`` whose
texts join to the arguments, a JSON text. Every dialect translates these, streamed and plain.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of what the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. ``index`` counts the calls of one completion from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call ``index``, which is always the last one that was started."""

    index: int
    text: str


Part = ContentText | ReasoningText | CallStart | CallArguments
