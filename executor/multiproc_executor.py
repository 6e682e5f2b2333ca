"""One process for each rank, fed through a shared-memory ring.

    executor -- ring: every step and call, one copy for all ranks --> rank 0, rank 1, ...
    executor <-- one ring for each rank: results ------------------- rank r

Every rank answers every call; only rank 0 answers a step, because all ranks draw the same tokens.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from ..core.config import EngineConfig
from ..core.errors import ConfigurationError, EngineDeadError, EngineError
from ..core.step import SchedulerOutput
from .child_process import ChildProcess, describe_exit
from .executor import Executor, StepFuture
from .shared_ring import ReaderEnd, RingClosedError, RingReader, RingWriter, close_fds, make_ring
from .worker_messages import WorkerCall, WorkerError, WorkerResult, WorkerStep, WorkerStepResult, encoder, reply_decoder

logger = logging.getLogger("octavo.executor")

_REAP_SECONDS = 1.0
"""From the end of a rank's ring to its exit status."""


class _Rank:
    """A rank's process and the futures that wait for its answers, oldest first."""

    def __init__(self, rank: int, process: ChildProcess, replies: RingReader, any_dead: threading.Event) -> None:
        self.rank = rank
        self._any_dead = any_dead
        self.process = process
        self.replies = replies
        self.waiting: deque[Future[Any]] = deque()
        self.lock = threading.Lock()
        self.dead: str | None = None
        self._on_failure: Callable[[str], None] | None = None

    def watch(self, on_failure: Callable[[str], None]) -> None:
        """Have ``on_failure`` called when this rank is gone; at once, if it is."""
        with self.lock:
            self._on_failure = on_failure
            dead = self.dead
        if dead is not None:
            on_failure(dead)

    def expect(self) -> Future[Any]:
        """A future for this rank's next answer."""
        future: Future[Any] = Future()
        with self.lock:
            if self.dead is not None:
                future.set_exception(EngineDeadError(self.dead))
            else:
                self.waiting.append(future)
        return future

    def read_replies(self) -> None:
        """Hand each answer to the future that waits for it, until the rank is gone."""
        try:
            while True:
                reply = reply_decoder.decode(self.replies.read())
                with self.lock:
                    future = self.waiting.popleft()
                _settle(future, reply, self.rank)
        except RingClosedError:
            self.process.release()
            code = self.process.wait(_REAP_SECONDS)
            status = describe_exit(code) if code is not None else "it closed its ring"
            self._fail(f"worker {self.rank} (pid {self.process.pid}) is gone: {status}")
        finally:
            self.replies.close()

    def _fail(self, message: str) -> None:
        with self.lock:
            self.dead = message
            waiting, self.waiting = self.waiting, deque()
            on_failure = self._on_failure
        self._any_dead.set()
        for future in waiting:
            future.set_exception(EngineDeadError(message))
        if on_failure is not None:
            on_failure(message)


def _settle(future: Future[Any], reply: WorkerResult | WorkerStepResult | WorkerError, rank: int) -> None:
    if isinstance(reply, WorkerResult):
        future.set_result(reply.value)
    elif isinstance(reply, WorkerStepResult):
        future.set_result(reply.output)
    elif reply.configuration:
        future.set_exception(ConfigurationError(reply.message))
    else:
        logger.debug("worker %d:\n%s", rank, reply.traceback)
        future.set_exception(EngineError(f"worker {rank}: {reply.message}"))


class MultiprocExecutor(Executor):
    """Runs ``tensor_parallel_size`` ranks in their own processes."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        writer, readers = make_ring(config.parallel.tensor_parallel_size)
        self._tasks = RingWriter(writer)
        self._lock = threading.Lock()
        self._any_dead = threading.Event()
        self._ranks = [_start_rank(rank, config, tasks, self._any_dead) for rank, tasks in enumerate(readers)]
        for rank in self._ranks:
            threading.Thread(target=rank.read_replies, name=f"octavo-replies-{rank.rank}", daemon=True).start()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        with self._lock:
            futures = [rank.expect() for rank in self._ranks]
            self._send(WorkerCall(method, list(arguments)))
        return [future.result() for future in futures]

    def execute(self, output: SchedulerOutput) -> StepFuture:
        with self._lock:
            future = self._ranks[0].expect()
            self._send(WorkerStep(output))
        return future

    def _send(self, task: WorkerCall | WorkerStep) -> None:
        try:
            self._tasks.write(encoder.encode(task))
        except RingClosedError:
            self._any_dead.wait(2 * _REAP_SECONDS)  # the thread that reads its replies finds out which, and why
            causes = [rank.dead for rank in self._ranks if rank.dead is not None]
            raise EngineDeadError(causes[0] if causes else "a worker process is gone") from None

    def watch(self, on_failure: Callable[[str], None]) -> None:
        for rank in self._ranks:
            rank.watch(on_failure)

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return [rank.process.pid for rank in self._ranks]

    def shutdown(self) -> None:
        for rank in self._ranks:
            rank.process.release()
        for rank in self._ranks:
            rank.process.stop()
        if self._ranks:
            self._tasks.close()
        self._ranks = []


def _start_rank(rank: int, config: EngineConfig, tasks: ReaderEnd, any_dead: threading.Event) -> _Rank:
    replies, (reader,) = make_ring(1)
    payload = msgspec.msgpack.encode((rank, config))
    fds = (*tasks, *replies.fds)
    process = ChildProcess(f"worker-{rank}", "octavo.executor.worker_process:main", payload, fds, huge_pages=True)
    close_fds(fds)  # the rank's alone from now on, so that its end shows as an end of file
    return _Rank(rank, process, RingReader(reader), any_dead)
