"""What the scheduler decided and why, in the log (``OCTAVO_LOG_SCHEDULER=1``)."""

import logging

from .request import Request
from .step import SchedulerOutput

logger = logging.getLogger("octavo.scheduler")


class DecisionLog:
    """Hears of every decision and keeps silent: the one in use unless asked for otherwise."""

    def step(self, output: SchedulerOutput, num_decodes: int, num_waiting: int, num_free: int) -> None:
        """A step was put together."""

    def event(self, request: Request, kind: str, reason: str) -> None:
        """Something happened to a request: ``scheduled``, ``refused``, ``preempted`` or ``finished``."""


class LoggedDecisions(DecisionLog):
    """Writes one line for each step and each event."""

    def step(self, output: SchedulerOutput, num_decodes: int, num_waiting: int, num_free: int) -> None:
        chunks = ", ".join(f"slot {c.slot}: {c.num_tokens}{' (samples)' if c.samples else ''}" for c in output.chunks)
        logger.info(
            "step %d: %d tokens = %d decodes + chunks [%s]; %d waiting, %d blocks free",
            output.step, output.num_tokens, num_decodes, chunks, num_waiting, num_free,
        )  # fmt: skip

    def event(self, request: Request, kind: str, reason: str) -> None:
        logger.info("request %s %s%s", request.request_id, kind, f": {reason}" if reason else "")
