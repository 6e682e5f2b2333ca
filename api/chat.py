"""The chat dialect: from messages to a prompt, and from events to ``chat.completion.chunk`` or ``chat.completion``."""

from typing import Any

import msgspec

from ..core.errors import RequestError
from .answer_gathering import MessageGatherer, chat_delta, content_alone
from .chunk_stream import ChunkStream
from .content import message_text
from .dialect import AnswerHead, encode_json
from .generation import ChoiceDelta, Event, Generation, PromptStarted
from .logprobs import chat_logprobs, prompt_logprobs_answer
from .protocol import ChatCompletionRequest, ChatMessage, ContentPart, TokenizeRequest
from .protocol_answers import AnswerMessage, ChatChoice, ChatCompletion, ChatLogprobs, PromptLogprobs
from .tools.tool_use import ToolChoice

ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TEMPLATE_OWN = ("self", "messages", "tools", "add_generation_prompt", "continue_final_message")


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them. Text parts are joined with a newline; ``developer`` becomes ``system``.

    Raises ``RequestError`` naming the message for an unknown role, a part that is no text, or no content at all.
    """
    if not messages:
        raise RequestError.at("messages", "must not be empty")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, param: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise RequestError.at(f"{param}.role", f"must be one of {', '.join(ROLES)}, not {message.role[:64]!r}")
    rendered: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    content = _said(message)
    if content is not None:
        rendered["content"] = _text(content, param)
    elif message.role == "assistant" and message.tool_calls:
        rendered["content"] = ""
    else:
        raise RequestError.at(f"{param}.content", "is required")
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_calls:
        rendered["tool_calls"] = [msgspec.to_builtins(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None:
        rendered["reasoning_content"] = reasoning
    return rendered


def _said(message: ChatMessage) -> str | list[ContentPart] | None:
    return message.refusal if message.content is None else message.content


def _text(content: str | list[ContentPart], param: str) -> str:
    return message_text(content, f"{param}.content", "; this server takes only parts of type 'text'")


def template_options(
    asked: ChatCompletionRequest | TokenizeRequest, variables: dict[str, Any] | None
) -> dict[str, Any]:
    """How the chat template is to be run, with further ``variables`` of its own. Raises ``RequestError``."""
    add, go_on = asked.add_generation_prompt, asked.continue_final_message
    if add and go_on:
        raise RequestError.at(
            "continue_final_message", "leaves the last message open; send add_generation_prompt false with it"
        )
    for name in variables or {}:
        if name in _TEMPLATE_OWN:
            raise RequestError.at("chat_template_kwargs", f"must not set {name}: the request's own fields do")
    add = not go_on if add is None else add
    return {"add_generation_prompt": add, "continue_final_message": bool(go_on)} | (variables or {})


def template_variables(request: ChatCompletionRequest) -> dict[str, Any] | None:
    """Further variables for the template: ``reasoning_effort`` for those that use it, and the request's own.

    Raises ``RequestError``.
    """
    effort = request.reasoning_effort
    if effort is None:
        return request.chat_template_kwargs
    if effort not in REASONING_EFFORTS:
        raise RequestError.at("reasoning_effort", f"must be one of {', '.join(REASONING_EFFORTS)}, not {effort[:32]!r}")
    variables: dict[str, Any] = {"reasoning_effort": effort}
    if effort == "none":
        variables["enable_thinking"] = False
    return variables | (request.chat_template_kwargs or {})


def alternatives(request: ChatCompletionRequest) -> int | None:
    """Alternatives per token; None: no log probabilities are wanted."""
    return (request.top_logprobs or 0) if request.logprobs else None


def last_text(request: ChatCompletionRequest) -> str:
    """Text of the last message, which an answer may continue."""
    content = _said(request.messages[-1]) if request.messages else None
    return _text(content, f"messages[{len(request.messages) - 1}]") if content else ""


def echoed(request: ChatCompletionRequest) -> str:
    """Text that the answer begins with: the last message's own, where ``echo`` asks for it."""
    return last_text(request) if request.echo and request.messages[-1].role == "assistant" else ""


def _finish_reason(request: ChatCompletionRequest, event: ChoiceDelta) -> str | None:
    """The end of a choice. A call of a particular function ends with ``stop``, as in the reference API."""
    named = isinstance(request.tool_choice, ToolChoice) and request.tool_choice.type == "function"
    return "stop" if named and event.finish_reason == "tool_calls" else event.finish_reason


