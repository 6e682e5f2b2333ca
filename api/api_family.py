"""Further API processes of one server (``--api-server-count``), as their parent, the first API process, sees them.

Each is a client of the same engine, accepts connections at the same address and counts in the same shared numbers.
None is replaced: a server whose API process dies ends, and whatever started it starts it again.
"""

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ..core.config import EngineConfig
from ..engine.async_llm import AsyncLLM
from ..engine.transport import EngineLost, EngineSeat
from ..executor.child_process import ChildProcess, describe_exit
from .listener import another_listener
from .server_args import ServerArgs
from .shared_numbers import SharedNumbers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ApiPlace:
    """What one API process of a server is given, and needs beside the engine."""

    args: ServerArgs
    model_names: list[str]
    listener: socket.socket
    numbers: SharedNumbers
    index: int = 0
    """0 for the process that owns the engine."""
    created: int = field(default_factory=lambda: int(time.time()))
    """When the server began, in seconds since 1970; in every process the same."""


class ApiSpec(msgspec.Struct, frozen=True):
    """What a further process is told at its start. The socket and the numbers it inherits as open files."""

    config: EngineConfig
    seat: EngineSeat
    args: ServerArgs
    model_names: list[str]
    created: int


class Told(msgspec.Struct, frozen=True):
    """What it is told later: by default to stop, as a signal would tell it; with a cause, that the engine is gone."""

    engine_gone: str | None = None
    """The cause."""
    seat: EngineSeat | None = None
    """Its place at the next engine, if there is one."""


class ApiFamily:
    """Starts one process for every seat that the engine has left; tells them, and waits for them."""

    def __init__(self, engine: AsyncLLM, place: ApiPlace) -> None:
        self._engine = engine
        self._ending = False
        self._processes: list[ChildProcess] = []
        engine.on_lost = self._tell_lost
        for seat in engine.seats:
            assert place.numbers.fd is not None, "there is a row for each process"
            spec = ApiSpec(engine.config, seat, place.args, place.model_names, place.created)
            with another_listener(place.listener) as listener:
                process = ChildProcess(
                    f"api-{seat.client_index}",
                    "octavo.api.api_process:main",
                    msgspec.msgpack.encode(spec),
                    [listener.fileno(), place.numbers.fd],
                    partial(self._on_exit, seat.client_index),
                )
            self._processes.append(process)
            logger.info("API process %d has pid %d", seat.client_index, process.pid)

    def _on_exit(self, index: int, code: int) -> None:
        if not self._ending:
            self._engine.fail(f"API process {index} ended with {describe_exit(code)}")

    def tell_stop(self) -> None:
        """Let them drain as this process does; the second time, end at once."""
        self._tell(Told())

    def tell_gone(self, cause: str) -> None:
        """The engine is of no use any more: let them give their clients the error, and end."""
        self._tell(Told(cause))

    def _tell_lost(self, lost: EngineLost) -> None:
        for process, seat in zip(self._processes, lost.seats, strict=True):
            process.tell(msgspec.msgpack.encode(Told(lost.message, seat)))

    def _tell(self, told: Told) -> None:
        self._ending = True
        for process in self._processes:
            process.tell(msgspec.msgpack.encode(told))

    async def wait_ended(self, seconds: float) -> None:
        """Until all have ended by themselves; at most so long."""
        deadline = asyncio.get_running_loop().time() + seconds
        for process in self._processes:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.to_thread(process.wait, left)

    def close(self) -> None:
        """End what is left of them."""
        self._ending = True
        for process in self._processes:
            process.release()
        for process in self._processes:
            process.stop()
