"""From events to a response: as numbered events of a stream, or as one answer gathered by the same code.

``ResponseBuilder`` keeps the response as it is at each moment. The stream tells every change to it; the plain answer is
its last state.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..answer_blocks import AnswerEnded, BlockDelta, BlockEnded, BlockHandler, BlockReader, BlockStarted
from ..dialect import encode_json
from ..error_answers import error_answer
from ..generation import Event, Generation, PromptStarted
from ..logprobs import chat_logprobs
from ..protocol_answers import TokenLogprob
from . import protocol

Keep = Callable[[protocol.ResponseObject], None]


class ResponseBuilder(BlockHandler):
    """One response while it grows. ``top_logprobs``: alternatives per token; None: no log probabilities."""

    def __init__(self, response: protocol.ResponseObject, generation: Generation, top_logprobs: int | None) -> None:
        self.response = response
        self._generation = generation
        self._top_logprobs = top_logprobs
        self._pieces: list[str] = []
        self.new_logprobs: list[TokenLogprob] = []
        """Of the last delta."""

    @property
    def item(self) -> protocol.OutputItem:
        """The item that is being written."""
        return self.response.output[-1]

    def block_started(self, block: BlockStarted) -> None:
        """A new item."""
        stem = f"{self.response.id.removeprefix('resp_')}_{block.index}"
        item: protocol.OutputItem
        if block.kind == "text":
            item = protocol.OutputMessage(id=f"msg_{stem}", content=[protocol.OutputText()])
        elif block.kind == "reasoning":
            item = protocol.ReasoningItem(id=f"rs_{stem}", content=[protocol.ReasoningText()])
        else:
            item = protocol.FunctionCallItem(id=f"fc_{stem}", call_id=block.call_id, name=block.name)
        self._pieces = []
        self.response.output.append(item)

    def block_delta(self, delta: BlockDelta) -> None:
        """More text of the item."""
        self._pieces.append(delta.text)
        self.new_logprobs = []
        item = self.item
        if self._top_logprobs is not None and delta.logprobs and isinstance(item, protocol.OutputMessage):
            self.new_logprobs = chat_logprobs(delta.logprobs, self._top_logprobs)
            item.content[0].logprobs += self.new_logprobs

    def block_ended(self, block: BlockEnded) -> None:
        """The item is over."""
        text = "".join(self._pieces)
        item = self.item
        if isinstance(item, protocol.FunctionCallItem):
            item.arguments = text
        else:
            item.content[0].text = text
        item.status = "completed" if block.whole else "incomplete"

    def answer_ended(self, ended: AnswerEnded) -> None:
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
            self.block_ended(BlockEnded(len(self.response.output) - 1, "text", False))
        self.response.status = "failed"
        self.response.error = protocol.ResponseFailure("server_error", error_answer(error).error.message)

    def _usage(self) -> protocol.ResponseUsage:
        usage = self._generation.usage
        details = usage.completion_tokens_details
        return protocol.ResponseUsage(
            usage.prompt_tokens,
            protocol.InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            protocol.OutputTokensDetails(0 if details is msgspec.UNSET else details.reasoning_tokens),
            usage.total_tokens,
        )


class ResponseCollector:
    """``Collector`` of responses. ``keep`` gets the finished answer."""

    def __init__(self, builder: ResponseBuilder, keep: Keep) -> None:
        self._builder = builder
        self._blocks = BlockReader(builder)
        self._keep = keep

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        self._blocks.read(events)

    def answer(self) -> protocol.ResponseObject:
        """See ``Collector``."""
        self._keep(self._builder.response)
        return self._builder.response


class ResponseStream(BlockHandler):
    """``StreamWriter`` of responses."""

    # This API has no event for it; every client of server-sent events skips comments.
    idle = b": still here\n\n"

    def __init__(self, builder: ResponseBuilder, keep: Keep) -> None:
        self._builder = builder
        self._blocks = BlockReader(self)
        self._keep = keep
        self._number = 0
        self._chunks: list[bytes] = []

    def write(self, events: list[Event]) -> bytes:
        """See ``StreamWriter``."""
        if any(isinstance(event, PromptStarted) for event in events):
            self._begin()
        self._blocks.read(events)
        return self._told()

    def end(self) -> bytes:
        """See ``StreamWriter``."""
        response = self._builder.response
        self._keep(response)
        kind = {"incomplete": "response.incomplete", "completed": "response.completed"}
        self._tell(kind.get(response.status, "response.failed"), {"response": response})
        return self._told()

    def fail(self, error: Exception) -> bytes:
        """The events that end the stream on an error: the failed response, then the error itself.

        The official client raises the second; it has the error both at its top, as the reference documents it, and
        under ``error``, where that client looks for it.
        """
        if not self._number:
            self._begin()
        self._builder.fail(error)
        self._tell("response.failed", {"response": self._builder.response})
        told = error_answer(error).error
        code = told.code or told.type
        self._tell("error", {"code": code, "message": told.message, "param": told.param, "error": told})
        return self._told()

    def block_started(self, block: BlockStarted) -> None:
        self._builder.block_started(block)
        item = self._builder.item
        if isinstance(item, protocol.FunctionCallItem):
            self._tell("response.output_item.added", {"output_index": block.index, "item": item})
            return
        empty = msgspec.structs.replace(item, content=[])
        self._tell("response.output_item.added", {"output_index": block.index, "item": empty})
        self._tell_of_item("response.content_part.added", block.index, {"part": item.content[0]}, True)

    def block_delta(self, delta: BlockDelta) -> None:
        self._builder.block_delta(delta)
        fields: dict[str, Any] = {"delta": delta.text}
        if delta.kind == "text":
            fields["logprobs"] = self._builder.new_logprobs
        self._tell_of_item(_DELTAS[delta.kind], delta.index, fields, delta.kind != "tool_call")

    def block_ended(self, block: BlockEnded) -> None:
        self._builder.block_ended(block)
        item = self._builder.item
        if isinstance(item, protocol.FunctionCallItem):
            fields: dict[str, Any] = {"name": item.name, "arguments": item.arguments}
            self._tell_of_item("response.function_call_arguments.done", block.index, fields, False)
        else:
            part = item.content[0]
            fields = {"text": part.text}
            if isinstance(part, protocol.OutputText):
                fields["logprobs"] = part.logprobs
            self._tell_of_item(_DONES[block.kind], block.index, fields, True)
            self._tell_of_item("response.content_part.done", block.index, {"part": part}, True)
        self._tell("response.output_item.done", {"output_index": block.index, "item": item})

    def answer_ended(self, ended: AnswerEnded) -> None:
        self._builder.answer_ended(ended)

    def _begin(self) -> None:
        for kind in ("response.created", "response.in_progress"):
            self._tell(kind, {"response": self._builder.response})

    def _tell_of_item(self, kind: str, index: int, fields: dict[str, Any], in_part: bool) -> None:
        where: dict[str, Any] = {"item_id": self._builder.item.id, "output_index": index}
        if in_part:
            where["content_index"] = 0
        self._tell(kind, where | fields)

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        body = encode_json({"type": kind, "sequence_number": self._number} | fields)
        self._number += 1
        self._chunks.append(b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n")

    def _told(self) -> bytes:
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)


_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "tool_call": "response.function_call_arguments.delta",
}
_DONES = {"text": "response.output_text.done", "reasoning": "response.reasoning_text.done"}
