"""What an executor needs of a worker, and how it finds the class."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from ..core.config import EngineConfig
from ..core.errors import ConfigurationError
from ..core.step import ModelRunnerOutput, SchedulerOutput

PendingStep = Callable[[], ModelRunnerOutput]
"""A step that was started: waits for what it draws. Called once, on any thread, in the order of the steps."""


class WorkerProtocol(Protocol):
    """One rank: loads its part of the model and runs steps on its device."""

    def load(self) -> dict[str, float]:
        """Load the weights. Returns when each phase was done, by name, in seconds of ``time.time()``."""
        ...

    def num_blocks(self) -> int:
        """KV-cache blocks that fit this rank's memory."""
        ...

    def allocate(self, num_blocks: int) -> dict[str, int]:
        """Allocate the KV cache. Returns the memory ledger in bytes."""
        ...

    def launch(self, output: SchedulerOutput) -> PendingStep:
        """Start one step. On a device that works by itself this returns while it runs."""
        ...

    def provide_vocabulary(
        self, token_bytes: list[bytes], special_ids: list[int], end_ids: list[int], definition: str
    ) -> None:
        """What the tokens stand for; comes before the first grammar."""

    def start_grammar(self, kind: str, text: str) -> str | None:
        """Compile a grammar in the background, and keep it until a step releases it. Returns ``grammar_state``."""
        ...

    def grammar_state(self, kind: str, text: str) -> str | None:
        """Of a started grammar: None while it compiles, then "" or what is wrong with it."""
        ...

    def close(self) -> None:
        """Give back what the rank holds."""


WorkerFactory = Callable[[EngineConfig, int], WorkerProtocol]
"""A worker class: takes the configuration and the rank."""


def worker_factory(path: str) -> WorkerFactory:
    """The class named by ``module:name``. Raises ``ConfigurationError`` if there is none."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"worker class {path!r} cannot be loaded: {error}") from error
