"""From items of a Responses conversation to the messages of a chat template.

An assistant's turn is several items (reasoning, message, function calls), which become one message again. System and
developer messages at the beginning, the request's ``instructions`` first, are joined into one: many templates take only
one system message, and only there.
"""

from typing import Any

import msgspec

from ...core.errors import RequestError
from ..chat import ROLES
from ..content import message_text
from ..dialect import encode_json
from ..protocol import ChatMessage, ContentPart, FunctionCall, ToolCall
from .protocol import InputItem, OutputItem

_TEXT_PARTS = ("input_text", "output_text", "text")
_MESSAGE_ROLES = tuple(role for role in ROLES if role != "tool")

decode_items = msgspec.json.Decoder(list[InputItem]).decode


def given_items(given: str | list[InputItem]) -> list[InputItem]:
    """The ``input`` of a request as items. Raises ``RequestError`` if there are none."""
    if isinstance(given, str):
        return [InputItem(type="message", role="user", content=given)]
    if not given:
        raise RequestError.at("input", "must not be empty")
    return given


def output_as_input(output: list[OutputItem]) -> list[InputItem]:
    """What an answer said, as items of the conversation that goes on from it."""
    return decode_items(encode_json(output))


def item_dicts(items: list[InputItem], id_stem: str) -> list[dict[str, Any]]:
    """Items as they are listed: each with its type and an id."""
    dicts = []
    for index, item in enumerate(items):
        fields = msgspec.to_builtins(item)
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            fields["content"] = [{"type": kind, "text": item.content}]
        dicts.append({"type": "message", "id": f"{id_stem}_{index}", "status": "completed"} | fields)
    return dicts


def chat_messages(instructions: str | None, earlier: list[InputItem], new: list[InputItem]) -> list[ChatMessage]:
    """The whole conversation as chat messages. Raises ``RequestError`` naming the item, an index into ``input``."""
    gathering = _Gathering(instructions)
    for item in earlier:
        gathering.add(item, "input")
    for index, item in enumerate(new):
        gathering.add(item, f"input[{index}]")
    return gathering.finish()


class _Gathering:
    """Gathers items into messages."""

    def __init__(self, instructions: str | None) -> None:
        self._system: list[str] = [instructions] if instructions else []
        self._messages: list[ChatMessage] = []
        self._turn: ChatMessage | None = None
        """The assistant's turn that is being put together."""
        self._calls: set[str] = set()

    def add(self, item: InputItem, param: str) -> None:
        kind = item.type or "message"
        kinds = {
            "message": self._add_message,
            "reasoning": self._add_reasoning,
            "function_call": self._add_call,
            "function_call_output": self._add_output,
        }
        if kind not in kinds:
            raise RequestError(
                f"{param} has type {kind[:64]!r}; this server takes items of the types message, function_call, "
                "function_call_output and reasoning",
                f"{param}.type",
            )
        kinds[kind](item, param)

    def finish(self) -> list[ChatMessage]:
        self._end_turn()
        if not self._system:
            return self._messages
        return [ChatMessage(role="system", content="\n\n".join(self._system)), *self._messages]

    def _add_message(self, item: InputItem, param: str) -> None:
        if item.role is None:
            raise RequestError.at(f"{param}.role", "is required")
        if item.role not in _MESSAGE_ROLES:
            raise RequestError.at(
                f"{param}.role", f"must be one of {', '.join(_MESSAGE_ROLES)}, not {item.role[:64]!r}"
            )
        text = _text(item.content, f"{param}.content")
        if item.role == "assistant":
            turn = self._turn
            if turn is None or turn.content or turn.tool_calls:
                self._end_turn()
                turn = self._open_turn()
            turn.content = text
            return
        self._end_turn()
        if item.role in ("system", "developer") and not self._messages:
            self._system.append(text)
        else:
            self._messages.append(ChatMessage(role=item.role, content=text))

    def _add_reasoning(self, item: InputItem, param: str) -> None:
        # The thoughts themselves where they are told, else the summary; encrypted ones of another server say nothing.
        parts = item.content or item.summary
        text = _text(parts, f"{param}.content", ("reasoning_text", "summary_text")) if parts else ""
        self._end_turn()
        if text:
            self._open_turn().reasoning_content = text

    def _add_call(self, item: InputItem, param: str) -> None:
        for name, value in (("call_id", item.call_id), ("name", item.name), ("arguments", item.arguments)):
            if value is None:
                raise RequestError.at(f"{param}.{name}", "is required")
        call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name or "", arguments=item.arguments or ""))
        turn = self._turn or self._open_turn()
        turn.tool_calls = [*(turn.tool_calls or []), call]
        self._calls.add(item.call_id or "")

    def _add_output(self, item: InputItem, param: str) -> None:
        if item.call_id is None:
            raise RequestError.at(f"{param}.call_id", "is required")
        if item.call_id not in self._calls:
            raise RequestError.at(
                f"{param}.call_id",
                f"is {item.call_id[:64]!r}, which no function_call before it has; send the call "
                "too, or previous_response_id",
            )
        self._end_turn()
        text = _text(item.output, f"{param}.output")
        self._messages.append(ChatMessage(role="tool", content=text, tool_call_id=item.call_id))

    def _open_turn(self) -> ChatMessage:
        self._turn = ChatMessage(role="assistant")
        return self._turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            if turn.content is None and not turn.tool_calls:
                turn.content = ""
            self._messages.append(turn)


def _text(content: str | list[ContentPart] | None, param: str, kinds: tuple[str, ...] = _TEXT_PARTS) -> str:
    """The text of a content, its parts joined with a newline."""
    if content is None:
        raise RequestError.at(param, "is required")
    return message_text(content, param, f"; this server takes only text: {', '.join(kinds)}", kinds)
