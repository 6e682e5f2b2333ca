"""Bodies of the Responses API, as msgspec Structs. At the end: the fields that are known but not offered."""

from typing import Any

import msgspec

from ..fields import CACHE_OPTIONS, EndpointFields, whatever
from ..protocol import CommonFields, ContentPart
from ..protocol_answers import TokenLogprob


class InputItem(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One item of a conversation: a message, a function call, its output, or reasoning."""

    type: str | None = None
    """``message`` where it is left out."""
    id: str | None = None
    role: str | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    status: str | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GivenTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Names one of the tools."""

    type: str = "function"
    name: str | None = None


class GivenToolChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The function that must be called, or with ``allowed_tools`` those that may or must be."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[GivenTool] | None = None


class TextFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The form of the answer's text: ``text``, ``json_object`` or ``json_schema``."""

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """Options of reasoning."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesStreamOptions(msgspec.Struct, kw_only=True):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """Accepted for the reference API's clients; no padding is ever sent."""


class ResponsesRequest(CommonFields, kw_only=True):
    """``POST /v1/responses``."""

    input: str | list[InputItem]
    instructions: str | None = None
    """A system message for this request only: ``previous_response_id`` does not carry it on."""
    previous_response_id: str | None = None
    store: bool | None = None
    """Keep the answer for ``previous_response_id`` and retrieval (default true, as far as the server stores at all)."""
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | GivenToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    """Bounds hosted tools, of which there are none here: only told again."""
    truncation: str | None = None
    """``disabled`` (default): a conversation over the context is a 400. ``auto``: its oldest turns are left out."""
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OutputText(msgspec.Struct, kw_only=True, tag="output_text"):
    """The text of a message."""

    text: str = ""
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, kw_only=True, tag="message"):
    """What the assistant says."""

    id: str
    status: str = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = []


class FunctionCallItem(msgspec.Struct, kw_only=True, tag="function_call"):
    """A call that the caller is to make; ``arguments`` is a JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: str = "in_progress"


class ReasoningText(msgspec.Struct, kw_only=True, tag="reasoning_text"):
    """The text of reasoning."""

    text: str = ""


class ReasoningItem(msgspec.Struct, kw_only=True, tag="reasoning"):
    """What the model thought before it answered."""

    id: str
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText] = []
    status: str = "in_progress"


OutputItem = OutputMessage | FunctionCallItem | ReasoningItem


class InputTokensDetails(msgspec.Struct):
    """Part of ``ResponseUsage``."""

    cached_tokens: int
    """Input tokens found in the prefix cache."""
    cache_write_tokens: int = 0
    """Always 0: writing to the prefix cache is free here, and not counted."""


class OutputTokensDetails(msgspec.Struct):
    """Part of ``ResponseUsage``."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """An answer of ``/v1/responses``."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    """``in_progress``, ``completed``, ``incomplete``, ``failed`` or ``cancelled``."""
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, str | None]
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[FunctionTool] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str]


class DeletedResponse(msgspec.Struct, kw_only=True):
    """Answer of ``DELETE /v1/responses/{id}``."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, kw_only=True):
    """Answer of ``GET /v1/responses/{id}/input_items``."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


RESPONSES_FIELDS = EndpointFields(
    ResponsesRequest,
    CACHE_OPTIONS,
    {
        "background": (False,),
        "background_options": ({},),
        "context_management": ([],),
        "image": ({},),
        "n": (1,),
        "modalities": (["text"],),
        "response_format": ({"type": "text"},),
        **whatever("conversation prompt moderation access_programs messages max_tokens max_completion_tokens"),
    },
)
