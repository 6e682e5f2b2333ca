"""An engine in a process of its own, reached over ZeroMQ.

    a client's process                                    engine's process
    ------------------                                    ----------------
    PUSH (bind)  == EngineCoreInput, msgpack ==========>  PULL   input thread, of all clients
    PULL (bind)  <== EngineCoreMessage, msgpack ========  PUSH   output thread, one for each client
    standard input of the child: configuration, then its life line

The process that owns the engine is client 0. Others take the further seats (``SeatTransport``) and hear of the engine's
end from the owner: only a parent learns how its child ended.
"""

import atexit
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineGone
from ..executor.child_process import ChildProcess, describe_exit
from .seat_transport import SeatTransport
from .transport import EngineSeat, EngineTransport, OnMessage

_STALE_SECONDS = 60.0
_PREFIX = "octavo-"
_LAST_WORDS_MS = 1000
"""How long to wait for a dead engine's last messages, if its exit code says that it wrote the cause."""
_REMAINS_MS = 50
"""The same if it was killed."""


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine's process is given at its start."""

    config: EngineConfig
    seats: list[EngineSeat]
    """One for each client, by its number."""


class ProcessTransport(EngineTransport):
    """Starts the process, carries client 0's messages, and tells when the engine is gone, and why."""

    def __init__(self, config: EngineConfig, num_clients: int = 1) -> None:
        self._config = config
        self._lock = threading.RLock()
        self._closed = False
        self._process: ChildProcess | None = None
        self._own: SeatTransport | None = None
        self._seats: list[EngineSeat] = []
        remove_stale_folders()
        # From here on there is something to remove, whatever signal interrupts whatever line.
        atexit.register(self.close)
        for index in range(num_clients):
            folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_short_folder())
            self._seats.append(EngineSeat(folder, index))
        self.seats = self._seats[1:]
        self._own = SeatTransport(self._seats[0])

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid if self._process is not None else None

    def start(self, on_message: OnMessage) -> None:
        assert self._own is not None
        spec = EngineSpec(self._config, self._seats)
        self._process = ChildProcess(
            "engine-0",
            "octavo.engine.engine_process:main",
            msgspec.msgpack.encode(spec),
            on_exit=self._on_exit,
            huge_pages=True,
        )
        self._own.start(on_message)

    def send(self, message: EngineCoreInput) -> None:
        if self._own is not None:
            self._own.send(message)

    def _on_exit(self, code: int) -> None:
        # It may be called before ``start`` has the process at hand: the pid is not known then, the end is told anyway.
        if self._own is not None and not self._closed:
            cause = f"the engine process (pid {self.pid}) ended with {describe_exit(code)}"
            self._own.engine_ended(EngineGone(cause), _LAST_WORDS_MS if code > 0 else _REMAINS_MS)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.stop()
        for seat in self._seats:
            shutil.rmtree(seat.folder, ignore_errors=True)
        if self._own is not None:
            self._own.close()


def _short_folder() -> str:
    """Where socket files may live: the path of a Unix socket holds only about 100 bytes."""
    folder = tempfile.gettempdir()
    return folder if len(folder) < 60 else "/tmp"


def remove_stale_folders() -> None:
    """Remove socket folders of processes that were killed in the moment between making one and the engine's hello."""
    for folder in Path(_short_folder()).glob(f"{_PREFIX}[0-9]*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            old = time.time() - folder.stat().st_mtime > _STALE_SECONDS
            stale = old and owner.isdigit() and not Path("/proc", owner).exists()
        except OSError:
            continue
        if stale:
            shutil.rmtree(folder, ignore_errors=True)
