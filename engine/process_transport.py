"""An engine in a process of its own, reached over ZeroMQ.

    this process                                          engine's process
    ------------                                          ----------------
    PUSH (bind)  == EngineCoreInput, msgpack ==========>  PULL   input thread
    PULL (bind)  <== EngineCoreMessage, msgpack ========  PUSH   output thread
    standard input of the child: configuration, then its life line

One pair of sockets joins one client and one engine. The socket files live in a private folder only until the engine
has said hello on both: a connection needs no name any more, so from then on there is nothing to leave behind, whoever
is killed.
"""

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import zmq

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreMessage, EngineFailed, EngineHello
from ..executor.child_process import ChildProcess, describe_exit
from .transport import EngineGone, EngineTransport, OnMessage

logger = logging.getLogger("octavo.engine")

_STALE_SECONDS = 60.0
_PREFIX = "octavo-"
_CONNECT_MS = 5000
_LAST_WORDS_MS = 1000
"""How long what a dead engine wrote may take to get here, if it is known to have written its cause."""
_REMAINS_MS = 50
"""The same where nothing is known to come."""


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine's process is given at its start."""

    config: EngineConfig
    input_address: str
    output_address: str
    index: int = 0


class ProcessTransport(EngineTransport):
    """Starts the process, carries messages, and tells when it is gone, and why."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._folder: Path | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineCoreMessage)
        # Reentrant: the garbage collector may run anywhere, and what it ends may be the owner of this transport.
        self._lock = threading.RLock()
        self._closed = False
        self._failure: EngineFailed | None = None
        self._process: ChildProcess | None = None
        self._exit_code: int | None = None
        self._receiver = threading.Thread(target=self._receive, name="octavo-engine-messages", daemon=True)
        # Written to when the engine has ended or this side closes: the receiving thread waits for this, too.
        self._wake_reader, self._wake_writer = os.pipe()
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PUSH)
        self._output = self._context.socket(zmq.PULL)
        remove_stale_folders()
        # From here on there is something to remove, whatever signal interrupts whatever line.
        atexit.register(self.close)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_short_folder()))
        self._addresses = [f"ipc://{self._folder / name}" for name in ("in", "out")]
        for socket, address in ((self._input, self._addresses[0]), (self._output, self._addresses[1])):
            socket.set_hwm(0)  # the number of requests in flight is bounded elsewhere; nothing may be dropped here
            socket.bind(address)

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid if self._process is not None else None

    def start(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        spec = EngineSpec(self._config, self._addresses[0], self._addresses[1])
        self._process = ChildProcess(
            f"engine-{spec.index}",
            "octavo.engine.engine_process:main",
            msgspec.msgpack.encode(spec),
            on_exit=self._on_exit,
        )
        self._receiver.start()

    def send(self, message: EngineCoreInput) -> None:
        data = self._encoder.encode(message)
        with self._lock:
            if not self._closed:
                # Nobody connected: the engine is gone, which ``EngineGone`` is about to tell.
                with contextlib.suppress(zmq.Again):
                    self._input.send(data, zmq.NOBLOCK, copy=False)

    def _receive(self) -> None:
        try:
            self._receive_until_end()
        except Exception as error:  # without this thread nobody would ever hear of anything again
            logger.exception("reading the engine's messages failed")
            if self._process is not None:
                self._process.kill()
            self._on_message(EngineGone(f"a message of the engine could not be read: {error}"))

    def _receive_until_end(self) -> None:
        poller = zmq.Poller()
        poller.register(self._output, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        while not self._closed:
            if self._output in dict(poller.poll()):
                self._take(self._output.recv())
            elif self._exit_code is not None:
                break
        patience = _LAST_WORDS_MS if (self._exit_code or 0) > 0 else _REMAINS_MS
        while not self._closed and self._failure is None and self._output.poll(patience):
            self._take(self._output.recv())
        if not self._closed:
            self._remove_folder()
            self._on_message(self._end())

    def _take(self, data: bytes) -> None:
        message = self._decoder.decode(data)
        if isinstance(message, EngineHello):
            with self._lock:
                if not self._closed:
                    self._input.poll(_CONNECT_MS, zmq.POLLOUT)  # from here on, nobody connected means nobody there
            self._remove_folder()
        elif isinstance(message, EngineFailed):
            self._failure = message
        else:
            self._on_message(message)

    def _end(self) -> EngineGone:
        """Why the engine ended: its own words, or its exit status."""
        if self._failure is not None:
            return EngineGone(self._failure.message, self._failure.configuration)
        assert self._process is not None and self._exit_code is not None
        return EngineGone(f"the engine process (pid {self._process.pid}) ended with {describe_exit(self._exit_code)}")

    def _on_exit(self, code: int) -> None:
        self._exit_code = code
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"\0")

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.stop()
        self._remove_folder()
        self._wake()
        if self._receiver.is_alive() and self._receiver is not threading.current_thread():
            self._receiver.join()
        with self._lock:
            writer, self._wake_writer = self._wake_writer, -1
        os.close(writer)
        os.close(self._wake_reader)
        self._input.close(linger=0)
        self._output.close(linger=0)
        self._context.term()


def _short_folder() -> str:
    """Where socket files may live: the path of a Unix socket holds only about 100 bytes."""
    folder = tempfile.gettempdir()
    return folder if len(folder) < 60 else "/tmp"


def remove_stale_folders() -> None:
    """Remove socket folders of processes that were killed in the moment between making one and the engine's hello."""
    for folder in Path(_short_folder()).glob(f"{_PREFIX}[0-9]*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            stale = owner.isdigit() and not _alive(int(owner)) and time.time() - folder.stat().st_mtime > _STALE_SECONDS
        except OSError:
            continue
        if stale:
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
