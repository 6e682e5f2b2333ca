"""From events to a message: as the named events of a stream, or as one answer gathered from the same blocks."""

from typing import Any

import msgspec

from ..answer_blocks import AnswerEnded, BlockDelta, BlockEnded, BlockEvent, BlockReader, BlockStarted
from ..dialect import AnswerHead, encode_json
from ..generation import Event, Generation, PromptStarted
from .errors import message_error_event
from .protocol import AnswerBlock, MessageObject, MessageUsage, TextBlock, ThinkingBlock, ToolUseBlock

_decode = msgspec.json.Decoder().decode


def message_usage(generation: Generation) -> MessageUsage:
    """Token counts so far."""
    cached = generation.num_cached_tokens
    return MessageUsage(generation.num_prompt_tokens - cached, 0, cached, generation.num_completion_tokens)


def stop_of(ended: AnswerEnded, in_context: bool) -> tuple[str, str | None]:
    """``stop_reason`` and ``stop_sequence``. ``in_context``: the length limit was the context's, not the request's."""
    if ended.finish_reason == "length":
        return "model_context_window_exceeded" if in_context else "max_tokens", None
    if ended.has_calls:
        return "tool_use", None
    if isinstance(ended.stop_reason, str):
        return "stop_sequence", ended.stop_reason
    return "end_turn", None


def _new_block(event: BlockStarted) -> AnswerBlock:
    if event.kind == "text":
        return TextBlock()
    if event.kind == "reasoning":
        return ThinkingBlock()
    return ToolUseBlock(id=event.call_id, name=event.name, input={})


class MessageCollector:
    """``Collector`` of messages. ``in_context``: see ``stop_of``."""

    def __init__(self, head: AnswerHead, generation: Generation, in_context: bool) -> None:
        self._generation = generation
        self._blocks = BlockReader()
        self._in_context = in_context
        self._pieces: list[str] = []
        self._message = MessageObject(id=head.id, model=head.model, usage=message_usage(generation))

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        for block in self._blocks.read(events):
            self._take(block)

    def answer(self) -> MessageObject:
        """See ``Collector``."""
        self._message.usage = message_usage(self._generation)
        return self._message

    def _take(self, event: BlockEvent) -> None:
        if isinstance(event, BlockStarted):
            self._pieces = []
            self._message.content.append(_new_block(event))
        elif isinstance(event, BlockDelta):
            self._pieces.append(event.text)
        elif isinstance(event, BlockEnded):
            self._end_block()
        else:
            self._message.stop_reason, self._message.stop_sequence = stop_of(event, self._in_context)

    def _end_block(self) -> None:
        block = self._message.content[-1]
        text = "".join(self._pieces)
        if isinstance(block, TextBlock):
            block.text = text
        elif isinstance(block, ThinkingBlock):
            block.thinking = text
        else:
            block.input = _arguments(text)


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; empty for those that the length limit cut, which are no JSON."""
    try:
        value = _decode(text) if text else {}
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode_json({"type": kind} | fields) + b"\n\n"


PING = _event("ping", {})
"""Means nothing but that the stream goes on."""


class MessageStream:
    """``StreamWriter`` of messages."""

    idle = PING

    def __init__(self, head: AnswerHead, generation: Generation, in_context: bool) -> None:
        self._head = head
        self._generation = generation
        self._blocks = BlockReader()
        self._in_context = in_context
        self._stop: tuple[str, str | None] = ("end_turn", None)

    def write(self, events: list[Event]) -> bytes:
        """See ``StreamWriter``."""
        chunks = [self._begin() for event in events if isinstance(event, PromptStarted)]
        return b"".join(chunks + [self._tell(block) for block in self._blocks.read(events)])

    def end(self) -> bytes:
        """See ``StreamWriter``."""
        reason, sequence = self._stop
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = message_usage(self._generation)
        return _event("message_delta", {"delta": delta, "usage": usage}) + _event("message_stop", {})

    def fail(self, error: Exception) -> bytes:
        """See ``StreamWriter``."""
        return message_error_event(error)

    def _begin(self) -> bytes:
        usage = message_usage(self._generation)
        usage.output_tokens = 0
        message = MessageObject(id=self._head.id, model=self._head.model, usage=usage)
        return _event("message_start", {"message": message}) + PING

    def _tell(self, event: BlockEvent) -> bytes:
        if isinstance(event, BlockDelta):
            return self._delta(event)
        if isinstance(event, BlockStarted):
            return _event("content_block_start", {"index": event.index, "content_block": _new_block(event)})
        if isinstance(event, BlockEnded):
            return _event("content_block_stop", {"index": event.index})
        self._stop = stop_of(event, self._in_context)
        return b""

    def _delta(self, event: BlockDelta) -> bytes:
        if not event.text:
            return b""
        kind, name = _DELTAS[event.kind]
        return _event("content_block_delta", {"index": event.index, "delta": {"type": kind, name: event.text}})


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool_call": ("input_json_delta", "partial_json"),
}
