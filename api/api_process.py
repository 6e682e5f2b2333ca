"""A further API process of a server: a client of the parent's engine behind the parent's socket."""

import asyncio
import logging
import os
import socket
import threading

import msgspec

from ..core.errors import OctavoError
from ..core.logging import configure_logging
from ..core.startup import StartupTimeline
from ..engine.async_llm import AsyncLLM
from ..engine.seat_transport import MovingSeatTransport
from ..engine.stat_logger import StatLogger
from ..executor.child_process import parent_messages
from .api_family import ApiFamily, ApiPlace, ApiSpec, Told
from .server import ServerLife, StopSignals, new_loop
from .shared_numbers import SharedNumbers

logger = logging.getLogger(__name__)


def main(payload: bytes, fds: list[int]) -> None:
    """Entry of the process."""
    spec = msgspec.msgpack.decode(payload, type=ApiSpec)
    index = spec.seat.client_index
    configure_logging(f"api-{index}")
    listener_fd, numbers_fd = fds
    numbers = SharedNumbers(spec.args.api_server_count, index, numbers_fd)
    listener = socket.socket(fileno=listener_fd)
    place = ApiPlace(spec.args, spec.model_names, listener, numbers, index, spec.created)
    status = 0
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(spec, place))
    except OctavoError as error:
        logger.error("this API process ends: %s", error)
        status = 1
    logging.shutdown()
    os._exit(status)


async def _serve(spec: ApiSpec, place: ApiPlace) -> None:
    loggers: list[StatLogger] = []
    transport = MovingSeatTransport(spec.seat)
    engine = AsyncLLM(spec.config, transport, loggers)
    stop = StopSignals()
    loop = asyncio.get_running_loop()

    def hear_parent() -> None:
        while True:
            told = msgspec.msgpack.decode(parent_messages.get(), type=Told)
            if told.engine_gone is None:
                loop.call_soon_threadsafe(stop.receive)
            elif told.seat is None:
                engine.fail(told.engine_gone)
            else:
                transport.move(told.seat, told.engine_gone)

    threading.Thread(target=hear_parent, name="octavo-hear-parent", daemon=True).start()
    try:
        timeline = StartupTimeline(f"api-{place.index}")
        await ServerLife(engine, place, ApiFamily(engine, place), stop, loggers, timeline).run()
    finally:
        await engine.shutdown()
