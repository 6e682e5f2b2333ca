"""From events to a response: as numbered events of a stream, or as one answer gathered by the same code.

``ResponseBuilder`` keeps the response as it is at each moment. The stream tells every change to it; the plain answer is
its last state.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..answer_blocks import AnswerEnded, BlockDelta, BlockEnded, BlockEvent, BlockReader, BlockStarted
from ..dialect import encode_json
from ..error_answers import error_answer
from ..generation import Event, Generation, PromptStarted
from ..logprobs import chat_logprobs
from ..protocol_answers import TokenLogprob
from .protocol import (
    FunctionCallItem,
    InputTokensDetails,
    OutputItem,
    OutputLogprob,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    TextLogprob,
)

Keep = Callable[[ResponseObject], None]


class ResponseBuilder:
    """One response while it grows. ``top_logprobs``: alternatives per token; None: no log probabilities."""

    def __init__(self, response: ResponseObject, generation: Generation, top_logprobs: int | None) -> None:
        self.response = response
        self._generation = generation
        self._top_logprobs = top_logprobs
        self._pieces: list[str] = []

    @property
    def item(self) -> OutputItem:
        """The item that is being written."""
        return self.response.output[-1]

    def start(self, block: BlockStarted) -> None:
        """A new item."""
        stem = f"{self.response.id.removeprefix('resp_')}_{block.index}"
        item: OutputItem
        if block.kind == "text":
            item = OutputMessage(id=f"msg_{stem}")
        elif block.kind == "reasoning":
            item = ReasoningItem(id=f"rs_{stem}")
        else:
            item = FunctionCallItem(id=f"fc_{stem}", call_id=block.call_id, name=block.name)
        self._pieces = []
        self.response.output.append(item)

    def open_part(self) -> OutputText | ReasoningText | None:
        """Give the new item its empty part, and return that; a call has none."""
        item = self.item
        part: OutputText | ReasoningText
        if isinstance(item, OutputMessage):
            item.content = [part := OutputText()]
            return part
        if isinstance(item, ReasoningItem):
            item.content = [part := ReasoningText()]
            return part
        return None

    def append(self, delta: BlockDelta) -> list[OutputLogprob]:
        """More text of the item; returns its log probabilities as they are told."""
        self._pieces.append(delta.text)
        item = self.item
        if self._top_logprobs is None or not delta.logprobs or not isinstance(item, OutputMessage):
            return []
        logprobs = [_logprob(entry) for entry in chat_logprobs(delta.logprobs, self._top_logprobs)]
        item.content[0].logprobs += logprobs
        return logprobs

    def end(self, block: BlockEnded) -> str:
        """The item is over; returns its text (a call's arguments)."""
        text = "".join(self._pieces)
        item = self.item
        if isinstance(item, FunctionCallItem):
            item.arguments = text
        else:
            item.content[0].text = text
        item.status = "completed" if block.whole else "incomplete"
        return text

    def finish(self, ended: AnswerEnded) -> None:
        """The response is over."""
        response = self.response
        if ended.finish_reason == "length":
            response.status = "incomplete"
            response.incomplete_details = {"reason": "max_output_tokens"}
        else:
            response.status = "cancelled" if ended.finish_reason == "abort" else "completed"
            response.completed_at = int(time.time())
        response.usage = self._usage()

    def fail(self, error: Exception) -> None:
        """The response ends with an error."""
        if self.response.output and self.item.status == "in_progress":
            self.end(BlockEnded(len(self.response.output) - 1, "text", False))
        self.response.status = "failed"
        self.response.error = ResponseFailure("server_error", error_answer(error).error.message)

    def _usage(self) -> ResponseUsage:
        usage = self._generation.usage
        details = usage.completion_tokens_details
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(0 if details is msgspec.UNSET else details.reasoning_tokens),
            usage.total_tokens,
        )


def _logprob(entry: TokenLogprob) -> OutputLogprob:
    best = [TextLogprob(other.token, other.logprob, other.bytes) for other in entry.top_logprobs]
    return OutputLogprob(entry.token, entry.logprob, entry.bytes, best)


