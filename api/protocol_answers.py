"""Answer bodies, as msgspec Structs: what plain answers are encoded from, and what ``/docs`` shows.

A field that is ``UNSET`` is left out of the JSON. Streamed chunks have the same shapes with ``delta`` for ``message``;
``chat.py`` and ``completions.py`` write those directly.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """Part of ``Usage``."""

    cached_tokens: int
    """Prompt tokens found in the prefix cache."""


class CompletionTokensDetails(msgspec.Struct):
    """Part of ``Usage``."""

    reasoning_tokens: int
    """Tokens of the reasoning, its tags included."""


class Usage(msgspec.Struct):
    """Token counts. Each prompt counts once, whatever ``n`` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Only where there was reasoning."""


class Timings(msgspec.Struct, kw_only=True):
    """Where the time of a request went. What was not reached is null."""

    queue_ms: float | None = None
    """From arrival until it was scheduled, milliseconds."""
    prefill_ms: float | None = None
    """From then to the first token."""
    decode_ms: float | None = None
    """From the first token to the last."""
    time_to_first_token_ms: float | None = None
    tokens_per_second: float | None = None
    """Tokens after the first ones, per second of decoding, over all choices."""


class AlternativeToken(msgspec.Struct):
    """One of the best tokens at a position."""

    token: str
    logprob: float
    """At least -9999.0, which stands for minus infinity."""
    bytes: list[int] | None


class TokenLogprob(AlternativeToken):
    """A chosen token, and the best ones at its position from high to low."""

    top_logprobs: list[AlternativeToken]


class ChatLogprobs(msgspec.Struct):
    """Log probabilities of a chat answer."""

    content: list[TokenLogprob]
    refusal: None = None
    """A key that the reference API promises, here and in the message: no model here refuses in a form of its own."""


class CalledFunction(msgspec.Struct):
    """What a call calls, and with what: ``arguments`` is a JSON text, as the model wrote it."""

    name: str
    arguments: str


class AnswerCall(msgspec.Struct):
    """One call of a tool."""

    id: str
    type: str
    function: CalledFunction


class AnswerMessage(msgspec.Struct):
    """The assistant's turn."""

    role: str
    content: str | None
    """Null where there are only calls."""
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """What the model thought before it answered."""
    reasoning: str | UnsetType = UNSET
    """The same as ``reasoning_content``, under its other name."""
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the ``n`` answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended the answer."""
    token_ids: list[int] | UnsetType = UNSET


PromptLogprobs = list[dict[str, dict[str, Any]] | None]
"""Per prompt token: token id to ``{logprob, rank, decoded_token}``; null for the first token."""


class ChatCompletion(msgspec.Struct, kw_only=True):
    """A plain answer of ``/v1/chat/completions``."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct):
    """Log probabilities of a text completion: four lists with one entry per token."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []
    """Where the token begins, in characters of the answer's text."""

    def extend(self, other: "CompletionLogprobs") -> None:
        """Append what a later piece of the same answer brought."""
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One completion; ``index`` counts prompt by prompt, ``n`` each."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """A plain answer of ``/v1/completions``."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    """Left out only of a stream's last chunk that was asked for nothing but timings."""
    timings: Timings | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """One served model name."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """Answer of ``/v1/models``."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    """Answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(msgspec.Struct, kw_only=True):
    """Answer of ``/detokenize``."""

    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """Answer of ``/tokenizer_info``: what a client needs to use ``/tokenize`` as its tokenizer."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    vocab_size: int
    """Number of ids, added tokens included."""
    chat_template: str | None
    """The model's own, Jinja source."""


class Health(msgspec.Struct, omit_defaults=True):
    """Answer of ``/health``, ``/ready`` and ``/live``, with status 503 where it is a bad one."""

    status: str
    """``ready``, ``loading``, ``restarting``, ``stopping`` or ``dead``; of ``/live`` ``live`` or ``dead``."""
    error: str | None = None
    """Why the engine is dead."""


class Version(msgspec.Struct):
    """Answer of ``/version``."""

    version: str


class ErrorBody(msgspec.Struct, kw_only=True):
    """What went wrong, and what to change."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct):
    """Every error, of every route, and in a stream the event that ends it."""

    error: ErrorBody
