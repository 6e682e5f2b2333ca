"""A worker in a process of its own: the loop at the far end of the rings."""

import contextlib
import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable

import msgspec

from ..core.config import EngineConfig
from ..core.errors import ConfigurationError
from ..core.logging import configure_logging
from .shared_ring import ReaderEnd, RingClosedError, RingReader, RingWriter, WriterEnd
from .worker_messages import (
    WorkerCall,
    WorkerError,
    WorkerResult,
    WorkerStepResult,
    encoder,
    task_decoder,
)
from .worker_protocol import WorkerProtocol, worker_factory

logger = logging.getLogger("octavo.worker")

Reply = WorkerResult | WorkerStepResult | WorkerError


def main(payload: bytes, fds: list[int]) -> None:
    """Entry of a rank's process. Ends when the executor closes the ring."""
    rank, config = msgspec.msgpack.decode(payload, type=tuple[int, EngineConfig])
    configure_logging(f"worker-{rank}")
    for fd in fds:
        os.set_inheritable(fd, False)
    tasks = RingReader(ReaderEnd(*fds[:3]))
    replies = RingWriter(WriterEnd.of(fds[3:]))
    with contextlib.suppress(RingClosedError):  # the executor is gone or done
        _serve(rank, config, tasks, replies)


def _serve(rank: int, config: EngineConfig, tasks: RingReader, replies: RingWriter) -> None:
    pending: queue.SimpleQueue[Callable[[], Reply]] = queue.SimpleQueue()
    threading.Thread(target=_send_replies, args=(pending, replies), name="octavo-replies", daemon=True).start()
    worker: WorkerProtocol | None = None
    while True:
        task = task_decoder.decode(tasks.read())
        try:
            if worker is None:
                worker = worker_factory(config.parallel.worker)(config, rank)
            if isinstance(task, WorkerCall):
                result = WorkerResult(getattr(worker, task.method)(*task.arguments))
                pending.put(lambda result=result: result)
            else:
                step = worker.launch(task.output)
                if rank == 0:
                    pending.put(lambda step=step: WorkerStepResult(step()))
        except Exception as error:
            failure = _failure(error)
            pending.put(lambda failure=failure: failure)


def _send_replies(pending: "queue.SimpleQueue[Callable[[], Reply]]", replies: RingWriter) -> None:
    """Answers in the order of the tasks, while the next ones are being launched."""
    while True:
        produce = pending.get()
        try:
            reply = produce()
        except Exception as error:
            reply = _failure(error)
        try:
            replies.write(encoder.encode(reply))
        except RingClosedError:
            return  # the executor is gone; the main thread notices, too


def _failure(error: Exception) -> WorkerError:
    configuration = isinstance(error, ConfigurationError)
    message = str(error) if configuration else f"{type(error).__name__}: {error}"
    return WorkerError(message, configuration, "".join(traceback.format_exception(error)))
