"""The text of a message's content, which every dialect sends as text or as a list of parts."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..core.errors import RequestError
from .protocol import ContentPart


class TextPart(Protocol):
    """A part of a content, in whatever dialect."""

    type: str
    text: str | None


def extent(contents: Iterable[str | Sequence[TextPart] | None]) -> int:
    """Characters of contents, and some for each one and each part: a measure of how long handling them takes."""
    return sum(
        16 + (len(content) if isinstance(content, str) else sum(16 + len(part.text or "") for part in content or ()))
        for content in contents
    )


def message_text(content: str | list[ContentPart], param: str, refusal: str, kinds: Sequence[str] = ("text",)) -> str:
    """As ``joined_text``. What a model once said in place of an answer, its refusal, is text like any other."""
    if not isinstance(content, str):
        content = [
            part if part.type != "refusal" or part.refusal is None else ContentPart(type=kinds[0], text=part.refusal)
            for part in content
        ]
    return joined_text(content, param, refusal, kinds)


def joined_text(content: str | Sequence[TextPart], param: str, refusal: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a content, its parts joined with a newline. Raises ``RequestError``, also for no part at all."""
    if isinstance(content, str):
        return content
    if not content:
        raise RequestError.at(param, "must be a text or have at least one part")
    return "\n".join(part_text(part, f"{param}[{index}]", refusal, kinds) for index, part in enumerate(content))


def part_text(part: TextPart, param: str, refusal: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of one part. Raises ``RequestError`` for one that is of none of ``kinds``, or has no text.

    ``refusal`` ends what the error says of a part of another kind.
    """
    if part.type not in kinds:
        raise RequestError(f"{param} has type {part.type[:64]!r}{refusal}", f"{param}.type")
    if part.text is None:
        raise RequestError.at(f"{param}.text", "is required")
    return part.text
