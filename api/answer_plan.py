"""How a server's model writes calls and reasoning, and so how the answer of each request is to be read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import RequestError, UnsupportedFieldError
from ..core.grammar import JSON_SCHEMA, StructuredOutputs
from .answer_splitter import AnswerSplitter
from .chat_template import ChatTemplate
from .reasoning import ReasoningFormat, ReasoningMachine, reasoning_format
from .server_args import ServerArgs
from .tools.forced import ForcedCallParser
from .tools.mixed_grammar import answer_or_calls, text_and_calls
from .tools.registry import tool_parser_class
from .tools.tool_parser import ToolParser
from .tools.tool_use import ToolUse

if TYPE_CHECKING:
    from ..engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What one request says about how its answer is to be read."""

    tools: ToolUse | None
    include_reasoning: bool
    constrained: bool
    """A grammar holds from the first token on, so there is no reasoning."""
    open_text: str = ""
    """Text of the message that the answer continues, if it does."""


class AnswerPlan:
    """What is the same for all answers of one server. Made at its start."""

    def __init__(self, args: ServerArgs, template: ChatTemplate | None, tokenizer: "Tokenizer | None") -> None:
        """Raises ``ConfigurationError`` for a parser that does not exist."""
        source = "" if template is None else template.source
        self.tool_parser: type[ToolParser] | None = tool_parser_class(args.tool_call_parser, source)
        self.reasoning: ReasoningFormat | None = reasoning_format(args.reasoning_parser, source)
        self._special = frozenset() if tokenizer is None else tokenizer.special_texts
        self._end_of_reasoning: int | None = None
        if self.reasoning is not None and tokenizer is not None:
            ids = tokenizer.encode(self.reasoning.closing, add_special_tokens=False)
            self._end_of_reasoning = ids[0] if len(ids) == 1 else None

    def check(self, tools: ToolUse | None) -> None:
        """Raises ``UnsupportedFieldError`` for tools on a server that has them switched off."""
        if tools is not None and tools.mode != "none" and self.tool_parser is None:
            raise UnsupportedFieldError.at("tools", "is not supported: this server runs with --tool-call-parser none")

    def constraint(
        self, tools: ToolUse | None, given: StructuredOutputs | None, loose: bool = False
    ) -> StructuredOutputs | None:
        """What the whole answer is held to: the call that is forced, or ``given``, the request's own constraint.

        JSON that a request asks for leaves calls possible where the format of calls allows it, and calls of functions
        that are defined as strict are held to their schemas where it has a clear opening. ``loose``: see
        ``ToolUse.answer_schema``.
        """
        if tools is None or tools.mode == "none":
            return given
        if tools.forced:
            return StructuredOutputs(json=tools.answer_schema(loose))
        parser = self.tool_parser
        if parser is None or parser.frame is None:
            return given
        if given is None:
            held = any(tool.strict for tool in tools.tools) and bool(parser.openings) and not self._marks_reasoning
            return text_and_calls(tools, parser.frame, parser.openings[0]) if held else None
        try:
            spec = given.spec()
            mixed = StructuredOutputs(grammar=answer_or_calls(spec.text, tools, parser.frame))
        except RequestError:
            return given  # what is wrong with it is told where it is compiled
        return mixed if spec.kind == JSON_SCHEMA else given

    @property
    def _marks_reasoning(self) -> bool:
        """True if reasoning is marked by special tokens, which no grammar of text lets a model write."""
        tags = self.reasoning
        return tags is not None and not self._special.isdisjoint((tags.opening, tags.closing))

    def needs_special_tokens(self, request: AnswerRequest) -> bool:
        """True if the markup to be read is special tokens, which the text is usually without."""
        parser, tags = self._calls_of(request), self._reasoning_of(request)
        markers = () if parser is None else parser.markers
        if tags is not None:
            markers += (tags.opening, tags.closing)
        return not self._special.isdisjoint(markers)

    def splitters(self, request: AnswerRequest, prompt: str, count: int) -> list[AnswerSplitter] | None:
        """One for each of ``count`` completions of ``prompt``; None if their text is nothing but content."""
        parser, tags = self._calls_of(request), self._reasoning_of(request)
        state = "closed" if tags is None else tags.state_after(prompt, request.open_text)
        if parser is None and state == "closed":
            return None
        return [self._splitter(request, parser, tags, state) for _ in range(count)]

    def _calls_of(self, request: AnswerRequest) -> type[ToolParser] | None:
        """What reads calls in the answer; None: there cannot be any."""
        return None if request.tools is None or request.tools.mode == "none" else self.tool_parser

    def _reasoning_of(self, request: AnswerRequest) -> ReasoningFormat | None:
        """How reasoning is marked in the answer; None: there cannot be any."""
        forced = request.tools is not None and request.tools.forced
        return None if request.constrained or forced else self.reasoning

    def _splitter(
        self, request: AnswerRequest, parser: type[ToolParser] | None, tags: ReasoningFormat | None, state: str
    ) -> AnswerSplitter:
        tools = request.tools
        machine = None if tags is None or state == "closed" else ReasoningMachine(tags, state)
        calls: ToolParser | None = None
        if parser is not None and tools is not None:
            calls = parser(tools.schemas)
            if tools.forced:
                calls = ForcedCallParser(tools.schemas, tools.named, calls)
        return AnswerSplitter(
            machine,
            calls,
            one_call=tools is not None and (not tools.parallel or tools.named is not None),
            show_reasoning=request.include_reasoning,
            end_of_reasoning=self._end_of_reasoning,
        )