class ResponseCollector:
    """``Collector`` of responses. ``keep`` gets the finished answer."""

    def __init__(self, builder: ResponseBuilder, keep: Keep) -> None:
        self._builder = builder
        self._blocks = BlockReader()
        self._keep = keep

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        for block in self._blocks.read(events):
            self._take(block)

    def answer(self) -> ResponseObject:
        """See ``Collector``."""
        self._keep(self._builder.response)
        return self._builder.response

    def _take(self, event: BlockEvent) -> None:
        if isinstance(event, BlockStarted):
            self._builder.start(event)
            self._builder.open_part()
        elif isinstance(event, BlockDelta):
            self._builder.append(event)
        elif isinstance(event, BlockEnded):
            self._builder.end(event)
        else:
            self._builder.finish(event)


class ResponseStream:
    """``StreamWriter`` of responses."""

    # This API has no event for it; every client of server-sent events skips comments.
    idle = b": still here\n\n"

    def __init__(self, builder: ResponseBuilder, keep: Keep) -> None:
        self._builder = builder
        self._blocks = BlockReader()
        self._keep = keep
        self._number = 0

    def write(self, events: list[Event]) -> bytes:
        """See ``StreamWriter``."""
        chunks = self._begin() if any(isinstance(event, PromptStarted) for event in events) else []
        for block in self._blocks.read(events):
            chunks += self._tell(block)
        return b"".join(chunks)

    def end(self) -> bytes:
        """See ``StreamWriter``."""
        response = self._builder.response
        self._keep(response)
        kind = {"incomplete": "response.incomplete", "completed": "response.completed"}
        return self._event(kind.get(response.status, "response.failed"), {"response": response})

    def fail(self, error: Exception) -> bytes:
        """The events that end the stream on an error: the failed response, then the error itself.

        The official client raises the second; it has the error both at its top, as the reference documents it, and
        under ``error``, where that client looks for it.
        """
        chunks = [] if self._number else self._begin()
        self._builder.fail(error)
        chunks.append(self._event("response.failed", {"response": self._builder.response}))
        told = error_answer(error).error
        code = told.code or told.type
        fields = {"code": code, "message": told.message, "param": told.param, "error": told}
        chunks.append(self._event("error", fields))
        return b"".join(chunks)

    def _begin(self) -> list[bytes]:
        response = self._builder.response
        return [
            self._event("response.created", {"response": response}),
            self._event("response.in_progress", {"response": response}),
        ]

    def _tell(self, event: BlockEvent) -> list[bytes]:
        if isinstance(event, BlockDelta):
            logprobs = self._builder.append(event)
            fields: dict[str, Any] = {"delta": event.text}
            if event.kind == "text":
                fields["logprobs"] = logprobs
            return [self._item_event(_DELTAS[event.kind], event.index, fields, event.kind != "tool_call")]
        if isinstance(event, BlockStarted):
            return self._tell_start(event)
        if isinstance(event, BlockEnded):
            return self._tell_end(event)
        self._builder.finish(event)
        return []

    def _tell_start(self, event: BlockStarted) -> list[bytes]:
        self._builder.start(event)
        added = {"output_index": event.index, "item": self._builder.item}
        chunks = [self._event("response.output_item.added", added)]
        part = self._builder.open_part()
        if part is not None:
            chunks.append(self._item_event("response.content_part.added", event.index, {"part": part}, True))
        return chunks

    def _tell_end(self, event: BlockEnded) -> list[bytes]:
        text = self._builder.end(event)
        item = self._builder.item
        chunks = []
        if isinstance(item, FunctionCallItem):
            fields: dict[str, Any] = {"name": item.name, "arguments": text}
            chunks.append(self._item_event("response.function_call_arguments.done", event.index, fields, False))
        else:
            part = item.content[0]
            fields = {"text": text}
            if isinstance(part, OutputText):
                fields["logprobs"] = part.logprobs
            chunks.append(self._item_event(_DONES[event.kind], event.index, fields, True))
            chunks.append(self._item_event("response.content_part.done", event.index, {"part": part}, True))
        chunks.append(self._event("response.output_item.done", {"output_index": event.index, "item": item}))
        return chunks

    def _item_event(self, kind: str, index: int, fields: dict[str, Any], in_part: bool) -> bytes:
        where: dict[str, Any] = {"item_id": self._builder.item.id, "output_index": index}
        if in_part:
            where["content_index"] = 0
        return self._event(kind, where | fields)

    def _event(self, kind: str, fields: dict[str, Any] | dict[str, msgspec.Struct]) -> bytes:
        body = encode_json({"type": kind, "sequence_number": self._number} | fields)
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"


_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "tool_call": "response.function_call_arguments.delta",
}
_DONES = {"text": "response.output_text.done", "reasoning": "response.reasoning_text.done"}
