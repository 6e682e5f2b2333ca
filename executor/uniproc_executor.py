"""One worker inside the engine's process."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..core.config import EngineConfig
from ..core.step import ModelRunnerOutput, SchedulerOutput
from .executor import Executor
from .worker_protocol import worker_factory


class UniProcExecutor(Executor):
    """Runs the worker on one thread of its own.

    The thread lets the engine's loop prepare step n+1 while step n runs (torch releases the interpreter lock inside
    its operations). That it is always the same thread matters on a CPU: OpenMP keeps a team of threads for each
    thread that calls it, and two teams on the same cores disturb each other.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-worker")
        factory = worker_factory(config.parallel.worker)
        self._worker = self._thread.submit(factory, config, 0).result()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        return [self._thread.submit(getattr(self._worker, method), *arguments).result()]

    def execute(self, output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        return self._thread.submit(self._worker.execute, output)

    def shutdown(self) -> None:
        try:
            self._thread.submit(self._worker.close)
        except RuntimeError:
            return  # shut down already
        self._thread.shutdown(wait=True)
