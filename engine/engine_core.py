"""The heart: schedule, execute, update, over and over."""

import logging
from collections.abc import Callable

import msgspec

from ..core.config import EngineConfig
from ..core.engine_input import AbortRequests, EngineCoreRequest
from ..core.engine_output import EngineCoreOutputs, EngineReady, Finished
from ..core.errors import ConfigurationError
from ..core.request import Request, RequestStatus
from ..core.scheduler import Scheduler
from ..core.startup import StartupTimeline
from ..executor.executor import Executor, StepFuture
from .grammar_gate import GrammarGate, GrammarReady

logger = logging.getLogger("octavo.engine")


class EngineCore:
    """Owns the scheduler and the executor. Not thread-safe: one thread steps it.

    How two steps overlap (the plain twin does one column after the other):

        host     schedule 1 | schedule 2  .  update 1 | schedule 3  .  update 2 | ...
        device              [====== step 1 ======][====== step 2 ======][====== step 3 ...
                                         drawn tokens stay on the device and feed the next step
    """

    def __init__(
        self, config: EngineConfig, executor: Executor, timeline: StartupTimeline, num_clients: int = 1
    ) -> None:
        self.executor = executor
        self.timeline = timeline
        timeline.merge(executor.call("load")[0])
        executor.await_kernels()
        timeline.mark("kernels")
        num_blocks = config.cache.num_blocks or min(executor.call("num_blocks"))
        self.config = _fit(config, num_blocks)
        executor.call("allocate", num_blocks)
        timeline.mark("kv cache")
        self.scheduler = Scheduler(self.config, num_clients)
        self._pending: StepFuture | None = None
        self.on_grammar: Callable[[GrammarReady], None] = self._drop_grammar
        """Called on another thread when a grammar is ready; whoever steps then calls ``grammar_ready``."""
        self._gate = GrammarGate(self.config, executor, lambda ready: self.on_grammar(ready))
        self.step = self._step_overlapped if config.scheduler.overlap else self._step_plain

    @property
    def ready(self) -> EngineReady:
        """What clients are told once the engine can take requests."""
        return EngineReady(
            num_blocks=self.scheduler.kv.pool.num_usable,
            max_model_len=self.config.scheduler.max_model_len,
            marks=self.timeline.marks,
        )

    @property
    def has_work(self) -> bool:
        """True while a step can do anything."""
        return self.scheduler.has_requests

    def prepare(self, message: EngineCoreRequest) -> Request:
        """Everything about a new request that needs no scheduler state (block hashes); any thread may do it."""
        return Request(message, self.config.cache.block_size)

    def add_request(self, request: Request) -> None:
        """Queue a prepared request, unless it is known. One with a grammar waits beside the queue until the workers
        have compiled it."""
        if self.scheduler.add_request(request) and not request.grammar_ready:
            self._gate.start(request)

    def grammar_ready(self, ready: GrammarReady) -> Finished | None:
        """Let the request join the queue. If it cannot run, it ends here, and its end is returned."""
        request = ready.request
        if ready.started:
            self.scheduler.hold_grammar(request)
        if not ready.error:
            self.scheduler.grammar_ready(request)
        elif not request.status.finished:
            self.scheduler.finish(request, RequestStatus.FINISHED_ERROR)
            return Finished(request.handle, "error", error=ready.error)
        return None

    def _drop_grammar(self, ready: GrammarReady) -> None:
        logger.error("the grammar of %s is ready, and nobody steps", ready.request.request_id)

    def abort(self, message: AbortRequests) -> None:
        """Stop requests, wherever they are."""
        for handle in message.handles:
            self.scheduler.abort(message.client_index, handle)

    def _step_plain(self) -> list[EngineCoreOutputs]:
        """One step from schedule to update. One message for each client; empty if nothing ran."""
        output = self.scheduler.schedule()
        if output is None:
            return []
        return self.scheduler.update(self.executor.execute(output).result())

    def _step_overlapped(self) -> list[EngineCoreOutputs]:
        """Schedule and start the next step, then take in the one before."""
        output = self.scheduler.schedule()
        started = self.executor.execute(output) if output is not None else None
        pending, self._pending = self._pending, started
        if pending is None:
            return []
        return self.scheduler.update(pending.result())

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.scheduler.kv.reset_prefix_cache()

    def request_timeline(self, request_id: str) -> list[tuple[float, str, str]]:
        """(time, kind, reason) of everything that happened to an unfinished request; empty if it is unknown."""
        for request in self.scheduler.requests:
            if request.request_id == request_id:
                return [(event.time, event.kind, event.reason) for event in request.events]
        return []

    def check_integrity(self) -> None:
        """Assert all invariants of the scheduler and the KV cache."""
        self.scheduler.check_integrity()

    def shutdown(self) -> None:
        """End the workers."""
        self._gate.close()
        self.executor.shutdown()


def _fit(config: EngineConfig, num_blocks: int) -> EngineConfig:
    """The configuration with its number of blocks, and the context cut to what the pool can hold.

    A context that the user asked for and that does not fit is an error; the model's own limit is lowered instead.
    """
    cache = msgspec.structs.replace(config.cache, num_blocks=num_blocks)
    capacity = (num_blocks - 1) * cache.block_size
    scheduler = config.scheduler
    if capacity < scheduler.max_model_len:
        if config.max_model_len_given:
            raise ConfigurationError(
                f"the KV cache holds {capacity} tokens, less than --max-model-len {scheduler.max_model_len}; lower it "
                f"to at most {capacity} or raise --kv-cache-memory-bytes"
            )
        logger.warning(
            "context cut from %d to %d tokens: the KV cache holds no more", scheduler.max_model_len, capacity
        )
        scheduler = msgspec.structs.replace(scheduler, max_model_len=capacity)
    return msgspec.structs.replace(config, cache=cache, scheduler=scheduler)
