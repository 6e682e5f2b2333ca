"""Parts of an answer in the shapes of chat completions: as the delta of a chunk, and gathered into a message."""

from typing import Any

from msgspec import UNSET

from .answer_parts import CallStart, ContentText, Part, ReasoningText
from .protocol_answers import AnswerCall, AnswerMessage, CalledFunction


def chat_delta(parts: list[Part]) -> dict[str, Any]:
    """The ``delta`` for these parts; empty if they show nothing. Of each call there is one entry."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, ContentText):
            content.append(part.text)
        elif isinstance(part, ReasoningText):
            reasoning.append(part.text)
        elif isinstance(part, CallStart):
            function = {"name": part.name, "arguments": ""}
            calls[part.index] = {"index": part.index, "id": part.id, "type": "function", "function": function}
        else:
            call = calls.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += part.text
    delta: dict[str, Any] = {}
    if reasoning:
        delta["reasoning_content"] = delta["reasoning"] = "".join(reasoning)
    if content:
        delta["content"] = "".join(content)
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


def content_alone(parts: list[Part]) -> str | None:
    """The content of these parts; None if there is something else among them."""
    texts = [part.text for part in parts if isinstance(part, ContentText)]
    return "".join(texts) if len(texts) == len(parts) else None


class MessageGatherer:
    """Gathers the parts of one completion into the assistant's message. ``echo``: text that its content begins with."""

    def __init__(self, echo: str) -> None:
        self._content = [echo] if echo else []
        self._reasoning: list[str] = []
        self._calls: list[tuple[CallStart, list[str]]] = []

    def add(self, text: str, parts: list[Part] | None) -> None:
        """Take in what is new: ``parts``, or without them ``text``."""
        if parts is None:
            self._content.append(text)
            return
        for part in parts:
            if isinstance(part, ContentText):
                self._content.append(part.text)
            elif isinstance(part, ReasoningText):
                self._reasoning.append(part.text)
            elif isinstance(part, CallStart):
                self._calls.append((part, []))
            else:
                self._calls[part.index][1].append(part.text)

    def message(self) -> AnswerMessage:
        """The whole turn."""
        content = "".join(self._content)
        reasoning = "".join(self._reasoning) or UNSET
        calls = [
            AnswerCall(start.id, "function", CalledFunction(start.name, "".join(arguments)))
            for start, arguments in self._calls
        ]
        return AnswerMessage(
            "assistant", content if content or not calls else None, calls or UNSET, reasoning, reasoning
        )
