"""From the engine's deltas to what callers read: text, stop strings, log probabilities, timings.

A delta costs only what it must: its token is appended and its text made. Output objects are built when the caller
takes them, so whatever piled up while it was busy arrives as one merged output.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ..core.engine_input import EngineCoreRequest
from ..core.engine_output import EngineCoreOutputs, Finished, PromptLogprobsDelta, TokenLogprobsDelta
from ..core.errors import OctavoError, RequestFailedError
from ..core.outputs import CompletionOutput, Logprob, RequestOutput, RequestTimings, TokenLogprobs
from ..core.sampling_params import RequestOutputKind
from ..core.stats import FinishedRequestStats
from .detokenizer import IncrementalDetokenizer
from .input_processor import PreparedRequest
from .stat_logger import StatLogger
from .tokenizer import Tokenizer

logger = logging.getLogger("octavo.engine")


@dataclass(slots=True, eq=False)
class CompletionState:
    """One of a request's completions."""

    request: "RequestState"
    index: int
    handle: int
    detokenizer: IncrementalDetokenizer | None
    token_ids: list[int] = field(default_factory=list)
    text_parts: list[str] = field(default_factory=list)
    """Under DELTA, text since the last take; otherwise all of it."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_taken_ids: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    taken: bool = False
    """The final output was taken."""
    last_time: float = 0.0
    vector: np.ndarray | None = None
    """The answer of a prompt that is pooled."""

    @property
    def has_news(self) -> bool:
        """There is something that the caller has not taken."""
        return len(self.token_ids) > self.num_taken_ids or (self.finish_reason is not None and not self.taken)

    def continued(self) -> EngineCoreRequest:
        """The message with which another engine goes on where the last one stopped."""
        message = self.request.prepared.core_request(self.request.request_id, self.handle, self.index)
        drawn = np.array(self.token_ids, dtype=np.int32).tobytes()
        return msgspec.structs.replace(message, output_token_ids=drawn)

    def take(self, delta: bool) -> CompletionOutput:
        """What is new (``delta``), or everything."""
        text = "".join(self.text_parts)
        if delta:
            ids = self.token_ids[self.num_taken_ids :]
            logprobs = self.logprobs[self.num_taken_ids :]
            self.text_parts = []
        else:
            ids = list(self.token_ids)
            logprobs = list(self.logprobs)
            self.text_parts = [text]
        self.num_taken_ids = len(self.token_ids)
        self.taken = self.finish_reason is not None
        wanted = self.request.prepared.params.logprobs is not None
        return CompletionOutput(
            self.index, text, ids, logprobs if wanted else None, self.finish_reason, self.stop_reason, self.vector
        )


class RequestState:
    """A request that is being served, and where its caller is told of news."""

    def __init__(self, request_id: str, prepared: PreparedRequest, on_news: Callable[[], None]) -> None:
        self.request_id = request_id
        self.prepared = prepared
        self.completions: list[CompletionState] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]  # nothing precedes the first token
        self.num_cached_tokens: int | None = None
        self.timings = RequestTimings(arrival=prepared.message.arrival_time)
        self.num_unfinished = prepared.params.n
        self.num_generated = 0
        """Tokens of all completions."""
        self.error: OctavoError | None = None
        """The engine died, or this request failed in it."""
        self.at_engine = True
        """An engine has it; False from its death until the next one is ready."""
        self.num_lost_engines = 0
        """Engines that died while they had it."""
        self.on_news = on_news

    @property
    def finished(self) -> bool:
        return self.num_unfinished == 0

    def take(self) -> RequestOutput | None:
        """What the caller should see now, by the request's output kind; None if there is nothing. Raises ``error``."""
        if self.error is not None:
            raise self.error
        kind = self.prepared.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return None
        delta = kind is RequestOutputKind.DELTA
        outputs = [c.take(delta) for c in self.completions if not delta or c.has_news]
        if delta and not outputs:
            return None
        wanted = self.prepared.params.prompt_logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prepared.prompt,
            prompt_token_ids=self.prepared.prompt_token_ids,
            outputs=outputs,
            finished=self.finished,
            prompt_logprobs=list(self.prompt_logprobs) if wanted else None,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_generated_tokens=self.num_generated,
            timings=self.timings,
        )


