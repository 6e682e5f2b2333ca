"""An engine in whose place another one is started when it dies."""

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineGone, EngineReady
from .transport import EngineLost, EngineTransport, OnMessage, TransportMessage

logger = logging.getLogger("octavo.engine")

_REMEMBERED_SECONDS = 600.0
"""Deaths longer ago do not count any more."""
_LONGEST_DELAY = 30.0


class RestartingTransport(EngineTransport):
    """One engine after the other. What they were to do is the client's to know, and to send again.

    start --> loading --EngineReady--> serving --death, EngineLost--> the next one loads --EngineReady--> serving ...
                 |                                                       |
                 +-- death: EngineGone                                   +-- death: another one; too many: EngineGone
    """

    def __init__(self, config: EngineConfig, make: Callable[[EngineConfig], EngineTransport]) -> None:
        self._config = config
        self._make = make
        self._engine = make(config)
        self.seats = self._engine.seats
        self._was_ready = False
        self._deaths: list[float] = []
        self._closed = threading.Event()
        self._lock = threading.RLock()

    def start(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        self._engine.start(self._hear)

    def send(self, message: EngineCoreInput) -> None:
        self._engine.send(message)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._engine.close()

    def _hear(self, message: TransportMessage) -> None:
        if isinstance(message, EngineReady) and not self._was_ready:
            self._was_ready = True
            # The next one must have room for all that this one has let in, whatever memory is free by then.
            cache = msgspec.structs.replace(self._config.cache, num_blocks=message.num_blocks + 1)
            scheduler = msgspec.structs.replace(self._config.scheduler, max_model_len=message.max_model_len)
            self._config = msgspec.structs.replace(self._config, cache=cache, scheduler=scheduler)
        if isinstance(message, EngineGone) and self._was_ready and (delay := self._delay()) is not None:
            logger.error("%s; another one is started%s", message.message, f" in {delay:g} s" if delay else "")
            arguments = (message.message, delay)
            threading.Thread(target=self._replace, args=arguments, name="octavo-restart", daemon=True).start()
        else:
            self._on_message(message)

    def _delay(self) -> float | None:
        """Seconds until the next engine may start, now that one has died; None if there were too many."""
        now = time.monotonic()
        self._deaths = [then for then in self._deaths if now - then < _REMEMBERED_SECONDS] + [now]
        if len(self._deaths) > self._config.restarts:
            return None
        return min(_LONGEST_DELAY, 2.0 ** (len(self._deaths) - 2)) if len(self._deaths) > 1 else 0.0

    def _replace(self, cause: str, delay: float) -> None:
        try:
            self._engine.close()
            with self._lock:
                if self._closed.is_set():
                    return
                self._engine = self._make(self._config)
            self._on_message(EngineLost(cause, self._engine.seats))
            if self._closed.wait(delay):
                return
            with self._lock:
                if not self._closed.is_set():
                    self._engine.start(self._hear)
        except Exception as error:
            logger.debug("starting another engine failed", exc_info=True)
            self._hear(EngineGone.of(error))
