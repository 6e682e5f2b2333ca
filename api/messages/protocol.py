"""Bodies of Anthropic's Messages API, as msgspec Structs. At the end: the fields known but not offered."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ..fields import EndpointFields, whatever
from ..protocol import TokenId


class ContentBlock(msgspec.Struct, kw_only=True, gc=False):
    """A block of a message, of a system prompt or of a tool's result. ``cache_control`` is not needed: prefixes are
    cached by themselves."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[ContentBlock] | None" = None
    is_error: bool | None = None
    thinking: str | None = None


class MessageTurn(msgspec.Struct, kw_only=True, gc=False):
    """One turn of a conversation. An ``assistant`` turn at the end is the beginning of the answer."""

    role: str
    content: str | list[ContentBlock]


class MessageTool(msgspec.Struct, kw_only=True):
    """A tool that the model may use."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessageToolChoice(msgspec.Struct, kw_only=True):
    """Whether tools may or must be used: ``auto``, ``any``, ``tool`` (with ``name``) or ``none``."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """Whether to think first: ``enabled``, ``adaptive`` or ``disabled``. The budget is not enforced."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The form of the answer's text."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """How the answer is to be."""

    effort: str | None = None
    format: OutputFormat | None = None


class ContextEdit(msgspec.Struct, kw_only=True):
    """What may be left out of earlier turns."""

    type: str


class ContextManagement(msgspec.Struct, kw_only=True):
    """What may be left out of a long conversation. Only ``clear_thinking`` edits are taken: which earlier thoughts a
    prompt shows is for the chat template to say."""

    edits: list[ContextEdit] | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """``POST /v1/messages/count_tokens``."""

    model: str | None = None
    messages: list[MessageTurn]
    system: str | list[ContentBlock] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: int
    """Most tokens to generate. More than the context leaves is allowed: the answer may then end at the context's."""
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None


class TextBlock(msgspec.Struct, kw_only=True, tag="text"):
    """Text of an answer."""

    text: str = ""


class ThinkingBlock(msgspec.Struct, kw_only=True, tag="thinking"):
    """What the model thought before it answered. The signature is empty: nothing has to be proven to this server."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag="tool_use"):
    """A tool that the caller is to use."""

    id: str
    name: str
    input: dict[str, Any] = {}


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct):
    """Token counts. ``input_tokens`` leaves out those read from the cache, as the reference API does."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(msgspec.Struct, kw_only=True):
    """A plain answer of ``/v1/messages``."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[AnswerBlock] = []
    stop_reason: str | None = None
    """``end_turn``, ``max_tokens``, ``stop_sequence``, ``tool_use`` or ``model_context_window_exceeded``."""
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(msgspec.Struct):
    """Answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


class MessageErrorBody(msgspec.Struct):
    """What went wrong, and what to change."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET
    """For the client's own code, where it can do something about the error."""


class MessageError(msgspec.Struct, kw_only=True):
    """Every error of the Messages API, and in a stream the event that ends it."""

    type: str = "error"
    error: MessageErrorBody


# Caching needs no asking for; the others choose among machines and prices of the reference API.
_WITHOUT_EFFECT = frozenset(
    "metadata service_tier cache_control inference_geo speed user_profile_id workspace_id billing_policy "
    "fallback_credit_token".split()
)
_REFUSED: dict[str, tuple[Any, ...]] = {
    **whatever("container compaction thread diagnostics output_format"),
    "mcp_servers": ([],),
    "fallbacks": ([],),
    "stop": ([],),
    "n": (1,),
}

MESSAGES_FIELDS = EndpointFields(MessagesRequest, _WITHOUT_EFFECT, _REFUSED)
COUNT_TOKENS_FIELDS = EndpointFields(CountTokensRequest, _WITHOUT_EFFECT, _REFUSED)
