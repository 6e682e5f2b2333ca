"""``AsyncLLM``: the engine inside an async program. The HTTP server is one such program."""

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec

from ..core.config import EngineConfig
from ..core.engine_args import EngineArgs
from ..core.engine_input import AbortRequests, UtilityCall
from ..core.engine_output import EngineCoreOutputs, EngineGone, EngineReady
from ..core.errors import ConfigurationError, EngineDeadError, EngineError, EngineStartError, RequestError
from ..core.outputs import EmbeddingOutput, RequestOutput
from ..core.pooling_params import PoolingParams
from ..core.sampling_params import SamplingParams
from .engine_setup import load_tokenizer, set_up_engine
from .input_processor import InputProcessor, PreparedRequest, PromptInput, is_unicode
from .output_processor import OutputProcessor, RequestState
from .stat_logger import StatLogger
from .transport import EngineLost, EngineSeat, EngineTransport, TransportMessage

logger = logging.getLogger("octavo.engine")


class AsyncLLM:
    """Generates for many callers at once on one event loop.

    ``generate`` yields outputs while they come. Leaving its loop (cancellation, ``aclose``) aborts the request: within
    a step the engine has freed all that it held.
    """

    def __init__(
        self, config: EngineConfig, transport: EngineTransport, stat_loggers: Sequence[StatLogger] = ()
    ) -> None:
        """Starts the engine; see ``from_engine_args``. ``stat_loggers`` may grow until the first request comes."""
        self.config = config
        """In force. Once the engine is ready, with what it found out about its memory."""
        self.engine_info: EngineReady | None = None
        """What the engine said of itself when it was ready."""
        self.dead_error: EngineError | None = None
        """Why the engine is gone; None while it is not."""
        self._restarting = False
        self.on_lost: Callable[[EngineLost], None] | None = None
        """Who else is to know, on the event loop, that the engine died and another one is being started."""
        self._transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: deque[TransportMessage] = deque()
        """From the transport's thread to the event loop."""
        self._changed = asyncio.Event()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        try:
            transport.start(self._on_message)
            # The tokenizer loads here while the engine loads over there.
            self.tokenizer = load_tokenizer(config)
        except BaseException:
            transport.close()
            raise
        self._inputs = InputProcessor(config, self.tokenizer, transport.client_index)
        self._outputs = OutputProcessor(self.tokenizer, stat_loggers)

    @classmethod
    def from_engine_args(
        cls,
        args: EngineArgs,
        stat_loggers: Sequence[StatLogger] = (),
        *,
        multiprocess: bool = True,
        num_clients: int = 1,
    ) -> "AsyncLLM":
        """Start an engine, in a process of its own or in a thread of this one.

        Returns while it still loads; ``wait_ready`` tells when it can serve. Raises ``ConfigurationError`` for wrong
        settings or files. ``num_clients``: this one, and as many ``seats`` for others as that leaves.
        """
        config, transport = set_up_engine(args, multiprocess, num_clients)
        return cls(config, transport, stat_loggers)

    # What the engine is doing.

    @property
    def status(self) -> str:
        """``loading``, ``ready``, ``restarting`` (an engine died, another one loads) or ``dead``."""
        if self.dead_error is not None:
            return "dead"
        if self._restarting:
            return "restarting"
        return "loading" if self.engine_info is None else "ready"

    @property
    def seats(self) -> Sequence[EngineSeat]:
        """Where other processes join this engine."""
        return self._transport.seats

    @property
    def num_requests(self) -> int:
        """Unfinished requests."""
        return len(self._outputs.requests)

    async def wait_ready(self) -> None:
        """Returns once requests can be served. Raises what ended the engine: ``ConfigurationError`` or
        ``EngineStartError`` while it loaded, ``EngineDeadError`` later."""
        self._bind()
        while self.status in ("loading", "restarting"):
            await self._changed.wait()
        if self.dead_error is not None:
            raise self.dead_error

    async def wait_dead(self) -> EngineError:
        """Returns, with the cause, when the engine is gone."""
        self._bind()
        while self.dead_error is None:
            self._changed.clear()
            await self._changed.wait()
        return self.dead_error

    def fail(self, cause: str) -> None:
        """Give the engine up, for a cause that it does not know of. Any thread may call this."""
        self._on_message(EngineGone(cause))

    # Requests.

    async def prepare(
        self, prompt: PromptInput, sampling_params: SamplingParams | PoolingParams, *, cache_salt: str | None = None
    ) -> PreparedRequest:
        """All checks of a request without running it; ``generate`` takes what this returns. Raises ``RequestError``.

        With ``PoolingParams`` the one output's completion has no text, but a ``vector``.
        """
        await self.wait_ready()
        if self._inputs.takes_long(prompt, sampling_params):
            return await asyncio.to_thread(self._inputs.prepare, prompt, sampling_params, cache_salt)
        return self._inputs.prepare(prompt, sampling_params, cache_salt)

    async def generate(
        self,
        prompt: PromptInput | PreparedRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs as ``sampling_params.output_kind`` says, until all ``n`` completions are done.

        What comes while the caller is busy is merged into one output. Raises ``RequestError`` before anything runs,
        ``EngineError`` if the engine fails.
        """
        if not isinstance(prompt, PreparedRequest):
            prompt = await self.prepare(prompt, sampling_params or SamplingParams(), cache_salt=cache_salt)
        await self.wait_ready()  # preparing may have taken long, and the engine may have ended meanwhile
        news = _News()
        state = self._start(request_id or f"request-{next(self._numbers)}", prompt, news)
        try:
            while True:
                await news.wait()
                output = state.take()
                if output is not None:
                    yield output
                    if output.finished:
                        return
        finally:
            if not state.finished and state.error is None:
                self._abort(state.request_id)

    async def encode(
        self,
        prompt: PromptInput,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        cache_salt: str | None = None,
    ) -> EmbeddingOutput:
        """The vector of a prompt. Cancelling this aborts it. Raises ``RequestError`` before anything runs,
        ``EngineError`` if the engine fails."""
        prepared = await self.prepare(prompt, pooling_params or PoolingParams(), cache_salt=cache_salt)
        async with contextlib.aclosing(self.generate(prepared, request_id=request_id)) as outputs:
            return EmbeddingOutput.of(await anext(outputs))

    def _start(self, request_id: str, prepared: PreparedRequest, news: "_News") -> RequestState:
        if not isinstance(request_id, str) or not is_unicode(request_id):
            raise RequestError.at("request_id", f"must be text, not {request_id!r}")
        if request_id in self._outputs.requests:
            raise RequestError.at("request_id", f"{request_id!r} is in use by a request that is not finished")
        for message in self._outputs.add(request_id, prepared, news.tell):
            self._transport.send(message)
        return self._outputs.requests[request_id]

    async def abort(self, request_id: str) -> None:
        """Stop a request; its caller gets a last output with the finish reason ``abort``. Unknown ids are ignored."""
        self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        handles = self._outputs.abort(request_id)
        if handles:
            self._transport.send(AbortRequests(self._transport.client_index, handles))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a utility of the engine core (``reset_prefix_cache``, ``request_timeline``, ``check_integrity``)."""
        await self.wait_ready()
        call_id = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._transport.send(UtilityCall(self._transport.client_index, call_id, method, list(arguments)))
        return await future

    # Messages come on the transport's thread and are handled on the event loop.

    def _bind(self) -> None:
        """The event loop of the first use is this engine's; once it is closed (``asyncio.run``), the next one is."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise EngineError("this AsyncLLM is in use on another event loop; make one for each loop")
        self._loop = loop
        self._changed = asyncio.Event()
        self._calls.clear()
        self._take_messages()

    def _on_message(self, message: TransportMessage) -> None:
        self._messages.append(message)
        loop = self._loop  # set before messages are taken for the first time, so none is overlooked
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed; the next one, if there is any, takes them
            loop.call_soon_threadsafe(self._take_messages)

    def _take_messages(self) -> None:
        while self._messages:
            self._handle(self._messages.popleft())

    def _handle(self, message: TransportMessage) -> None:
        if isinstance(message, EngineCoreOutputs):
            to_abort = self._outputs.process(message)
            if to_abort:
                self._transport.send(AbortRequests(self._transport.client_index, to_abort))
            for result in message.results:
                self._settle(result.call_id, result.result, result.error)
        elif isinstance(message, EngineReady):
            self._take_info(message)
        elif isinstance(message, EngineLost):
            self._lose(message)
        elif isinstance(message, EngineGone):
            self._die(message)

    def _take_info(self, info: EngineReady) -> None:
        self.engine_info = info
        self._inputs.max_model_len = info.max_model_len
        scheduler = msgspec.structs.replace(self.config.scheduler, max_model_len=info.max_model_len)
        cache = msgspec.structs.replace(self.config.cache, num_blocks=info.num_blocks + 1)
        self.config = msgspec.structs.replace(self.config, scheduler=scheduler, cache=cache)
        if self._restarting:
            self._restarting = False
            unfinished = self._outputs.unfinished()
            logger.info("another engine is ready; it goes on with %d completions", len(unfinished))
            for message in unfinished:
                self._transport.send(message)
        self._changed.set()

    def _lose(self, lost: EngineLost) -> None:
        if self.dead_error is not None:
            return
        self._restarting = True
        self._changed.clear()
        error = EngineDeadError(lost.message)
        self._outputs.engine_lost(error)
        self._fail_calls(error)
        if self.on_lost is not None:
            self.on_lost(lost)

    def _settle(self, call_id: int, result: Any, error: str | None) -> None:
        future = self._calls.pop(call_id, None)
        if future is None or future.done():
            return
        if error is not None:
            future.set_exception(EngineError(error))
        else:
            future.set_result(result)

    def _die(self, gone: EngineGone) -> None:
        if self.dead_error is not None:
            return
        if self.engine_info is None:
            self.dead_error = EngineStartError(gone.message)
            if gone.configuration:
                self.dead_error.__cause__ = ConfigurationError(gone.message)
        else:
            self.dead_error = EngineDeadError(gone.message)
        self._outputs.fail_all(self.dead_error)
        self._fail_calls(self.dead_error)
        self._changed.set()

    def _fail_calls(self, error: EngineError) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """End the engine. Requests may finish for so long; what is left then gets an ``EngineDeadError``."""
        self._bind()
        deadline = asyncio.get_running_loop().time() + drain_seconds
        while self.num_requests and self.dead_error is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        self._die(EngineGone("the engine was shut down"))
        await asyncio.to_thread(self._transport.close)


class _News:
    """An event for one waiter, which makes it cheaper than ``asyncio.Event``."""

    __slots__ = ("_told", "_waiter")

    def __init__(self) -> None:
        self._told = False
        self._waiter: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """Wake the reader, or save it the waiting. On the event loop only."""
        self._told = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Returns once there are news that no earlier call has told of."""
        if not self._told:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._told = False
