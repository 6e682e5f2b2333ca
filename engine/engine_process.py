"""The EngineCore's process: an input thread, an output thread, and the step loop on the main thread.

PULL socket -> input thread: decode, hash blocks -> queue -> step loop -> queue -> output thread: encode -> PUSH
"""

import logging
import os
import queue
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreMessage, EngineCoreOutputs, EngineFailed, EngineHello, Finished
from ..core.errors import ConfigurationError, OctavoError
from ..core.logging import configure_logging
from ..core.startup import StartupTimeline
from ..executor.child_process import on_parent_death
from .process_transport import EngineSpec

if TYPE_CHECKING:
    from .engine_loop import EngineLoop

logger = logging.getLogger("octavo.engine")


class EngineCoreProc:
    """Joins an ``EngineLoop`` to its sockets."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.timeline = StartupTimeline(f"engine-{spec.index}")
        self._context = zmq.Context()
        self._output_context = zmq.Context()  # of its own, so that its end waits for the last message, and only that
        self._outputs: queue.SimpleQueue[EngineCoreMessage | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_outputs, name="octavo-output", daemon=True)
        self._input = self._context.socket(zmq.PULL)
        self._input.connect(spec.input_address)

    def run(self) -> int:
        """Until the parent is gone or the loop fails. Returns the process's exit status."""
        self._sender.start()
        self._outputs.put(EngineHello(os.getpid()))
        try:
            self._serve()
        except Exception as error:
            configuration = isinstance(error, ConfigurationError)
            logger.debug("the engine failed", exc_info=True)
            text = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
            self._outputs.put(EngineFailed(" ".join(text.split()), configuration))
        self._outputs.put(None)
        self._sender.join(timeout=5.0)
        return 1

    def _serve(self) -> None:
        # Imported here, after hello: what follows takes seconds, and the sockets need not wait for it.
        from ..executor.executor import make_executor
        from .engine_core import EngineCore
        from .engine_loop import EngineLoop

        executor = make_executor(self.spec.config)
        self.timeline.mark("imports")
        core = EngineCore(self.spec.config, executor, self.timeline)
        loop = EngineLoop(core, self._emit)
        self._outputs.put(core.ready)
        threading.Thread(target=self._take_inputs, args=(loop,), name="octavo-input", daemon=True).start()
        loop.run()

    def _emit(self, client: int, message: EngineCoreOutputs) -> None:
        self._outputs.put(message)

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
            case _:
                pass

    def _send_outputs(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        socket = self._output_context.socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.connect(self.spec.output_address)
        while True:
            message = self._outputs.get()
            if message is None:
                socket.close(linger=2000)
                self._output_context.term()  # returns when all is sent, or after those two seconds
                return
            socket.send(encoder.encode(message), copy=False)


def main(payload: bytes, fds: list[int]) -> None:
    """Entry of the engine's process."""
    spec = msgspec.msgpack.decode(payload, type=EngineSpec)
    folder = Path(spec.input_address.removeprefix("ipc://")).parent
    on_parent_death.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    configure_logging(f"engine-{spec.index}")
    status = EngineCoreProc(spec).run()
    logging.shutdown()
    os._exit(status)  # threads and device work are not waited for: the cause was reported
