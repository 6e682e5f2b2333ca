"""Who wants to hear the engine's numbers."""

from typing import Protocol

from ..core.stats import FinishedRequestStats, SchedulerStats


class StatLogger(Protocol):
    """Hears of every step and of what requests go through. Called on the event loop; must be quick."""

    def record_step(self, stats: SchedulerStats) -> None:
        """A step was done."""

    def record_first_token(self, seconds: float) -> None:
        """A request's first token came, so many seconds after its arrival."""

    def record_tokens(self, count: int, seconds: float) -> None:
        """``count`` completions got a token, each one ``seconds`` after its last."""

    def record_finished(self, stats: FinishedRequestStats) -> None:
        """A request ended."""
