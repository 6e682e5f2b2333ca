"""Counters, gauges and histograms over numbers that several processes share; Prometheus' own library writes the text.

That library's own metric objects belong to one process, and its way to join several keeps files. These are also
quicker, which matters for the two that every token touches.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from .shared_numbers import SharedNumbers


class Counter:
    """Grows. The total over all processes is what a scrape sees."""

    def __init__(self, numbers: SharedNumbers) -> None:
        self._numbers = numbers
        self._own = numbers.own
        self._column = numbers.take()

    def inc(self, amount: float = 1.0) -> None:
        """Add."""
        self._own[self._column] += amount

    @property
    def total(self) -> float:
        """Of all processes."""
        return self._numbers.total(self._column)


class Gauge(Counter):
    """Set by one process; by the others never, so that the sum is its value."""

    def set(self, value: float) -> None:
        """Replace."""
        self._own[self._column] = value


class Histogram:
    """Counts values by ``bounds``, each the largest value of its bucket, and adds them up."""

    def __init__(self, numbers: SharedNumbers, bounds: Sequence[float]) -> None:
        self._numbers = numbers
        self._own = numbers.own
        self._bounds = [float(bound) for bound in bounds]
        self._first = numbers.take(len(bounds) + 2)
        self._sum = self._first + len(bounds) + 1

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that came so many times."""
        self._own[self._first + bisect_left(self._bounds, value)] += times
        self._own[self._sum] += value * times

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Bound and cumulated count of each bucket, over all processes."""
        counts = accumulate(self._numbers.total(column) for column in range(self._first, self._sum))
        return list(zip(map(floatToGoString, [*self._bounds, float("inf")]), counts, strict=True))

    @property
    def sum(self) -> float:
        """Of all values, over all processes."""
        return self._numbers.total(self._sum)
