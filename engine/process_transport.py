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
        self._context = zmq.Context()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineCoreMessage)
        self._send_lock = threading.Lock()
        self._closed = False
        self._failure: EngineFailed | None = None
        self._process: ChildProcess | None = None
        self._receiver: threading.Thread | None = None
        remove_stale_folders()
        self._folder: Path | None = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_short_folder()))
        self._addresses = [f"ipc://{self._folder / name}" for name in ("in", "out")]
        self._input = self._context.socket(zmq.PUSH)
        self._output = self._context.socket(zmq.PULL)
        self._input.setsockopt(zmq.LINGER, 0)
        for socket, address in ((self._input, self._addresses[0]), (self._output, self._addresses[1])):
            socket.set_hwm(0)  # the number of requests in flight is bounded elsewhere; nothing may be dropped here
            socket.bind(address)

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid if self._process is not None else None

    def start(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        spec = EngineSpec(self._config, *self._addresses)
        self._receiver = threading.Thread(target=self._receive, name="octavo-engine-messages", daemon=True)
        self._process = ChildProcess(
            f"engine-{spec.index}",
            "octavo.engine.engine_process:main",
            msgspec.msgpack.encode(spec),
            on_exit=self._on_exit,
        )
        self._receiver.start()

    def send(self, message: EngineCoreInput) -> None:
        data = self._encoder.encode(message)
        with self._send_lock:
            if not self._closed:
                self._input.send(data, copy=False)

    def _receive(self) -> None:
        try:
            while True:
                message = self._decoder.decode(self._output.recv())
                if isinstance(message, EngineHello):
                    self._remove_folder()
                elif isinstance(message, EngineFailed):
                    self._failure = message
                else:
                    self._on_message(message)
        except zmq.ZMQError:
            pass  # closed

    def _on_exit(self, code: int) -> None:
        if self._closed:
            return
        time.sleep(0.05)  # the engine's last message may still be on its way from the receiving thread
        self._remove_folder()
        assert self._process is not None
        message = f"the engine process (pid {self._process.pid}) ended with {describe_exit(code)}"
        if self._failure is not None:
            self._on_message(EngineGone(self._failure.message, self._failure.configuration))
        else:
            self._on_message(EngineGone(message))

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        with self._send_lock:
            if self._closed:
                return
            self._closed = True
        if self._process is not None:
            self._process.stop()
        self._remove_folder()
        # Ends recv() on the other thread, which is the only one that may close its socket.
        self._input.close()
        closer = threading.Thread(target=self._context.term, daemon=True)
        closer.start()
        if self._receiver is not None:
            self._receiver.join(timeout=2.0)
        self._output.close(linger=0)
        closer.join(timeout=2.0)


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
