"""The life of ``octavo serve``.

    socket --> engine process starts --> HTTP libraries, app     --> ready --> serving --> SIGTERM: drain --> end, 0
    in use:    bad model:                (engine loads meanwhile)                     \\--> engine dead:  --> error
    error      error                     /health 503 loading        /health 200           /health 503

Nothing heavy is imported at the top: a port in use must be told in well under a second.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.engine_args import EngineArgs
from ..core.errors import EngineDeadError, OctavoError
from ..core.startup import StartupTimeline
from ..engine.stat_logger import StatLogger
from .auth import check_keys
from .errors import ServerStoppingError
from .listener import listener_url, listening
from .server_args import ServerArgs
from .shared_numbers import SharedNumbers
from .tls import server_tls
from .tracing import check_tracing, open_tracing

if TYPE_CHECKING:
    from ..engine.async_llm import AsyncLLM
    from .api_family import ApiFamily, ApiPlace

logger = logging.getLogger(__name__)

StartEngine = Callable[[list[StatLogger]], "AsyncLLM"]
"""Takes the list that the metrics join once they are there, which is before any request can run."""

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
DEATH_LINGER_SECONDS = 1.0
"""After the engine's death: time for open requests to get their errors, and for probes to see why."""
END_SECONDS = 1.0
"""For requests that were ended to send their last event."""


def run_server(engine_args: EngineArgs, server_args: ServerArgs) -> int:
    """Serve until SIGTERM or Ctrl-C; the process's exit code, 0, is returned after a clean end.

    Raises ``ConfigurationError`` (a setting, the model, a port in use), ``EngineStartError`` or ``EngineDeadError``;
    the command line makes each its last line and exits with 1.
    """

    def start_engine(loggers: list[StatLogger]) -> "AsyncLLM":
        from ..engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(engine_args, loggers, num_clients=server_args.api_server_count)

    return serve_engine(start_engine, engine_args.model or DEFAULT_MODEL_NAME, server_args)


def serve_engine(start_engine: StartEngine, model_name: str, server_args: ServerArgs) -> int:
    """``run_server`` for the engine that ``start_engine`` starts; called once the port is known to be free."""
    server_args.check()
    check_keys(server_args.api_key)
    server_tls(server_args)
    check_tracing(server_args)
    if server_args.log_level is not None or server_args.log_format is not None:
        server_args.set_up_logging()
    names = server_args.served_model_name or [model_name]
    with listening(server_args) as listener:
        try:
            # Until the loop takes the signals, they end whatever runs as Ctrl-C does, so that clean-up is not skipped.
            with _signals_interrupt(), asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(_serve(start_engine, names, server_args, listener))
        except KeyboardInterrupt:
            logger.info("stopped while starting")
    return 0


def new_loop() -> asyncio.AbstractEventLoop:
    """What an API process runs on."""
    import uvloop

    return uvloop.new_event_loop()


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _serve(start_engine: StartEngine, names: list[str], args: ServerArgs, listener: socket.socket) -> None:
    loggers: list[StatLogger] = []
    timeline = StartupTimeline("api")
    timeline.mark("listening")
    engine = start_engine(loggers)
    timeline.mark("engine started, tokenizer loaded")
    try:
        from .api_family import ApiFamily, ApiPlace

        place = ApiPlace(args, names, listener, SharedNumbers(args.api_server_count))
        family = ApiFamily(engine, place)
        try:
            stop = StopSignals()
            stop.install()
            await ServerLife(engine, place, family, stop, loggers, timeline).run()
        finally:
            await asyncio.to_thread(family.close)
    finally:
        await engine.shutdown()


class StopSignals:
    """SIGTERM and SIGINT as events: the first asks for a clean end, the second for an end at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install(self) -> None:
        """Take the signals over from here on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.receive)

    def receive(self) -> None:
        """Note one signal."""
        (self.second if self.first.is_set() else self.first).set()


