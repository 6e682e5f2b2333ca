"""From events to a message: as the named events of a stream, or as one answer gathered from the same blocks."""

from typing import Any

import msgspec

from ..answer_blocks import AnswerEnded, BlockDelta, BlockEnded, BlockHandler, BlockReader, BlockStarted
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


class MessageCollector(BlockHandler):
    """``Collector`` of messages. ``in_context``: see ``stop_of``."""

    def __init__(self, head: AnswerHead, generation: Generation, in_context: bool) -> None:
        self._generation = generation
        self._blocks = BlockReader(self)
        self._in_context = in_context
        self._pieces: list[str] = []
        self._message = MessageObject(id=head.id, model=head.model, usage=message_usage(generation))

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        self._blocks.read(events)

    def answer(self) -> MessageObject:
        """See ``Collector``."""
        self._message.usage = message_usage(self._generation)
        return self._message

    def block_started(self, block: BlockStarted) -> None:
        self._pieces = []
        self._message.content.append(_new_block(block))

    def block_delta(self, delta: BlockDelta) -> None:
        self._pieces.append(delta.text)

    def block_ended(self, block: BlockEnded) -> None:
        text = "".join(self._pieces)
        written = self._message.content[-1]
        if isinstance(written, TextBlock):
            written.text = text
        elif isinstance(written, ThinkingBlock):
            written.thinking = text
        else:
            written.input = _arguments(text)

    def answer_ended(self, ended: AnswerEnded) -> None:
        self._message.stop_reason, self._message.stop_sequence = stop_of(ended, self._in_context)


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


class MessageStream(BlockHandler):
    """``StreamWriter`` of messages."""

    idle = PING

    def __init__(self, head: AnswerHead, generation: Generation, in_context: bool) -> None:
        self._head = head
        self._generation = generation
        self._blocks = BlockReader(self)
        self._in_context = in_context
        self._stop: tuple[str, str | None] = ("end_turn", None)
        self._chunks: list[bytes] = []

    def write(self, events: list[Event]) -> bytes:
        """See ``StreamWriter``."""
        self._chunks = [self._begin() for event in events if isinstance(event, PromptStarted)]
        self._blocks.read(events)
        return b"".join(self._chunks)

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

    def block_started(self, block: BlockStarted) -> None:
        fields = {"index": block.index, "content_block": _new_block(block)}
        self._chunks.append(_event("content_block_start", fields))

    def block_delta(self, delta: BlockDelta) -> None:
        if delta.text:
            kind, name = _DELTAS[delta.kind]
            fields = {"index": delta.index, "delta": {"type": kind, name: delta.text}}
            self._chunks.append(_event("content_block_delta", fields))

    def block_ended(self, block: BlockEnded) -> None:
        self._chunks.append(_event("content_block_stop", {"index": block.index}))

    def answer_ended(self, ended: AnswerEnded) -> None:
        self._stop = stop_of(ended, self._in_context)


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool_call": ("input_json_delta", "partial_json"),
}