class OutputProcessor:
    """All requests of one client of the engine. Not thread-safe: one thread adds, processes and takes."""

    def __init__(self, tokenizer: Tokenizer | None, stat_loggers: Sequence[StatLogger] = ()) -> None:
        self._tokenizer = tokenizer
        self._loggers = stat_loggers
        """May grow until the first request comes."""
        self._completions: dict[int, CompletionState] = {}
        self.requests: dict[str, RequestState] = {}
        """Unfinished requests by id."""
        self._next_handle = 0
        self._gaps: dict[float, int] = {}
        """Seconds between two tokens of a completion, and how often that came in this message."""

    def add(self, request_id: str, prepared: PreparedRequest, on_news: Callable[[], None]) -> list[EngineCoreRequest]:
        """Register a request. Returns the messages that start its completions."""
        state = RequestState(request_id, prepared, on_news)
        messages = []
        for index in range(prepared.params.n):
            self._next_handle = (self._next_handle + 1) % 2**31
            detokenizer = None
            if self._tokenizer is not None and prepared.params.detokenize:
                detokenizer = self._tokenizer.detokenizer(prepared.params, prepared.prompt_token_ids)
            completion = CompletionState(state, index, self._next_handle, detokenizer)
            state.completions.append(completion)
            self._completions[completion.handle] = completion
            messages.append(prepared.core_request(request_id, completion.handle, index))
        self.requests[request_id] = state
        return messages

    def abort(self, request_id: str) -> list[int]:
        """Finish a request with ``abort``. Returns the handles that the engine must stop."""
        state = self.requests.get(request_id)
        if state is None:
            return []
        running = [completion for completion in state.completions if completion.finish_reason is None]
        for completion in running:
            self._finish(completion, "abort", None, state.timings.last_token or state.timings.arrival)
        _tell(state)
        return [completion.handle for completion in running]

    def fail_all(self, error: OctavoError) -> None:
        """The engine is gone: every caller gets the error."""
        for state in list(self.requests.values()):
            self._fail(state, error)

    def engine_lost(self, error: OctavoError) -> None:
        """Another engine is to take over. What has lost its second one may well be the cause: it fails."""
        for state in list(self.requests.values()):
            state.num_lost_engines += state.at_engine
            state.at_engine = False
            if state.num_lost_engines > 1:
                self._fail(state, error)

    def unfinished(self) -> list[EngineCoreRequest]:
        """The messages with which another engine goes on with everything."""
        for state in self.requests.values():
            state.at_engine = True
        return [completion.continued() for completion in self._completions.values()]

    def _fail(self, state: RequestState, error: OctavoError) -> list[int]:
        """Returns the handles that may still run in the engine."""
        state.error = error
        for completion in state.completions:
            self._completions.pop(completion.handle, None)
        self.requests.pop(state.request_id, None)
        _tell(state)
        return [completion.handle for completion in state.completions if completion.finish_reason is None]

    def _fault(self, state: RequestState, error: Exception) -> list[int]:
        """Our own code failed on this request: the others must not suffer for it."""
        logger.error("request %s failed in the output processor", state.request_id, exc_info=error)
        return self._fail(state, RequestFailedError(f"{type(error).__name__}: {error}"))

    def process(self, outputs: EngineCoreOutputs) -> list[int]:
        """Take in one message of the engine. Returns handles that ended here, by a stop string or by an error of
        this request alone, and that the engine must stop."""
        news: dict[RequestState, None] = {}
        to_abort: list[int] = []
        for started in outputs.started:
            completion = self._completions.get(started.handle)
            if completion is not None:
                _note_start(completion.request, started.time, started.num_cached_tokens)
        for delta in outputs.prompt_logprobs:
            to_abort += self._add_prompt_logprobs(delta)
        for pooled in outputs.pooled:
            completion = self._completions.get(pooled.handle)
            if completion is not None and (params := completion.request.prepared.message.pooling) is not None:
                completion.vector = params.finish(pooled.values)
        ends = {finished.handle: finished for finished in outputs.finished}
        logprobs = {delta.index: delta for delta in outputs.logprobs}
        handles = np.frombuffer(outputs.handles, dtype=np.int32).tolist()
        tokens = np.frombuffer(outputs.token_ids, dtype=np.int32).tolist()
        for index, (handle, token) in enumerate(zip(handles, tokens, strict=True)):
            completion = self._completions.get(handle)
            if completion is None:
                continue  # ended here, by a stop string or an abort, before the engine heard of it
            try:
                self._append(completion, token, logprobs.get(index), ends.get(handle), outputs.time)
            except Exception as error:
                to_abort += self._fault(completion.request, error)
                continue
            if completion.finish_reason is not None and handle not in ends:
                to_abort.append(handle)
            news[completion.request] = None
        for finished in ends.values():
            to_abort += self._end(finished, outputs.time, news)
        for state in news:
            _tell(state)
        for stat_logger in self._loggers:
            for gap, count in self._gaps.items():
                stat_logger.record_tokens(count, gap)
        self._gaps.clear()
        if outputs.stats is not None:
            for stat_logger in self._loggers:
                stat_logger.record_step(outputs.stats)
        return to_abort

    def _append(
        self,
        completion: CompletionState,
        token: int,
        logprobs: TokenLogprobsDelta | None,
        finished: Finished | None,
        now: float,
    ) -> None:
        completion.token_ids.append(token)
        completion.request.num_generated += 1
        if logprobs is not None:
            completion.logprobs.append(self._decode_logprobs(logprobs.token_ids, logprobs.logprobs, logprobs.rank))
        self._note_token(completion, now)
        detokenizer = completion.detokenizer
        if detokenizer is None:
            return
        text = detokenizer.append((token,), ends_with_stop_token=finished is not None and finished.reason == "stop")
        if text:
            completion.text_parts.append(text)
        if detokenizer.stop_string is not None:
            self._finish(completion, "stop", detokenizer.stop_string, now)

    def _note_token(self, completion: CompletionState, now: float) -> None:
        timings = completion.request.timings
        if timings.first_token is None:
            timings.first_token = now
            for stat_logger in self._loggers:
                stat_logger.record_first_token(now - timings.arrival)
        elif completion.last_time:
            # Most completions had their last token from the same step: told together, at the message's end.
            gap = now - completion.last_time
            self._gaps[gap] = self._gaps.get(gap, 0) + 1
        timings.last_token = completion.last_time = now

    def _end(self, finished: Finished, now: float, news: dict[RequestState, None]) -> list[int]:
        """Returns the handles of siblings that the engine must stop, because they fail with this completion."""
        completion = self._completions.get(finished.handle)
        if completion is None:
            return []
        completion.request.timings.num_preemptions += finished.num_preemptions
        if finished.error is not None:
            handles = self._fail(completion.request, RequestFailedError(finished.error))
            return [handle for handle in handles if handle != finished.handle]
        try:
            self._finish(completion, finished.reason, finished.stop_token, now)
        except Exception as error:
            return self._fault(completion.request, error)
        news[completion.request] = None
        return []

    def _finish(self, completion: CompletionState, reason: str, stop_reason: int | str | None, now: float) -> None:
        completion.finish_reason = reason
        completion.stop_reason = stop_reason
        if completion.detokenizer is not None and (rest := completion.detokenizer.finish()):
            completion.text_parts.append(rest)
        self._completions.pop(completion.handle, None)
        state = completion.request
        state.num_unfinished -= 1
        if state.finished:
            state.timings.finished = now
            self.requests.pop(state.request_id, None)
            stats = _finished_stats(state)
            for stat_logger in self._loggers:
                stat_logger.record_finished(stats)

    def _add_prompt_logprobs(self, delta: PromptLogprobsDelta) -> list[int]:
        """Returns handles that the engine must stop, because this failed."""
        completion = self._completions.get(delta.handle)
        if completion is None or completion.index != 0:
            return []
        entries = completion.request.prompt_logprobs
        del entries[delta.start :]
        try:
            for ids, values, rank in zip(delta.token_ids, delta.logprobs, delta.ranks, strict=True):
                entries.append(self._decode_logprobs(ids, values, rank))
        except Exception as error:
            return self._fault(completion.request, error)
        return []

    def _decode_logprobs(self, ids: Iterable[int], values: Iterable[float], rank: int) -> TokenLogprobs:
        """The chosen token first, then the best, best first; a chosen token among the best stays where it is, first."""
        entries: TokenLogprobs = {}
        for place, (token, value) in enumerate(zip(ids, values, strict=True)):
            if token in entries:
                continue
            text = self._tokenizer.token_text(token) if self._tokenizer is not None else None
            raw = self._tokenizer.token_bytes(token) if self._tokenizer is not None else None
            entries[token] = Logprob(value, rank if place == 0 else place, text, raw)
        return entries


