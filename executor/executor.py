"""The interface between the engine's loop and the workers that run the model."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from ..core.config import EngineConfig
from ..core.step import ModelRunnerOutput, SchedulerOutput
from .kernel_compilers import KernelCompilers


class StepFuture(Protocol):
    """What a step will have drawn."""

    def result(self) -> ModelRunnerOutput:
        """Wait for it. Raises the worker's exception."""
        ...


class Executor(ABC):
    """Places workers and hands them steps. Steps run in the order in which they were given."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._compilers = KernelCompilers(config)  # at once: there is enough else to do meanwhile

    def await_kernels(self) -> None:
        """Returns once what is compiled ahead is there. To be called before the workers run anything."""
        self._compilers.wait()

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every worker and wait. One result for each rank; a worker's exception is raised here."""

    @abstractmethod
    def execute(self, output: SchedulerOutput) -> StepFuture:
        """Start a step. Returns at once; results are asked for in the order of the steps."""

    def watch(self, on_failure: Callable[[str], None]) -> None:  # noqa: B027 - most executors have nothing to watch
        """Have ``on_failure`` called with the cause, on any thread, when a worker is gone though nothing was asked of
        it. Workers inside this process, the default here, cannot vanish alone."""

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
