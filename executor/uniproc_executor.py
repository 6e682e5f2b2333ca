"""One worker inside the engine's process."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..core.config import EngineConfig
from ..core.step import ModelRunnerOutput, SchedulerOutput
from .executor import Executor, StepFuture
from .worker_protocol import PendingStep, worker_factory


class _Caller:
    """Calls at once, on the caller's thread: for a device that works by itself once its work is launched."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None:
        """Nothing runs."""


class _Launched:
    """A step whose launch was submitted."""

    __slots__ = ("_launch",)

    def __init__(self, launch: Future[PendingStep]) -> None:
        self._launch = launch

    def result(self) -> ModelRunnerOutput:
        return self._launch.result()()


class UniProcExecutor(Executor):
    """Runs the worker in this process.

    On a CPU it has a thread of its own, so that the engine's loop prepares step n+1 while step n runs (torch releases
    the interpreter lock inside its operations). That it is always the same thread matters: OpenMP keeps a team of
    threads for each thread that calls it, and two teams on the same cores disturb each other. A GPU runs by itself
    once a step is launched, so there the loop's own thread launches.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        own_thread = config.device.device == "cpu"
        self._caller = ThreadPoolExecutor(1, thread_name_prefix="octavo-worker") if own_thread else _Caller()
        factory = worker_factory(config.parallel.worker)
        self._worker = self._caller.submit(factory, config, 0).result()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [self._caller.submit(getattr(self._worker, method), *arguments).result()]

    def execute(self, output: SchedulerOutput) -> StepFuture:
        return _Launched(self._caller.submit(self._worker.launch, output))

    def shutdown(self) -> None:
        try:
            self._caller.submit(self._worker.close)
        except RuntimeError:
            return  # shut down already
        self._caller.shutdown(wait=True)
