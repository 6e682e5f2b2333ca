"""Chat templates: a conversation as the text that the model was trained to continue.

Templates are Jinja programs that come with models, so they run in Jinja's sandbox, with the globals and filters that
Hugging Face's templates count on, and with limits on their output's size and time.
"""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..core.errors import ConfigurationError, RequestError
from ..engine.tokenizer import Tokenizer
from .tools.prompt import messages_with_results, messages_with_tools

_CONTINUED = "<<octavo-continues-here>> "
"""Marks the end of the message to continue. Its space shows whether the template trims messages."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_KNOWS_TOOLS = re.compile(r"\btools\b")
_MAX_CHARACTERS = 64 << 20
_MAX_SECONDS = 20.0
# What a template program can raise when a conversation is not of the shape that it expects.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class ChatTemplate:
    """The compiled chat templates of one model. Safe to use from several threads."""

    def __init__(self, sources: dict[str, str], special_tokens: dict[str, str] | None = None) -> None:
        """``sources``: Jinja source by name, of which ``default`` and ``tool_use`` are used. ``special_tokens``: text
        by role (``bos_token`` ...). Raises ``ConfigurationError`` for a template that does not compile."""
        environment = _environment()
        self._special_tokens = special_tokens or {}
        self.source = "\n".join(sources.values())
        """The Jinja source, for what it tells of its model."""
        self.knows_tools = _KNOWS_TOOLS.search(self.source) is not None
        """False for a template that does not tell its model of tools; see ``prompt``."""
        self._templates: dict[str, jinja2.Template] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateError as error:
                where = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
                raise ConfigurationError(
                    f"the chat template ({name}{where}) is no valid Jinja: {error}; pass another with --chat-template"
                ) from error

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, override: str | Path | None = None) -> "ChatTemplate":
        """The tokenizer's templates, or the one in ``override``: a file, or the Jinja source itself."""
        sources = tokenizer.chat_templates if override is None else {"default": _read_override(override)}
        return cls(sources, tokenizer.special_tokens)

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any) -> str:
        """As ``render``. A template that knows no tools gets them told in the system message, and calls as text."""
        if not self.knows_tools:
            if "tool_calls" not in self.source:
                messages = messages_with_results(messages)
            if tools:
                messages = messages_with_tools(messages, tools)
            tools = None
        return self.render(messages, tools=tools, **options)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt. It holds the special tokens as text: encode it with ``add_special_tokens=False``.

        ``continue_final_message`` leaves the last message open for the model to go on with (and takes the place of
        ``add_generation_prompt``). ``kwargs`` reach the template. Raises ``RequestError`` for a conversation that the
        template refuses or fails on, with its own message.
        """
        template = self._template(tools)
        prepared = [_prepare(message) for message in messages]
        if continue_final_message:
            _mark_end(prepared)
        context = {"documents": None} | self._special_tokens | kwargs | {"messages": prepared, "tools": tools}
        context["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        try:
            text = _render_calls(template, context)
        except _TEMPLATE_FAILURES as error:
            raise RequestError(f"the chat template refused the messages: {_reason(error)}", "messages") from error
        return _cut_at_mark(text) if continue_final_message else text

    def _template(self, tools: list[dict[str, Any]] | None) -> jinja2.Template:
        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or start the server with --chat-template FILE",
                "messages",
                "no_chat_template",
            )
        return template


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's text for training; for a prompt it is just its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter: the model was trained on it plain."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _render(template: jinja2.Template, context: dict[str, Any]) -> str:
    """Run the template piece by piece, so that one that never ends or grows without bound can be stopped."""
    pieces = []
    size = 0
    deadline = time.monotonic() + _MAX_SECONDS
    for piece in template.generate(context):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_CHARACTERS:
            raise jinja2.TemplateError(f"its text is longer than {_MAX_CHARACTERS} characters")
        if time.monotonic() > deadline:
            raise jinja2.TemplateError(f"it did not end within {_MAX_SECONDS:g} s")
    return "".join(pieces)


def _render_calls(template: jinja2.Template, context: dict[str, Any]) -> str:
    """Most templates write a call's arguments out as JSON; some (DeepSeek's) join them to a text as they are."""
    try:
        return _render(template, context)
    except TypeError:
        written = [_with_arguments(message, _as_text) for message in context["messages"]]
        if written == context["messages"]:
            raise
        return _render(template, context | {"messages": written})


def _with_arguments(message: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The message with the arguments of its calls in another form."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return message | {"tool_calls": [_converted(call, convert) for call in calls]}


def _converted(call: Any, convert: Callable[[Any], Any]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    return call | {"function": function | {"arguments": convert(function["arguments"])}}


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else _to_json(arguments)


def _as_object(arguments: Any) -> Any:
    """OpenAI sends a call's arguments as JSON text; templates write them out as JSON themselves."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _prepare(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: no null fields, tool arguments as objects, reasoning under its usual name."""
    prepared = {name: value for name, value in message.items() if value is not None}
    reasoning = next((prepared[name] for name in _REASONING_FIELDS if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning} | prepared | {"reasoning_content": reasoning}
    return _with_arguments(prepared, _as_object)


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Put the mark behind the text of the last message. Changes the (already copied) message."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _CONTINUED
        return
    if isinstance(content, list):
        for index in reversed(range(len(content))):
            part = content[index]
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                marked = part | {"text": part["text"] + _CONTINUED}
                messages[-1]["content"] = [*content[:index], marked, *content[index + 1 :]]
                return
    raise RequestError.at("continue_final_message", "needs a last message with text to continue")


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_CONTINUED.rstrip())
    if end < 0:
        raise RequestError.at(
            "continue_final_message", "is not possible: the chat template leaves the last message out, or changes it"
        )
    # Without the mark's space the template trims messages, and would have trimmed the end of this one.
    return text[:end] if text.startswith(_CONTINUED, end) else text[:end].rstrip()


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return error.message or type(error).__name__
    return f"{type(error).__name__}: {error}"


def _read_override(override: str | Path) -> str:
    if isinstance(override, str) and any(mark in override for mark in ("{{", "{%", "\n")):
        return override
    try:
        return Path(override).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--chat-template {override}: cannot read this file: {error}") from error
