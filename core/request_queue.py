"""Waiting requests, in the order in which they are to be admitted."""

import heapq
from collections.abc import Iterator

from .request import Request


class RequestQueue:
    """Preempted requests first, the one preempted last before the others; then by arrival. Where priorities count, the
    lowest goes before all that. Any request can be removed."""

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[int, int, int, Request]] = []
        self._live: dict[int, tuple[int, int, int, Request]] = {}
        self._count = 0

    def add(self, request: Request) -> None:
        """A new request."""
        self._count += 1
        self._push(request, 1, self._count)

    def put_back(self, request: Request) -> None:
        """A preempted request: it goes before all that were not yet running (of its priority)."""
        self._count += 1
        self._push(request, 0, -self._count)

    def _push(self, request: Request, turn: int, order: int) -> None:
        entry = (request.priority if self._by_priority else 0, turn, order, request)
        self._live[id(request)] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> Request:
        """The next to be admitted. The queue must not be empty."""
        while self._live.get(id(self._heap[0][3])) is not self._heap[0]:
            heapq.heappop(self._heap)  # removed earlier; dropped only now
        return self._heap[0][3]

    def pop(self) -> Request:
        """Take out the next to be admitted. The queue must not be empty."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._live[id(request)]
        return request

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        del self._live[id(request)]
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._live.values(), key=lambda entry: entry[:3]))