class ServerLife:
    """One engine behind one listening socket, from loading to the end, in one of the server's API processes."""

    def __init__(
        self,
        engine: "AsyncLLM",
        place: "ApiPlace",
        family: "ApiFamily",
        stop: StopSignals,
        loggers: list[StatLogger],
        timeline: StartupTimeline,
    ) -> None:
        # Imported while the engine's process loads the model.
        from .app import build_app
        from .context import ServerContext
        from .http_server import HttpServer
        from .metrics import Metrics

        args, model_names = place.args, place.model_names
        metrics = Metrics(model_names[0], engine.config, place.numbers)
        loggers.append(metrics)
        self._engine = engine
        self._args = args
        self._index = place.index
        self._family = family
        self._stop = stop
        tls = server_tls(args)
        self._url = listener_url(place.listener, args.host, "http" if tls is None else "https")
        self._context = ServerContext(engine, args, model_names, place.numbers)
        self._context.created = place.created
        self._tracing = open_tracing(args.otlp_endpoint, model_names[0])
        self._http = HttpServer(build_app(self._context, metrics, self._tracing), place.listener, tls)
        self._timeline = timeline

    async def run(self) -> None:
        """Returns after a clean end. Raises ``EngineStartError``, ``EngineDeadError``."""
        if self._index == 0:
            await self._http.start()
            self._timeline.mark("HTTP server up")
            logger.info("listening on %s, loading %s", self._url, self._context.model_names[0])
        try:
            if await self._unless_stopped(self._engine.wait_ready()):
                # What the start has made stays. Looking through it again would hold up every stream for long.
                gc.freeze()
                if self._index == 0:
                    self._tell_ready()
                else:
                    # Not before: a server that is ready as a whole must not say that it loads.
                    await self._http.start()
                    logger.info("serving on %s, too", self._url)
                if await self._unless_stopped(self._engine.wait_dead()):
                    await self._tell_death()
            await self._drain()
        finally:
            self._context.encoder.close()
            await self._http.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def _tell_ready(self) -> None:
        self._timeline.mark("ready")
        if self._engine.engine_info is not None:
            self._timeline.merge(self._engine.engine_info.marks)
        self._timeline.finish()
        logger.info("Octavo is ready on %s", self._url)

    async def _unless_stopped(self, event: Coroutine[Any, Any, object]) -> bool:
        """Wait for ``event``: True once it is over, False if a signal came first. Raises what ``event`` raises."""
        happened = asyncio.create_task(event)
        stopped = asyncio.create_task(self._stop.first.wait())
        try:
            await asyncio.wait({happened, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if happened.done():
                await happened
            return happened.done()
        finally:
            happened.cancel()
            stopped.cancel()
            await asyncio.gather(happened, stopped, return_exceptions=True)

    async def _tell_death(self) -> NoReturn:
        """Let every client know, then raise the cause."""
        error = self._engine.dead_error or EngineDeadError("the engine is gone")
        logger.error("%s; ending all open requests", error)
        self._family.tell_gone(str(error))
        await asyncio.sleep(DEATH_LINGER_SECONDS)
        await self._end_requests(error)
        await self._family.wait_ended(END_SECONDS)
        raise error

    async def _drain(self) -> None:
        """Let open requests go on for ``shutdown_timeout`` or until a second signal, then end what is left."""
        requests = self._context.open_requests
        self._context.stopping = True
        self._family.tell_stop()
        self._http.stop_accepting()
        grace = f"may go on for {self._args.shutdown_timeout:g} s (a second signal ends them now)"
        logger.info("stopping%s", f"; {len(requests)} open requests {grace}" if len(requests) else "")
        drained = asyncio.create_task(self._all_done(self._args.shutdown_timeout))
        hurried = asyncio.create_task(self._stop.second.wait())
        await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if hurried.done():
            self._family.tell_stop()
        drained.cancel()
        hurried.cancel()
        await self._end_requests(ServerStoppingError("the server is stopping; this request was not finished"))
        await self._family.wait_ended(2 * END_SECONDS)

    async def _all_done(self, timeout: float) -> None:
        """Until no request is open in any process; at most so long."""
        await asyncio.gather(self._context.open_requests.wait_none(timeout), self._family.wait_ended(timeout))

    async def _end_requests(self, error: OctavoError) -> None:
        requests = self._context.open_requests
        if len(requests):
            requests.end_all(error)
            await requests.wait_none(END_SECONDS)
