"""Request bodies, as msgspec Structs: one declaration gives the decoder, the type checks and the schema in ``/docs``.

Every field may be null, which means the same as leaving it out. Fields that are known but not listed here are in
``fields.py``, with what happens to them. Messages and their parts, of which one request may have very many, are nothing
that the garbage collector needs to look at (``gc=False``): no cycle leads through them.
"""

from typing import Annotated, Any

import msgspec

from ..core.grammar import StructuredOutputs
from .structured import ResponseFormat
from .tools.tool_use import Tool, ToolChoice

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    """Send one last chunk with empty ``choices`` and the token counts."""
    continuous_usage_stats: bool | None = None
    """Send the token counts so far in every chunk."""
    include_obfuscation: bool | None = None
    """Accepted for the reference API's clients; no padding is ever sent."""


class CommonFields(msgspec.Struct, kw_only=True):
    """Fields that chat, text completions and responses share, with the meanings of ``SamplingParams``."""

    model: str | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    def common(self) -> dict[str, Any]:
        """These fields, for a request in another dialect."""
        return {name: getattr(self, name) for name in CommonFields.__struct_fields__}


class SamplingFields(CommonFields, kw_only=True):
    """Fields that chat and text completions share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    timings: bool | None = None
    """Tell where the time went, in the answer or the stream's last chunk."""


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One part of a message's content, of a tool's output, of reasoning, or of a refusal. Only text can be served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """The function that an assistant's earlier turn called; ``arguments`` is a JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call in an assistant's earlier turn."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True, gc=False):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    """What the model said in an earlier turn in place of ``content``."""
    reasoning_content: str | None = None
    """What the model thought in an earlier turn, for templates that show it."""
    reasoning: str | None = None
    """The same, under its other name."""


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    """Most tokens to generate; wins over ``max_tokens``. Without both: what the context leaves."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    """Ask the template for the assistant's turn (default). Must be false with ``continue_final_message``."""
    continue_final_message: bool | None = None
    """Leave the last message open, so that the answer continues it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables for the chat template."""
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    """``auto`` (default with tools), ``none``, ``required``, or an object that names a function."""
    parallel_tool_calls: bool | None = None
    """False: at most one call per answer."""
    reasoning_effort: str | None = None
    """Reaches the chat template; ``none`` also as ``enable_thinking`` false."""
    include_reasoning: bool | None = None
    """False: leave the reasoning out of the answer."""


class CompletionRequest(SamplingFields, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    """A text, a list of texts, a list of token ids, or a list of lists of token ids."""
    logprobs: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: a ``prompt``, or ``messages`` that go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages (their template writes special tokens itself)."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    """Tools that the chat template shows, with ``messages``."""


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]
