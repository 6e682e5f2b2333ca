"""The interface between the engine's loop and the workers that run the model."""

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any

from ..core.config import EngineConfig
from ..core.step import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Places workers and hands them steps. Steps run in the order in which they were given."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every worker and wait. One result for each rank; a worker's exception is raised here."""

    @abstractmethod
    def execute(self, output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Run a step. Returns at once; the future carries what was drawn, or the worker's exception."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers and give back all they hold. May be called twice."""


def make_executor(config: EngineConfig) -> Executor:
    """The executor that the configuration asks for."""
    if config.parallel.executor == "mp":
        from .multiproc_executor import MultiprocExecutor

        return MultiprocExecutor(config)
    from .uniproc_executor import UniProcExecutor

    return UniProcExecutor(config)
