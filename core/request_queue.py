"""Waiting requests, in the order in which they are to be admitted."""

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator

from .request import Request


class RequestQueue(ABC):
    """An ordered queue from which any request can be removed."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """A new request."""

    @abstractmethod
    def put_back(self, request: Request) -> None:
        """A preempted request: it goes before all that were not yet running (of its priority)."""

    @abstractmethod
    def peek(self) -> Request:
        """The next to be admitted. The queue must not be empty."""

    @abstractmethod
    def pop(self) -> Request:
        """Take out the next to be admitted. The queue must not be empty."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Take out a request from anywhere."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...


class FCFSRequestQueue(RequestQueue):
    """First come, first served."""

    def __init__(self) -> None:
        # Ordered by key, both ends and removal in O(1).
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        self._requests[id(request)] = request

    def put_back(self, request: Request) -> None:
        self._requests[id(request)] = request
        self._requests.move_to_end(id(request), last=False)

    def peek(self) -> Request:
        return next(iter(self._requests.values()))

    def pop(self) -> Request:
        return self._requests.popitem(last=False)[1]

    def remove(self, request: Request) -> None:
        del self._requests[id(request)]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())


class PriorityRequestQueue(RequestQueue):
    """The lowest ``priority`` first; within one, preempted requests first, then by arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Request]] = []
        self._live: dict[int, tuple[int, int, int, Request]] = {}
        self._count = 0

    def add(self, request: Request) -> None:
        self._push(request, 1)

    def put_back(self, request: Request) -> None:
        self._push(request, 0)

    def _push(self, request: Request, turn: int) -> None:
        self._count += 1
        # Of preempted requests the one preempted last goes first, as in the first-come queue.
        order = self._count if turn else -self._count
        entry = (request.priority, turn, order, request)
        self._live[id(request)] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> Request:
        while self._live.get(id(self._heap[0][3])) is not self._heap[0]:
            heapq.heappop(self._heap)  # removed earlier; dropped only now
        return self._heap[0][3]

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._live[id(request)]
        return request

    def remove(self, request: Request) -> None:
        del self._live[id(request)]
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._live.values(), key=lambda entry: entry[:3]))


def make_request_queue(policy: str) -> RequestQueue:
    """The queue of a scheduling policy: ``fcfs`` or ``priority``."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
