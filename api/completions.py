"""The text completion dialect: the kinds of prompt, and from events to ``text_completion`` chunks or answers."""

from collections.abc import Iterator
from typing import Any

import msgspec

from ..core.errors import RequestError
from ..core.outputs import TokenLogprobs
from .chunk_stream import ChunkStream
from .dialect import AnswerHead, encode_json
from .generation import ChoiceDelta, Event, Generation, PromptStarted
from .logprobs import CompletionLogprobsWriter, prompt_logprobs_answer
from .protocol import CompletionRequest
from .protocol_answers import Completion, CompletionChoice, CompletionLogprobs

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024
MAX_COMPLETIONS = 4096
"""Of one request: prompts times ``n``."""


def split_prompts(
    prompt: str | list[str | int | list[int]], param: str = "prompt", most: int = MAX_PROMPTS
) -> tuple[list[str], list[list[int]]]:
    """The prompts of a request: either texts or lists of token ids, the other being empty. Raises ``RequestError``."""
    if isinstance(prompt, str):
        return [prompt], []
    if not prompt:
        raise RequestError.at(param, "must not be an empty list")
    texts = [part for part in prompt if isinstance(part, str)]
    token_ids = [part for part in prompt if isinstance(part, int)]
    lists = [part for part in prompt if isinstance(part, list)]
    if len(token_ids) == len(prompt):
        return [], [token_ids]
    if len(prompt) not in (len(texts), len(lists)):
        raise RequestError.at(param, "must hold only texts, only token ids or only lists of token ids")
    if len(prompt) > most:
        raise RequestError.at(param, f"has {len(prompt)} entries; at most {most} are allowed")
    return texts, lists


class _PromptPiece(msgspec.Struct):
    """What an answer tells of its prompt."""

    text: str
    logprobs: CompletionLogprobs | None
    extra: dict[str, Any]


class _LogprobsOfAnswer:
    """The log probabilities of every choice of one answer; the same for stream and plain."""

    def __init__(self, generation: Generation, asked: CompletionRequest, echoes: list[str] | None) -> None:
        self._generation = generation
        self._asked = asked
        self._echoes = echoes
        self._tokenizer = generation.engine.tokenizer
        count = len(generation.prompts) * generation.n
        special = frozenset[int]() if self._tokenizer is None else self._tokenizer.special_ids
        shown = asked.skip_special_tokens is False
        self._writers = [CompletionLogprobsWriter(asked.logprobs or 0, special, shown) for _ in range(count)]

    def prompt_pieces(self, event: PromptStarted) -> Iterator[tuple[int, _PromptPiece]]:
        """What every choice of a prompt begins with, and which one it is."""
        first = event.prompt_index * self._generation.n
        for index in range(first, first + self._generation.n):
            yield index, self._prompt_piece(index, event)

    def _prompt_piece(self, index: int, event: PromptStarted) -> _PromptPiece:
        """The echo of a prompt, its log probabilities and its ids, as far as they are wanted."""
        asked, echoes = self._asked, self._echoes
        extra: dict[str, Any] = {}
        if asked.return_token_ids:
            extra["prompt_token_ids"] = self._generation.prompts[event.prompt_index].prompt_token_ids
        if asked.prompt_logprobs is not None and event.prompt_logprobs is not None:
            extra["prompt_logprobs"] = prompt_logprobs_answer(event.prompt_logprobs)
        if echoes is None:
            return _PromptPiece("", None, extra)
        logprobs = None
        if asked.logprobs is not None and event.prompt_logprobs is not None:
            logprobs = self._echoed(index, event.prompt_index, event.prompt_logprobs)
        return _PromptPiece(echoes[event.prompt_index], logprobs, extra)

    def _echoed(self, index: int, prompt_index: int, positions: list[TokenLogprobs | None]) -> CompletionLogprobs:
        writer = self._writers[index]
        lists = CompletionLogprobs([], [], [], [])
        prompt, tokenizer = self._generation.prompts[prompt_index], self._tokenizer
        for token_id, position in zip(prompt.prompt_token_ids, positions, strict=False):
            if position is not None:
                lists.extend(writer.positions([position], prompt.prompt))
            else:
                text = f"token_id:{token_id}" if tokenizer is None else tokenizer.token_text(token_id)
                text_bytes = b"" if tokenizer is None else tokenizer.token_bytes(token_id)
                lists.extend(writer.prompt(token_id, text, text_bytes, prompt.prompt))
        return lists

    def delta(self, event: ChoiceDelta) -> CompletionLogprobs | None:
        """The lists for what is new in a choice."""
        if self._asked.logprobs is None or not event.logprobs:
            return None
        return self._writers[event.index].positions(event.logprobs)


