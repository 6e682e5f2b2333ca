"""The EngineCore's process: an input thread, an output thread, and the step loop on the main thread.

PULL socket -> input thread: decode, hash blocks -> queue -> step loop -> queue -> output thread: encode -> PUSH

One PULL socket hears all clients; each client has a PUSH socket of its own.
"""

import gc
import logging
import os
import queue
import shutil
import threading
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import zmq

from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreMessage, EngineCoreOutputs, EngineGone, EngineHello, Finished
from ..core.logging import configure_logging
from ..core.startup import StartupTimeline
from ..executor.child_process import on_parent_death
from .hang_watch import watch_for_hangs
from .process_transport import EngineSpec

if TYPE_CHECKING:
    from .engine_loop import EngineLoop

logger = logging.getLogger("octavo.engine")


class EngineCoreProc:
    """Joins an ``EngineLoop`` to its sockets."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.timeline = StartupTimeline("engine-0")
        self._context = zmq.Context()
        self._output_context = zmq.Context()  # of its own, so that its end waits for the last message, and only that
        self._outputs: queue.SimpleQueue[tuple[int, EngineCoreMessage] | None] = queue.SimpleQueue()
        """Messages, each with its client's number."""
        self._sender = threading.Thread(target=self._send_outputs, name="octavo-output", daemon=True)
        self._input = self._context.socket(zmq.PULL)
        for seat in spec.seats:
            self._input.connect(seat.input_address)

    def run(self) -> int:
        """Until the parent is gone or the loop fails. Returns the process's exit status."""
        self._sender.start()
        self._tell_all(EngineHello(os.getpid()))
        try:
            self._serve()
        except Exception as error:
            logger.debug("the engine failed", exc_info=True)
            self._tell_end(EngineGone.of(error))
        return 1

    def _tell_end(self, gone: EngineGone) -> None:
        """Tell the owner, who also hears how this process ends, and tells the others. Returns when that is sent."""
        self._outputs.put((0, gone))
        self._outputs.put(None)
        self._sender.join(timeout=5.0)

    def _give_up(self, cause: str) -> None:
        self._tell_end(EngineGone(cause))
        os._exit(1)

    def _serve(self) -> None:
        # Imported here, after hello: what follows takes seconds, and the sockets need not wait for it.
        from ..executor.executor import make_executor
        from .engine_core import EngineCore
        from .engine_loop import EngineLoop

        executor = make_executor(self.spec.config)
        self.timeline.mark("imports")
        core = EngineCore(self.spec.config, executor, self.timeline, len(self.spec.seats))
        loop = EngineLoop(core, self._emit)
        gc.freeze()  # what the start has made stays: looking through all of it again would hold up a step for long
        self._tell_all(core.ready)
        threading.Thread(target=self._take_inputs, args=(loop,), name="octavo-input", daemon=True).start()
        watch_for_hangs(self.spec.config.hang_timeout, loop.turns, self._give_up)
        loop.run()

    def _emit(self, client: int, message: EngineCoreOutputs) -> None:
        self._outputs.put((client, message))

    def _tell_all(self, message: EngineCoreMessage) -> None:
        for seat in self.spec.seats:
            self._outputs.put((seat.client_index, message))

    def _take_inputs(self, loop: "EngineLoop") -> None:
        decoder = msgspec.msgpack.Decoder(EngineCoreInput)
        while True:
            data = self._input.recv()
            try:
                message = decoder.decode(data)
            except Exception as error:  # checks of our own run while decoding, too
                self._refuse(data, error)
                continue
            loop.receive(message)

    def _refuse(self, data: bytes, error: Exception) -> None:
        """A message that cannot be read. If it is a request, its caller is told instead of left waiting."""
        logger.error("a message that cannot be read was dropped: %s", error)
        try:
            fields = msgspec.msgpack.decode(data)
        except msgspec.DecodeError:
            return
        match fields:
            case ["add", str(), int(handle), int(client), *_]:
                text = f"the engine could not read the request: {error}"
                self._emit(client, EngineCoreOutputs(0.0, finished=[Finished(handle, "error", error=text)]))

    def _send_outputs(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        sockets = [self._output_context.socket(zmq.PUSH) for _ in self.spec.seats]
        for socket, seat in zip(sockets, self.spec.seats, strict=True):
            socket.set_hwm(0)
            socket.connect(seat.output_address)
        while (item := self._outputs.get()) is not None:
            client, message = item
            sockets[client].send(encoder.encode(message), copy=False)
        for socket in sockets:
            socket.close(linger=2000)
        self._output_context.term()  # returns when all is sent, or after those two seconds


def main(payload: bytes, fds: list[int]) -> None:
    """Entry of the engine's process."""
    spec = msgspec.msgpack.decode(payload, type=EngineSpec)
    for seat in spec.seats:
        on_parent_death.append(partial(shutil.rmtree, seat.folder, ignore_errors=True))
    configure_logging("engine-0")
    status = EngineCoreProc(spec).run()
    logging.shutdown()
    os._exit(status)  # threads and device work are not waited for: the cause was reported
