"""Where a request's time went: waiting, prefill, decode. One account for the log, the traces and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.outputs import RequestTimings

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Phases:
    """One HTTP request's phases, in seconds of ``time.time()``. A phase that was not reached is None.

    Of several prompts: waiting ends when the first of them is scheduled, prefill with the first token of any, decode
    with the last token of all.
    """

    arrival: float
    queue: Interval | None
    prefill: Interval | None
    decode: Interval | None

    @classmethod
    def of(cls, timings: Sequence[RequestTimings | None]) -> "Phases | None":
        """From the timings of each prompt; None if there are none yet."""
        known = [timing for timing in timings if timing is not None]
        if not known:
            return None
        arrival = min(timing.arrival for timing in known)
        scheduled = _first([timing.first_scheduled for timing in known])
        first = _first([timing.first_token for timing in known])
        last = max((timing.last_token for timing in known if timing.last_token is not None), default=None)
        return cls(
            arrival,
            None if scheduled is None else (arrival, max(arrival, scheduled)),
            None if first is None or scheduled is None else (scheduled, max(scheduled, first)),
            None if first is None or last is None else (first, max(first, last)),
        )


def _first(times: list[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


def milliseconds(interval: Interval | None) -> float | None:
    """The length of a phase, to a microsecond."""
    return None if interval is None else round(1000 * (interval[1] - interval[0]), 3)
