"""One client's place at an engine in another process: two sockets, and the thread that listens to them.

Any process may take a seat; the one that owns the engine (``ProcessTransport``) makes the seats and takes the first.
The socket files live in the seat's private folder only until the engine has said hello on both: a connection needs no
name any more, so from then on there is nothing to leave behind, whoever is killed.
"""

import contextlib
import logging
import os
import shutil
import threading

import msgspec
import zmq

from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreMessage, EngineGone, EngineHello
from .transport import EngineLost, EngineSeat, EngineTransport, OnMessage

logger = logging.getLogger("octavo.engine")

_CONNECT_MS = 5000


class SeatTransport(EngineTransport):
    """Carries one client's messages. Starts no engine, and ends none."""

    def __init__(self, seat: EngineSeat) -> None:
        self.client_index = seat.client_index
        self._seat = seat
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(EngineCoreMessage)
        # Reentrant: the garbage collector may run anywhere, and what it ends may be the owner of this transport.
        self._lock = threading.RLock()
        self._closed = False
        self._failure: EngineGone | None = None
        self._gone: EngineGone | None = None
        self._patience_ms = 0
        self._receiver = threading.Thread(target=self._receive, name="octavo-engine-messages", daemon=True)
        # A byte written here wakes the receiving thread: the engine has ended, or this side closes.
        self._wake_reader, self._wake_writer = os.pipe()
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PUSH)
        self._output = self._context.socket(zmq.PULL)
        try:
            for socket, address in ((self._input, seat.input_address), (self._output, seat.output_address)):
                socket.set_hwm(0)  # the number of requests in flight is bounded elsewhere; nothing may be dropped here
                socket.bind(address)
        except zmq.ZMQError:
            self.close()  # a context that the garbage collector finds with open sockets waits for them, for ever
            raise

    def start(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._receiver.start()

    def send(self, message: EngineCoreInput) -> None:
        data = self._encoder.encode(message)
        with self._lock:
            if not self._closed:
                # Nobody connected: the engine is gone, which ``EngineGone`` is about to tell.
                with contextlib.suppress(zmq.Again):
                    self._input.send(data, zmq.NOBLOCK, copy=False)

    def engine_ended(self, gone: EngineGone, patience_ms: int) -> None:
        """Pass ``gone`` on, behind what the engine has sent before, which may take ``patience_ms`` to get here; the
        cause that the engine itself gave comes in its place. Any thread may call this."""
        self._patience_ms = patience_ms
        self._gone = gone
        self._wake()

    def _receive(self) -> None:
        try:
            self._receive_until_end()
        except Exception as error:  # without this thread nobody would ever hear of anything again
            logger.exception("reading the engine's messages failed")
            self._on_message(EngineGone(f"a message of the engine could not be read: {error}"))

    def _receive_until_end(self) -> None:
        poller = zmq.Poller()
        poller.register(self._output, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        while not self._closed:
            if self._output in dict(poller.poll()):
                self._take(self._output.recv())
            elif self._gone is not None:
                break
        while not self._closed and self._failure is None and self._output.poll(self._patience_ms):
            self._take(self._output.recv())
        if not self._closed and self._gone is not None:
            self._remove_folder()
            self._on_message(self._failure or self._gone)

    def _take(self, data: bytes) -> None:
        message = self._decoder.decode(data)
        if isinstance(message, EngineHello):
            with self._lock:
                if not self._closed:
                    self._input.poll(_CONNECT_MS, zmq.POLLOUT)  # from here on, nobody connected means nobody there
            self._remove_folder()
        elif isinstance(message, EngineGone):
            self._failure = message
        else:
            self._on_message(message)

    def _wake(self) -> None:
        with self._lock:
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"\0")

    def _remove_folder(self) -> None:
        shutil.rmtree(self._seat.folder, ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
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


class MovingSeatTransport(EngineTransport):
    """A place at one engine after the other: whoever owns them tells of the next one."""

    def __init__(self, seat: EngineSeat) -> None:
        self.client_index = seat.client_index
        self._place = SeatTransport(seat)
        self._lock = threading.Lock()
        self._closed = False

    def start(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._place.start(on_message)

    def send(self, message: EngineCoreInput) -> None:
        self._place.send(message)

    def move(self, seat: EngineSeat, cause: str) -> None:
        """The engine ended with this cause; the next one will be met at ``seat``."""
        with self._lock:
            if self._closed:
                return
            self._place.close()
            self._on_message(EngineLost(cause))
            try:
                self._place = SeatTransport(seat)
                self._place.start(self._on_message)
            except Exception as error:
                self._on_message(EngineGone.of(error))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._place.close()