def _tell(state: RequestState) -> None:
    """News for a caller. That its event loop is closed, say, is its own trouble."""
    try:
        state.on_news()
    except Exception:
        logger.debug("nobody hears of news of request %s", state.request_id, exc_info=True)


def _note_start(state: RequestState, when: float, num_cached: int) -> None:
    if state.timings.first_scheduled is None:
        state.timings.first_scheduled = when
    if state.num_cached_tokens is None:  # what the first completion found; its siblings find the prompt it computes
        state.num_cached_tokens = num_cached


def _finished_stats(state: RequestState) -> FinishedRequestStats:
    timings = state.timings
    end = timings.finished or timings.arrival
    scheduled = timings.first_scheduled or end
    first = timings.first_token or end
    last = timings.last_token or first
    return FinishedRequestStats(
        finish_reason=state.completions[0].finish_reason or "abort",
        num_prompt_tokens=len(state.prepared.prompt_token_ids),
        num_cached_tokens=state.num_cached_tokens or 0,
        num_generated_tokens=state.num_generated,
        queue_seconds=max(0.0, scheduled - timings.arrival),
        prefill_seconds=max(0.0, first - scheduled),
        decode_seconds=max(0.0, last - first),
        e2e_seconds=max(0.0, end - timings.arrival),
        n=state.prepared.params.n,
    )
