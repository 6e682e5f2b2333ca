"""The way to an EngineCore, wherever it runs: start it, send messages and hear some, close it.

``LLM`` hears them in a queue, ``AsyncLLM`` on its event loop; neither knows if the engine is a thread or a process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreMessage


class EngineSeat(msgspec.Struct, frozen=True):
    """Where one of an engine's clients meets it; what another process needs to become that client."""

    folder: str
    """Private to this seat. Removed once both sockets are joined."""
    client_index: int = 0

    @property
    def input_address(self) -> str:
        """Of the socket on which the client sends."""
        return f"ipc://{self.folder}/in"

    @property
    def output_address(self) -> str:
        """Of the socket on which the client hears."""
        return f"ipc://{self.folder}/out"


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine ended with this cause, and another one is being started: ``EngineReady`` or ``EngineGone`` follows."""

    message: str
    seats: Sequence[EngineSeat] = ()
    """Where the engine's other clients meet the next one."""


TransportMessage = EngineCoreMessage | EngineLost
OnMessage = Callable[[TransportMessage], None]


class EngineTransport(ABC):
    """Starts an engine and carries messages to and from it."""

    client_index = 0
    """This client's number at the engine."""
    seats: Sequence[EngineSeat] = ()
    """Of the engine's other clients."""

    @abstractmethod
    def start(self, on_message: OnMessage) -> None:
        """Start the engine; returns at once. ``on_message`` is called on a thread of the transport's, in order:
        first ``EngineReady`` (or ``EngineGone``), then outputs, ``EngineGone`` at the end if it ends by itself. After
        ``EngineLost`` all unfinished requests must be sent again when the next ``EngineReady`` comes."""

    @abstractmethod
    def send(self, message: EngineCoreInput) -> None:
        """Hand a message to the engine; never blocks. Messages to an engine that is gone are dropped."""

    @abstractmethod
    def close(self) -> None:
        """End the engine and all it started. May be called twice, and at any time."""


def make_transport(config: EngineConfig, multiprocess: bool, num_clients: int = 1) -> EngineTransport:
    """An engine in a process of its own, with seats for further clients, or in a thread of this one."""
    if multiprocess:
        from .process_transport import ProcessTransport
        from .restarting_transport import RestartingTransport

        if config.restarts > 0:
            return RestartingTransport(config, partial(ProcessTransport, num_clients=num_clients))
        return ProcessTransport(config, num_clients)
    from .thread_transport import ThreadTransport

    return ThreadTransport(config)
