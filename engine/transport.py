"""The way to an EngineCore, wherever it runs: send messages, hear messages. Four methods, two implementations.

``LLM`` hears them in a queue, ``AsyncLLM`` on its event loop; neither knows if the engine is a thread or a process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from ..core.config import EngineConfig
from ..core.engine_input import EngineCoreInput
from ..core.engine_output import EngineCoreOutputs, EngineFailed, EngineHello, EngineReady


class EngineGone(msgspec.Struct, frozen=True):
    """The engine ended. Nothing comes after this."""

    message: str
    configuration: bool = False
    """The user's settings or files are the cause."""


TransportMessage = EngineCoreOutputs | EngineHello | EngineReady | EngineFailed | EngineGone
OnMessage = Callable[[TransportMessage], None]


class EngineTransport(ABC):
    """Starts an engine and carries messages to and from it."""

    @abstractmethod
    def start(self, on_message: OnMessage) -> None:
        """Start the engine; returns at once. ``on_message`` is called on a thread of the transport's, in order:
        first ``EngineReady`` (or ``EngineGone``), then outputs, ``EngineGone`` at the end if it ends by itself."""

    @abstractmethod
    def send(self, message: EngineCoreInput) -> None:
        """Hand a message to the engine; never blocks. Messages to an engine that is gone are dropped."""

    @abstractmethod
    def close(self) -> None:
        """End the engine and all it started. May be called twice, and at any time."""


def make_transport(config: EngineConfig, multiprocess: bool) -> EngineTransport:
    """An engine in a process of its own, or in a thread of this one."""
    if multiprocess:
        from .process_transport import ProcessTransport

        return ProcessTransport(config)
    from .thread_transport import ThreadTransport

    return ThreadTransport(config)
