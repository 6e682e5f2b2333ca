"""A ``StatLogger`` that exists before the metrics do.

The engine process starts before the libraries of the HTTP server are imported, so that both happen at once; the engine
therefore gets this, and the metrics are plugged in when they are there.
"""

from ..core.stats import FinishedRequestStats, SchedulerStats
from ..engine.stat_logger import StatLogger


class StatRelay:
    """Passes everything on to ``target`` once there is one. Before that no request can have run."""

    def __init__(self) -> None:
        self.target: StatLogger | None = None

    def record_step(self, stats: SchedulerStats) -> None:
        """The scheduler's state after a step."""
        if self.target is not None:
            self.target.record_step(stats)

    def record_first_token(self, seconds: float) -> None:
        """A completion's first token."""
        if self.target is not None:
            self.target.record_first_token(seconds)

    def record_tokens(self, count: int, seconds: float) -> None:
        """Tokens after the first, of one step and so long after the last."""
        if self.target is not None:
            self.target.record_tokens(count, seconds)

    def record_finished(self, stats: FinishedRequestStats) -> None:
        """The end of a completion."""
        if self.target is not None:
            self.target.record_finished(stats)
