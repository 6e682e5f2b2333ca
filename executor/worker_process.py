"""A worker in a process of its own: the loop at the far end of the rings."""

import logging
import os
import traceback

import msgspec

from ..core.config import EngineConfig
from ..core.errors import ConfigurationError
from ..core.logging import configure_logging
from .shared_ring import ReaderEnd, RingClosedError, RingReader, RingWriter, WriterEnd
from .worker_messages import (
    WorkerCall,
    WorkerError,
    WorkerResult,
    WorkerStep,
    WorkerStepResult,
    encoder,
    task_decoder,
)
from .worker_protocol import WorkerProtocol, worker_factory

logger = logging.getLogger("octavo.worker")


def main(payload: bytes, fds: list[int]) -> None:
    """Entry of a rank's process. Ends when the executor closes the ring."""
    rank, config = msgspec.msgpack.decode(payload, type=tuple[int, EngineConfig])
    configure_logging(f"worker-{rank}")
    for fd in fds:
        os.set_inheritable(fd, False)
    tasks = RingReader(ReaderEnd(*fds[:3]))
    replies = RingWriter(WriterEnd.of(fds[3:]))
    try:
        _serve(rank, config, tasks, replies)
    except RingClosedError:
        pass  # the executor is gone or done


def _serve(rank: int, config: EngineConfig, tasks: RingReader, replies: RingWriter) -> None:
    worker: WorkerProtocol | None = None
    while True:
        task = task_decoder.decode(tasks.read())
        try:
            if worker is None:
                worker = worker_factory(config.parallel.worker)(config, rank)
            reply = _do(worker, task, rank)
        except Exception as error:
            message = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
            reply = WorkerError(message, isinstance(error, ConfigurationError), traceback.format_exc())
        if reply is not None:
            replies.write(encoder.encode(reply))


def _do(worker: WorkerProtocol, task: WorkerCall | WorkerStep, rank: int) -> WorkerResult | WorkerStepResult | None:
    if isinstance(task, WorkerCall):
        return WorkerResult(getattr(worker, task.method)(*task.arguments))
    output = worker.execute(task.output)
    return WorkerStepResult(output) if rank == 0 else None
