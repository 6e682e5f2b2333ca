"""An engine in a thread of this process."""

import logging
import threading

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreOutputs, EngineGone
from ..core.startup import StartupTimeline
from ..executor.executor import make_executor
from .engine_core import EngineCore
from .engine_loop import EngineLoop
from .transport import EngineTransport, OnMessage

logger = logging.getLogger("octavo.engine")


class ThreadTransport(EngineTransport):
    """For debugging, tests and small programs: no other process, but the same loop and the same messages."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._loop: EngineLoop | None = None
        self._early: list[EngineCoreInput] = []
        self._lock = threading.RLock()  # the garbage collector may end an owner, and so this, anywhere
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, on_message: OnMessage) -> None:
        self._thread = threading.Thread(target=self._run, args=(on_message,), name="octavo-engine", daemon=True)
        self._thread.start()

    def _run(self, on_message: OnMessage) -> None:
        def emit(client: int, message: EngineCoreOutputs) -> None:
            on_message(message)

        executor = None
        try:
            executor = make_executor(self._config)
            core = EngineCore(self._config, executor, StartupTimeline("engine"))
            on_message(core.ready)
            loop = EngineLoop(core, emit)
            with self._lock:
                self._loop = loop
                for message in self._early:
                    loop.receive(message)
                if self._closed:
                    loop.stop()
            loop.run()
        except Exception as error:
            logger.debug("the engine failed", exc_info=True)
            on_message(EngineGone.of(error))
        finally:
            if executor is not None:
                executor.shutdown()

    def send(self, message: EngineCoreInput) -> None:
        with self._lock:
            if self._loop is None:
                self._early.append(message)
                return
        self._loop.receive(message)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._loop is not None:
                self._loop.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
