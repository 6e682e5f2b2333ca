"""``LLM``: batches from a plain program."""

import queue
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from ..core.engine_args import EngineArgs
from ..core.engine_input import AbortRequests
from ..core.engine_output import EngineCoreOutputs, EngineGone, EngineReady
from ..core.errors import ConfigurationError, EngineDeadError, EngineError, EngineStartError, RequestError
from ..core.outputs import EmbeddingOutput, RequestOutput
from ..core.pooling_params import PoolingParams
from ..core.sampling_params import RequestOutputKind, SamplingParams
from ..engine.engine_setup import load_tokenizer, set_up_engine
from ..engine.input_processor import InputProcessor, PreparedRequest, PromptInput
from ..engine.output_processor import OutputProcessor, RequestState
from ..engine.scoring import check_pairs, make_scoring
from ..engine.transport import EngineLost, TransportMessage
from .chat_template import ChatTemplate
from .progress import progress_bar

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """An engine for offline batches.

    ``settings`` are the fields of ``EngineArgs``. The engine runs in a process of its own unless ``multiprocess`` is
    False. Use it as a context manager, or call ``close``; the engine ends with the program in any case.

        with LLM("path/to/model", dtype="float32") as llm:
            outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
    """

    def __init__(
        self, model: str | None = None, *, multiprocess: bool = True, chat_template: str | None = None, **settings: Any
    ) -> None:
        try:
            args = EngineArgs(model=model, **settings)
        except TypeError as error:
            raise ConfigurationError(f"LLM: {str(error).replace('EngineArgs.__init__() ', '')}") from error
        self.config, self._transport = set_up_engine(args, multiprocess)
        weakref.finalize(self, self._transport.close)
        self._messages: queue.SimpleQueue[TransportMessage] = queue.SimpleQueue()
        try:
            self._transport.start(self._messages.put)
            self.tokenizer = load_tokenizer(self.config)
            self._inputs = InputProcessor(self.config, self.tokenizer)
            self._outputs = OutputProcessor(self.tokenizer)
            self._template_override = chat_template
            self.engine_info = self._wait_ready()
            self._inputs.max_model_len = self.engine_info.max_model_len
        except BaseException:
            self._transport.close()
            raise
        self._num_requests = 0
        self._dead: EngineError | None = None

    def _wait_ready(self) -> EngineReady:
        while True:
            message = self._messages.get()
            if isinstance(message, EngineReady):
                return message
            if isinstance(message, EngineGone):
                kind = ConfigurationError if message.configuration else EngineStartError
                raise kind(message.message)

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete all prompts; outputs in their order.

        A prompt is a text, a list of token ids or a dict with ``prompt`` or ``prompt_token_ids``; ``sampling_params``
        is one for all or one for each. ``use_tqdm`` shows a progress bar (on a terminal). Raises ``RequestError``
        before anything runs.
        """
        listed = _as_list(prompts)
        params = _params_for(listed, sampling_params)
        prepared = [self._inputs.prepare(p, s) for p, s in zip(listed, params, strict=True)]
        return self._run(prepared, "generating", use_tqdm)

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:
        """The vector of each prompt, in their order. Prompts and ``use_tqdm`` are as in ``generate``; so are errors."""
        params = pooling_params or PoolingParams()
        prepared = [self._inputs.prepare(prompt, params) for prompt in _as_list(prompts)]
        return [EmbeddingOutput.of(output) for output in self._run(prepared, "embedding", use_tqdm)]

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[float]:
        """How well each ``second`` text fits the ``first``, or its own first text where there are as many of them.

        A cross-encoder says it; of other models it is the cosine of the two vectors. Raises ``RequestError`` before
        anything runs.
        """
        firsts, seconds = ([texts] if isinstance(texts, str) else list(texts) for texts in (first, second))
        check_pairs(firsts, seconds, ("first", "second"))
        if self.tokenizer is None:
            raise RequestError("scores need a tokenizer, and none is loaded (skip_tokenizer_init)")
        scoring, params = make_scoring(self.config.model), pooling_params or PoolingParams()
        limit = params.cut_to(self._inputs.max_model_len)
        prompts = scoring.prompts(self.tokenizer, firsts, seconds, params, limit)
        outputs = self._run([self._inputs.prepare(*prompt) for prompt in prompts], "scoring", use_tqdm)
        return scoring.scores([EmbeddingOutput.of(output).embedding for output in outputs], len(firsts))

    def _run(self, prepared: list[PreparedRequest], what: str, use_tqdm: bool) -> list[RequestOutput]:
        while not self._messages.empty():  # that the engine died since, and that there is another one
            self._handle(self._messages.get())
        if self._dead is not None:
            raise self._dead
        states: list[RequestState] = []
        self._abort_unfinished()  # left by a call that an exception ended
        with progress_bar(what, len(prepared), use_tqdm) as advance:
            finished: set[RequestState] = set()
            try:
                states.extend(self._start(request, finished, advance) for request in prepared)
                while len(finished) < len(states):
                    self._handle(self._messages.get())
            finally:
                self._abort_unfinished()
        return [_final(state) for state in states]

    def _start(self, request: Any, finished: set[RequestState], advance: Callable[[], None]) -> RequestState:
        self._num_requests += 1
        request_id = f"request-{self._num_requests}"

        def on_news() -> None:
            if (state.finished or state.error is not None) and state not in finished:
                finished.add(state)
                advance()

        messages = self._outputs.add(request_id, request, on_news)
        state = self._outputs.requests[request_id]
        for message in messages:
            self._transport.send(message)
        return state

    def _handle(self, message: TransportMessage) -> None:
        if isinstance(message, EngineCoreOutputs):
            to_abort = self._outputs.process(message)
            if to_abort:
                self._transport.send(AbortRequests(0, to_abort))
        elif isinstance(message, EngineLost):
            self._outputs.engine_lost(EngineDeadError(message.message))
        elif isinstance(message, EngineReady):  # not the first: that one was waited for
            for unfinished in self._outputs.unfinished():
                self._transport.send(unfinished)
        elif isinstance(message, EngineGone):
            self._dead = EngineDeadError(message.message)
            self._outputs.fail_all(self._dead)

    def _abort_unfinished(self) -> None:
        handles = [handle for request_id in list(self._outputs.requests) for handle in self._outputs.abort(request_id)]
        if handles:
            self._transport.send(AbortRequests(0, handles))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        ``tools`` are told to the model; its text then holds its calls, which ``octavo.api.tools`` has parsers for.
        """
        template, tokenizer = self._chat_template, self.tokenizer
        assert tokenizer is not None
        options: dict[str, Any] = dict(chat_template_kwargs or {})
        options |= {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        prompts = []
        for conversation in _as_conversations(messages):
            text = template.prompt([dict(turn) for turn in conversation], tools, **options)
            # The template has written the special tokens already.
            ids = tokenizer.encode(text, add_special_tokens=False)
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return self.generate(prompts, sampling_params, use_tqdm)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        if self.tokenizer is None:
            raise RequestError("chat needs a tokenizer, and none is loaded (skip_tokenizer_init)", "messages")
        return ChatTemplate.from_tokenizer(self.tokenizer, self._template_override)

    def close(self) -> None:
        """End the engine. May be called twice."""
        if self._dead is None:
            self._dead = EngineDeadError("the LLM was closed; make another one")
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _as_list(prompts: Any) -> list[PromptInput]:
    """One prompt or several, as several."""
    if isinstance(prompts, str | bytes | Mapping):  # bytes would pass for numbers; the door refuses them
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts must be text, token ids or a list of them, not {type(prompts).__name__}", "prompt")
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [listed]
    return listed


def _as_conversations(messages: Any) -> list[Messages]:
    """One conversation or several, as several."""
    return [messages] if messages and isinstance(messages[0], Mapping) else list(messages)


def _params_for(
    prompts: list[PromptInput], given: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if given is None:
        given = SamplingParams()
    params = [given] * len(prompts) if isinstance(given, SamplingParams) else list(given)
    if len(params) != len(prompts):
        raise RequestError(f"{len(prompts)} prompts but {len(params)} sampling_params", "sampling_params")
    for one in params:
        if not isinstance(one, SamplingParams):
            raise RequestError.at("sampling_params", f"must be SamplingParams, not {type(one).__name__}")
    # Nobody reads before the end, so nobody is told before it.
    return [one.replace(output_kind=RequestOutputKind.FINAL_ONLY) for one in params]


def _final(state: RequestState) -> RequestOutput:
    output = state.take()
    assert output is not None, f"{state.request_id} is not finished"
    return output
