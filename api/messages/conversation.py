"""From a Messages request to a chat request: a conversation is the same thing in every dialect."""

import json
from typing import Any

from ...core.errors import RequestError, UnsupportedFieldError
from ..content import joined_text, part_text
from ..protocol import ChatCompletionRequest, ChatMessage, CommonFields, FunctionCall, ToolCall
from ..sampling import rename_param
from ..structured import JsonSchemaFormat, ResponseFormat
from ..tools.tool_use import FunctionName, Tool, ToolChoice
from . import protocol

# Fields with the same name and meaning in a chat request.
_SAME = [name for name in CommonFields.__struct_fields__ if name in protocol.MessagesRequest.__struct_fields__]
_RENAMED = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "tool_choice.function.name": "tool_choice.name",
}
_REFUSAL = ", which this server does not take here; it takes text"
_BILLING_MARK = "x-anthropic-billing-header:"


def own_names(error: RequestError) -> RequestError:
    """The same error, told with the field names of this dialect."""
    param = error.param or ""
    renamed = _RENAMED
    if param.startswith("tools["):
        renamed = {param: param.replace(".function", "").replace(".parameters", ".input_schema")}
    return rename_param(error, renamed)


def chat_request(asked: protocol.CountTokensRequest) -> ChatCompletionRequest:
    """The same question in the chat dialect. Raises ``RequestError`` naming what is wrong."""
    _check_edits(asked.context_management)
    messages = chat_messages(asked)
    prefilled = messages[-1].role == "assistant"
    if prefilled and messages[-1].tool_calls:
        raise RequestError(
            "the last message has tool_use blocks; send a user message with their tool_result", "messages"
        )
    fields: dict[str, Any] = {"model": asked.model, "messages": messages, "continue_final_message": prefilled}
    if asked.output_config is not None:
        fields["response_format"] = _response_format(asked.output_config.format)
    fields |= _tool_fields(asked) | _thinking_fields(asked)
    if isinstance(asked, protocol.MessagesRequest):
        fields |= {name: getattr(asked, name) for name in _SAME}
        fields |= {"max_completion_tokens": asked.max_tokens, "stop": asked.stop_sequences}
    return ChatCompletionRequest(**fields)


def _check_edits(given: protocol.ContextManagement | None) -> None:
    for index, edit in enumerate((given.edits if given is not None else None) or []):
        if not edit.type.startswith("clear_thinking"):
            param = f"context_management.edits[{index}].type"
            raise UnsupportedFieldError.at(
                param,
                f"is {edit.type[:64]!r}; this server takes only clear_thinking edits: leave it out, and send "
                "what is to be answered",
            )


def _response_format(given: protocol.OutputFormat | None) -> ResponseFormat | None:
    if given is None:
        return None
    if given.type != "json_schema":
        raise RequestError.at("output_config.format.type", f"must be 'json_schema', not {given.type[:64]!r}")
    if given.schema is None:
        raise RequestError.at("output_config.format.schema", "is required")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=given.schema))