class ChatStream(ChunkStream):
    """``StreamWriter`` of chat completions."""

    kind = "chat.completion.chunk"

    def __init__(self, head: AnswerHead, generation: Generation, asked: ChatCompletionRequest) -> None:
        self._asked = asked
        self._alternatives = alternatives(asked)
        super().__init__(head, generation, asked, self._alternatives is not None)
        self._text_heads = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(generation.n)]
        self._text_tail = b'},"finish_reason":null}' + self._tail

    def _chunk(self, event: ChoiceDelta) -> bytes:
        if event.finish_reason is None and self._plain:
            text = event.text if event.parts is None else content_alone(event.parts)
            if text is not None:
                # The hot path: one of these per token and stream.
                return self._text_heads[event.index] + encode_json(text) + self._text_tail if text else b""
        told = event.text if event.parts is None else event.parts
        shown = told or event.finish_reason or self._wants_ids or event.logprobs
        return self._framed(self._ended(self._choice(event), event)) if shown else b""

    def _start(self, event: PromptStarted) -> bytes:
        """The first chunk of every choice: the role, and what is told of the prompt."""
        extra: dict[str, Any] = {}
        if event.prompt_logprobs is not None:
            extra["prompt_logprobs"] = prompt_logprobs_answer(event.prompt_logprobs)
        if self._wants_ids:
            extra["prompt_token_ids"] = self._generation.prompts[0].prompt_token_ids
        chunks = []
        for index in range(self._generation.n):
            delta = {"role": "assistant", "content": echoed(self._asked)}
            chunks.append(self._framed({"index": index, "delta": delta, "finish_reason": None}, extra))
            extra = {}
        return b"".join(chunks)

    def _choice(self, event: ChoiceDelta) -> dict[str, Any]:
        delta = {"content": event.text} if event.text else {}
        choice: dict[str, Any] = {
            "index": event.index,
            "delta": delta if event.parts is None else chat_delta(event.parts),
        }
        if self._alternatives is not None and event.logprobs:
            choice["logprobs"] = ChatLogprobs(chat_logprobs(event.logprobs, self._alternatives))
        choice["finish_reason"] = _finish_reason(self._asked, event)
        return choice


class ChatCollector:
    """``Collector`` of chat completions."""

    def __init__(self, head: AnswerHead, generation: Generation, asked: ChatCompletionRequest) -> None:
        self._head = head
        self._generation = generation
        self._asked = asked
        self._alternatives = alternatives(asked)
        self._messages = [MessageGatherer(echoed(asked)) for _ in range(generation.n)]
        self._choices = [self._empty_choice(index) for index in range(generation.n)]
        self._prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET

    def _empty_choice(self, index: int) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AnswerMessage("assistant", None),
            logprobs=None if self._alternatives is None else ChatLogprobs([]),
            finish_reason=None,
            token_ids=[] if self._asked.return_token_ids else msgspec.UNSET,
        )

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        for event in events:
            if isinstance(event, PromptStarted):
                if event.prompt_logprobs is not None:
                    self._prompt_logprobs = prompt_logprobs_answer(event.prompt_logprobs)
                continue
            choice = self._choices[event.index]
            self._messages[event.index].add(event.text, event.parts)
            if choice.token_ids is not msgspec.UNSET:
                choice.token_ids += event.token_ids
            if choice.logprobs is not None and event.logprobs:
                choice.logprobs.content += chat_logprobs(event.logprobs, self._alternatives or 0)
            if event.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = _finish_reason(self._asked, event), event.stop_reason

    def answer(self) -> ChatCompletion:
        """See ``Collector``."""
        for choice, message in zip(self._choices, self._messages, strict=True):
            choice.message = message.message()
        prompt_ids = self._generation.prompts[0].prompt_token_ids
        return ChatCompletion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=self._choices,
            usage=self._generation.usage,
            prompt_logprobs=self._prompt_logprobs,
            prompt_token_ids=prompt_ids if self._asked.return_token_ids else msgspec.UNSET,
            timings=self._generation.times_told if self._asked.timings else msgspec.UNSET,
        )