class CompletionStream(ChunkStream):
    """``StreamWriter`` of text completions."""

    kind = "text_completion"

    def __init__(
        self, head: AnswerHead, generation: Generation, asked: CompletionRequest, echoes: list[str] | None
    ) -> None:
        super().__init__(head, generation, asked, asked.logprobs is not None)
        self._logprobs = _LogprobsOfAnswer(generation, asked, echoes)
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail

    def _chunk(self, event: ChoiceDelta) -> bytes:
        if event.finish_reason is None and self._plain:
            # The hot path: one of these per token and stream.
            if not event.text:
                return b""
            return self._head + b'{"index":%d,"text":%b' % (event.index, encode_json(event.text)) + self._text_tail
        if not (event.text or event.finish_reason or self._wants_ids or event.logprobs):
            return b""
        choice: dict[str, Any] = {
            "index": event.index,
            "text": event.text,
            "logprobs": self._logprobs.delta(event),
            "finish_reason": event.finish_reason,
        }
        return self._framed(self._ended(choice, event))

    def _start(self, event: PromptStarted) -> bytes:
        chunks = []
        for index, piece in self._logprobs.prompt_pieces(event):
            if piece.text or piece.logprobs is not None or piece.extra:
                choice = {"index": index, "text": piece.text, "logprobs": piece.logprobs, "finish_reason": None}
                chunks.append(self._framed(choice | piece.extra))
        return b"".join(chunks)


class CompletionCollector:
    """``Collector`` of text completions."""

    def __init__(
        self, head: AnswerHead, generation: Generation, asked: CompletionRequest, echoes: list[str] | None
    ) -> None:
        self._head = head
        self._generation = generation
        self._asked = asked
        self._logprobs = _LogprobsOfAnswer(generation, asked, echoes)
        count = len(generation.prompts) * generation.n
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._choices = [self._empty_choice(index) for index in range(count)]

    def _empty_choice(self, index: int) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text="",
            logprobs=None if self._asked.logprobs is None else CompletionLogprobs([], [], [], []),
            finish_reason=None,
            token_ids=[] if self._asked.return_token_ids else msgspec.UNSET,
        )

    def add(self, events: list[Event]) -> None:
        """See ``Collector``."""
        for event in events:
            if isinstance(event, PromptStarted):
                self._add_prompt(event)
                continue
            choice = self._choices[event.index]
            self._texts[event.index].append(event.text)
            logprobs = self._logprobs.delta(event)
            if choice.logprobs is not None and logprobs is not None:
                choice.logprobs.extend(logprobs)
            if choice.token_ids is not msgspec.UNSET:
                choice.token_ids += event.token_ids
            if event.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason

    def _add_prompt(self, event: PromptStarted) -> None:
        for index, piece in self._logprobs.prompt_pieces(event):
            choice = self._choices[index]
            self._texts[index].append(piece.text)
            if choice.logprobs is not None and piece.logprobs is not None:
                choice.logprobs.extend(piece.logprobs)
            choice.prompt_token_ids = piece.extra.get("prompt_token_ids", msgspec.UNSET)
            choice.prompt_logprobs = piece.extra.get("prompt_logprobs", msgspec.UNSET)

    def answer(self) -> Completion:
        """See ``Collector``."""
        for choice, texts in zip(self._choices, self._texts, strict=True):
            choice.text = "".join(texts)
        return Completion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=self._choices,
            usage=self._generation.usage,
            timings=self._generation.times_told if self._asked.timings else msgspec.UNSET,
        )
