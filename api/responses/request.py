"""From a Responses request to a chat request: a conversation is the same thing in every dialect."""

from typing import Any

import msgspec

from ...core.errors import RequestError, UnsupportedFieldError
from ..protocol import ChatCompletionRequest, ChatMessage
from ..sampling import check_stream_options, rename_param
from ..structured import JsonSchemaFormat, ResponseFormat
from ..tools.tool_use import AllowedTools, FunctionName, NamedTool, Tool, ToolChoice
from .protocol import FunctionTool, GivenToolChoice, ReasoningOptions, ResponsesRequest, TextFormat

LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
_MAX_METADATA = 16

# Fields of a chat request under their names here, for the ``param`` of an error.
_RENAMED = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def check_request(asked: ResponsesRequest) -> None:
    """What a chat request does not check. Raises ``RequestError``."""
    for name in asked.include or []:
        if name not in _INCLUDES:
            raise RequestError.at("include", f"holds {name[:64]!r}; offered: {', '.join(_INCLUDES)}")
    if asked.truncation not in (None, "disabled", "auto"):
        raise RequestError.at("truncation", f"must be 'auto' or 'disabled', not {asked.truncation[:64]!r}")
    check_stream_options(asked.stream, asked.stream_options)
    if asked.text is not None and asked.text.verbosity not in (None, "medium"):
        raise UnsupportedFieldError.at("text.verbosity", "is not supported by this server: leave it out")
    _check_metadata(asked.metadata or {})


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > _MAX_METADATA:
        raise RequestError.at("metadata", f"has {len(metadata)} entries; at most {_MAX_METADATA} are allowed")
    for key, value in metadata.items():
        if len(key) > 64 or len(value) > 512:
            raise RequestError("metadata keys have at most 64 characters, values at most 512", "metadata")


def top_logprobs(asked: ResponsesRequest) -> int | None:
    """Alternatives per token; None: no log probabilities are wanted."""
    if asked.top_logprobs or LOGPROBS in (asked.include or []):
        return asked.top_logprobs or 0
    return None


def chat_request(asked: ResponsesRequest, messages: list[ChatMessage]) -> ChatCompletionRequest:
    """The same question in the chat dialect. Raises ``RequestError``."""
    alternatives = top_logprobs(asked)
    return ChatCompletionRequest(
        messages=messages,
        max_completion_tokens=asked.max_output_tokens,
        logprobs=alternatives is not None,
        top_logprobs=alternatives,
        response_format=_response_format(asked.text.format if asked.text is not None else None),
        tools=_tools(asked.tools),
        tool_choice=_tool_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        reasoning_effort=None if asked.reasoning is None else asked.reasoning.effort,
        chat_template_kwargs=asked.chat_template_kwargs,
        **asked.common(),
    )


def _response_format(given: TextFormat | None) -> ResponseFormat | None:
    """The format of the text in the chat dialect, where a schema is one level deeper."""
    if given is None:
        return None
    if given.type not in ("text", "json_object", "json_schema"):
        raise RequestError.at("text.format.type", f"must be text, json_object or json_schema, not {given.type[:64]!r}")
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    if given.schema is None:
        raise RequestError.at("text.format.schema", "is required")
    schema = JsonSchemaFormat(name=given.name, description=given.description, schema=given.schema, strict=given.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _tools(given: list[FunctionTool] | None) -> list[Tool] | None:
    """Function tools in the chat dialect, where their fields are one level deeper."""
    if not given:
        return None
    tools = []
    for index, tool in enumerate(given):
        if tool.type != "function":
            raise UnsupportedFieldError(
                f"tools[{index}] has type {tool.type[:64]!r}; this server takes only tools of type 'function'",
                f"tools[{index}].type",
            )
        if tool.name is None:
            raise RequestError.at(f"tools[{index}].name", "is required")
        tools.append(Tool.of(tool.name, tool.description, tool.parameters, tool.strict))
    return tools


def _tool_choice(given: str | GivenToolChoice | None) -> str | ToolChoice | None:
    """The choice in the chat dialect."""
    if given is None or isinstance(given, str):
        return given
    if given.type == "allowed_tools":
        named = [NamedTool(function=FunctionName(name=tool.name or "")) for tool in given.tools or []]
        return ToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=given.mode or "auto", tools=named))
    if given.type != "function" or given.name is None:
        raise RequestError.at("tool_choice", 'as an object must be {"type": "function", "name": ...}')
    return ToolChoice(function=FunctionName(name=given.name))


def told_text(asked: ResponsesRequest) -> dict[str, Any]:
    """The ``text`` of an answer: what was asked for."""
    given = asked.text.format if asked.text is not None else None
    return {"format": {"type": "text"} if given is None else msgspec.to_builtins(given), "verbosity": "medium"}


def told_reasoning(asked: ResponsesRequest) -> dict[str, str | None]:
    """The ``reasoning`` of an answer."""
    given = asked.reasoning or ReasoningOptions()
    return {"effort": given.effort, "summary": given.summary or given.generate_summary}


def told_tool_choice(asked: ResponsesRequest) -> str | dict[str, Any]:
    """The ``tool_choice`` of an answer."""
    given = asked.tool_choice
    if given is None:
        return "auto"
    return given if isinstance(given, str) else msgspec.to_builtins(given)


def own_names(error: RequestError) -> RequestError:
    """The same error, told with the field names of this dialect."""
    param = error.param or ""
    renamed = {param: param.replace(".function", "")} if param.startswith(("tools[", "tool_choice.")) else _RENAMED
    return rename_param(error, renamed)
