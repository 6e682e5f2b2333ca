"""One HTTP request's generation as one stream of events, which every dialect, streamed or plain, translates.

engine.generate() per prompt --RequestOutput--> Generation.batches() --events--> ChatStream, ChatCollector,
                                                                                 CompletionStream, ...
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET

from ..core.outputs import RequestOutput, RequestTimings, TokenLogprobs
from ..engine.async_llm import AsyncLLM
from ..engine.input_processor import PreparedRequest
from .answer_parts import Part
from .answer_splitter import AnswerSplitter
from .phases import Phases, milliseconds
from .protocol_answers import CompletionTokensDetails, PromptTokensDetails, Timings, Usage


@dataclass(slots=True)
class PromptStarted:
    """A prompt has its first output. Comes once per prompt, before any ``ChoiceDelta`` of it."""

    prompt_index: int
    prompt_logprobs: list[TokenLogprobs | None] | None


@dataclass(slots=True)
class ChoiceDelta:
    """What is new in one completion. The last one of a completion, and only it, has a ``finish_reason``."""

    index: int
    """Counts completions prompt by prompt: ``prompt_index * n + number``."""
    prompt_index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    """The engine's, or ``tool_calls`` for a completion that stopped and holds at least one call."""
    stop_reason: int | str | None
    parts: list[Part] | None = None
    """What ``text`` is made of, as far as it is certain, where a request has tools or its model reasons. None: all of
    ``text`` is content."""
    vector: np.ndarray | None = None
    """Float32 [D]: the answer to a prompt that is pooled."""


Event = PromptStarted | ChoiceDelta


class Generation:
    """Runs the prompts of one HTTP request, all with the same parameters and each checked before the first runs.

    Iterate ``batches`` once; closing it aborts whatever still runs.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        request_id: str,
        prompts: list[PreparedRequest],
        *,
        discard_output: bool = False,
        splitters: list[AnswerSplitter] | None = None,
    ) -> None:
        """``splitters``: what reads the text of each completion, if it may be more than content."""
        self.engine = engine
        self.request_id = request_id
        self.prompts = prompts
        self.n = prompts[0].params.n
        """Completions of each prompt."""
        self.discard_output = discard_output
        """Score the prompt only: the one token that an engine must generate is left out of everything."""
        self.finish_reasons: list[str | None] = [None] * (len(prompts) * self.n)
        self.timings: list[RequestTimings | None] = [None] * len(prompts)
        self.num_prompt_tokens = sum(len(prompt.prompt_token_ids) for prompt in prompts)
        self.num_completion_tokens = 0
        self._splitters = splitters
        self._cached = [0] * len(prompts)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix cache."""
        return sum(self._cached)

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        reasoning = sum(splitter.reasoning_tokens for splitter in self._splitters or ())
        return Usage(
            self.num_prompt_tokens,
            self.num_completion_tokens,
            self.num_prompt_tokens + self.num_completion_tokens,
            PromptTokensDetails(self.num_cached_tokens),
            CompletionTokensDetails(reasoning) if reasoning else UNSET,
        )

    @property
    def phases(self) -> Phases | None:
        """Where the time went so far; None before the first output."""
        return Phases.of(self.timings)

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of the decode phase; None if it has none. The first token of each completion belongs to the prefill."""
        phases = self.phases
        decoded = self.num_completion_tokens - len(self.finish_reasons)
        if phases is None or phases.decode is None or decoded <= 0 or phases.decode[1] <= phases.decode[0]:
            return None
        return decoded / (phases.decode[1] - phases.decode[0])

    @property
    def times_told(self) -> Timings:
        """What the field ``timings`` of a request asks for."""
        phases = self.phases
        if phases is None:
            return Timings()
        speed = self.tokens_per_second
        return Timings(
            queue_ms=milliseconds(phases.queue),
            prefill_ms=milliseconds(phases.prefill),
            decode_ms=milliseconds(phases.decode),
            time_to_first_token_ms=None
            if phases.prefill is None
            else milliseconds((phases.arrival, phases.prefill[1])),
            tokens_per_second=None if speed is None else round(speed, 3),
        )

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """Events, those of one engine output together. Raises ``RequestError``, ``EngineError``."""
        if len(self.prompts) == 1:
            # Closing is what aborts; without it the request would run on until the collector finds the generator.
            async with aclosing(self._outputs(0)) as outputs:
                async for output in outputs:
                    yield self._events(0, output)
        else:
            async with aclosing(self._merged()) as merged:
                async for prompt_index, output in merged:
                    yield self._events(prompt_index, output)

    def _outputs(self, prompt_index: int) -> AsyncGenerator[RequestOutput, None]:
        request_id = self.request_id if len(self.prompts) == 1 else f"{self.request_id}-{prompt_index}"
        return self.engine.generate(self.prompts[prompt_index], request_id=request_id)

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        # A queue of one item passes a slow reader's pace on to every engine stream, which then merges its deltas.
        queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(maxsize=1)

        async def pump(prompt_index: int) -> None:
            try:
                async with aclosing(self._outputs(prompt_index)) as outputs:
                    async for output in outputs:
                        await queue.put((prompt_index, output))
                await queue.put((prompt_index, None))
            except Exception as error:  # whatever it is, it is raised to the reader below
                await queue.put((prompt_index, error))

        pumps = [asyncio.create_task(pump(index)) for index in range(len(self.prompts))]
        running = len(pumps)
        try:
            while running:
                prompt_index, item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield prompt_index, item
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _events(self, prompt_index: int, output: RequestOutput) -> list[Event]:
        events: list[Event] = []
        if self.timings[prompt_index] is None:
            events.append(PromptStarted(prompt_index, output.prompt_logprobs))
        self.timings[prompt_index] = output.timings
        self._cached[prompt_index] = output.num_cached_tokens
        for choice in output.outputs:
            index = prompt_index * self.n + choice.index
            if choice.finish_reason is not None:
                self.finish_reasons[index] = choice.finish_reason
            if self.discard_output:
                finish_reason = None if choice.finish_reason is None else "length"
                events.append(ChoiceDelta(index, prompt_index, "", [], None, finish_reason, None))
                continue
            self.num_completion_tokens += len(choice.token_ids)
            delta = ChoiceDelta(
                index,
                prompt_index,
                choice.text,
                choice.token_ids,
                choice.logprobs,
                choice.finish_reason,
                choice.stop_reason,
                vector=choice.vector,
            )
            if self._splitters is not None:
                _split(delta, self._splitters[index])
            events.append(delta)
        return events


def _split(delta: ChoiceDelta, splitter: AnswerSplitter) -> None:
    """Say what the text is made of."""
    delta.parts = splitter.feed(delta.text, delta.token_ids)
    if delta.finish_reason is not None:
        delta.parts += splitter.finish()
        if delta.finish_reason == "stop" and splitter.num_calls:
            delta.finish_reason = "tool_calls"