def _tool_fields(asked: protocol.CountTokensRequest) -> dict[str, Any]:
    """Tools and the choice among them."""
    choice = asked.tool_choice
    fields: dict[str, Any] = {"tools": [_tool(tool, index) for index, tool in enumerate(asked.tools or [])] or None}
    if choice is None:
        return fields
    if choice.type not in ("auto", "any", "tool", "none"):
        raise RequestError.at("tool_choice.type", f"must be auto, any, tool or none, not {choice.type[:64]!r}")
    fields["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError.at("tool_choice.name", "is required")
        fields["tool_choice"] = ToolChoice(function=FunctionName(name=choice.name))
    fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _tool(tool: protocol.MessageTool, index: int) -> Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedFieldError(
            f"tools[{index}] has type {tool.type[:64]!r}; this server takes only tools of the caller's own (custom)",
            f"tools[{index}].type",
        )
    return Tool.of(tool.name, tool.description, tool.input_schema, tool.strict)


def _thinking_fields(asked: protocol.CountTokensRequest) -> dict[str, Any]:
    """Whether to think, and whether to tell the thoughts: as in the reference API, not unless it is asked for."""
    thinking = asked.thinking or protocol.Thinking(type="disabled")
    if thinking.type not in ("enabled", "adaptive", "disabled"):
        raise RequestError.at("thinking.type", f"must be enabled, adaptive or disabled, not {thinking.type[:64]!r}")
    wanted = thinking.type != "disabled"
    own = asked.chat_template_kwargs if isinstance(asked, protocol.MessagesRequest) else None
    fields: dict[str, Any] = {
        "include_reasoning": wanted and thinking.display != "omitted",
        "chat_template_kwargs": {"enable_thinking": wanted} | (own or {}),
    }
    if asked.output_config is not None:
        fields["reasoning_effort"] = asked.output_config.effort
    return fields


def chat_messages(asked: protocol.CountTokensRequest) -> list[ChatMessage]:
    """The conversation as chat messages; turns of one role in a row are one. Raises ``RequestError``."""
    if not asked.messages:
        raise RequestError.at("messages", "must not be empty")
    messages: list[ChatMessage] = []
    calls: set[str] = set()
    if asked.system:
        text = asked.system if isinstance(asked.system, str) else _system_text(asked.system)
        messages.append(ChatMessage(role="system", content=text))
    for index, turn in enumerate(asked.messages):
        param = f"messages[{index}]"
        if turn.role == "user":
            _add_user(turn, param, messages, calls)
        elif turn.role == "assistant":
            _add_assistant(turn, param, messages, calls)
        elif turn.role == "system":
            _add_text("system", "\n".join(_text(block, where) for block, where in _blocks(turn, param)), messages)
        else:
            raise RequestError.at(f"{param}.role", f"must be user, assistant or system, not {turn.role[:64]!r}")
    return messages


def _system_text(blocks: list[protocol.ContentBlock]) -> str:
    """Without the block by which a client's maker counts its requests: it differs from one request to the next, so no
    prefix of the prompt would ever be found in the cache."""
    kept = [block for block in blocks if not (block.text or "").startswith(_BILLING_MARK)]
    return joined_text(kept or "", "system", _REFUSAL)


def _add_user(turn: protocol.MessageTurn, param: str, messages: list[ChatMessage], calls: set[str]) -> None:
    """The results of tools first, each a message of its own, then the text: so it follows the calls."""
    texts = []
    for block, where in _blocks(turn, param):
        if block.type == "tool_result":
            messages.append(_tool_message(block, where, calls))
        else:
            texts.append(_text(block, where))
    if texts:
        _add_text("user", "\n".join(texts), messages)


def _add_text(role: str, text: str, messages: list[ChatMessage]) -> None:
    if messages and messages[-1].role == role:
        messages[-1].content = f"{messages[-1].content}\n{text}"
    else:
        messages.append(ChatMessage(role=role, content=text))


def _tool_message(block: protocol.ContentBlock, param: str, calls: set[str]) -> ChatMessage:
    if block.tool_use_id is None:
        raise RequestError.at(f"{param}.tool_use_id", "is required")
    if block.tool_use_id not in calls:
        raise RequestError.at(
            f"{param}.tool_use_id", f"is {block.tool_use_id[:64]!r}, which no tool_use block before it has"
        )
    text = joined_text(block.content or "", f"{param}.content", _REFUSAL)
    # Chat templates have no place for the flag, and the model should know.
    return ChatMessage(
        role="tool", content=f"Error: {text}" if block.is_error else text, tool_call_id=block.tool_use_id
    )


def _add_assistant(turn: protocol.MessageTurn, param: str, messages: list[ChatMessage], calls: set[str]) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    uses: list[ToolCall] = []
    for block, where in _blocks(turn, param):
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            uses.append(_tool_call(block, where))
        elif block.type != "redacted_thinking":  # another server's secret, which no model here can read
            texts.append(_text(block, where))
    calls.update(call.id or "" for call in uses)
    text = "\n".join(texts)
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        messages.append(last := ChatMessage(role="assistant", content=text))
    elif text:
        last.content = f"{last.content}\n{text}" if last.content else text
    if uses:
        last.tool_calls = [*(last.tool_calls or []), *uses]
    if thoughts:
        last.reasoning_content = "\n".join(thoughts)


def _tool_call(block: protocol.ContentBlock, param: str) -> ToolCall:
    for name, value in (("id", block.id), ("name", block.name)):
        if not value:
            raise RequestError.at(f"{param}.{name}", "is required")
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return ToolCall(id=block.id, function=FunctionCall(name=block.name or "", arguments=arguments))


def _blocks(turn: protocol.MessageTurn, param: str) -> list[tuple[protocol.ContentBlock, str]]:
    """The blocks of a turn, each with the name of its place."""
    if isinstance(turn.content, str):
        return [(protocol.ContentBlock(type="text", text=turn.content), f"{param}.content")]
    if not turn.content:
        raise RequestError.at(f"{param}.content", "must be a text or have at least one block")
    return [(block, f"{param}.content[{index}]") for index, block in enumerate(turn.content)]


def _text(block: protocol.ContentBlock, param: str) -> str:
    return part_text(block, param, _REFUSAL)
