"""The requests being answered, and the two ways one ends early: its client goes, or the server does."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive

from ..core.errors import OctavoError, OverloadedError
from .errors import ClientGoneError
from .request_log import RequestLog
from .shared_numbers import SharedNumbers


class OpenRequest:
    """One request being answered, with so many completions."""

    def __init__(self, completions: int = 1) -> None:
        self.completions = completions
        self._error: OctavoError | None = None
        self._work: asyncio.Task[None] | None = None

    async def run(self, receive: Receive, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` while the client is there.

        Waits for the connection's end beside the work, without polling. The work is then cancelled, and its clean-up
        (the abort of the request) done, before this raises ``ClientGoneError``, or the error given to ``end``.
        """
        self._work = asyncio.create_task(work)
        gone = asyncio.create_task(_client_gone(receive))
        try:
            await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not self._work.done():
                self._work.cancel()
            await self._work
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            if gone.done():
                raise ClientGoneError from None
            raise
        finally:
            gone.cancel()
            if not self._work.done():
                self._work.cancel()

    def end(self, error: OctavoError) -> None:
        """Stop the work; ``run`` then raises ``error``."""
        self._error = error
        if self._work is not None:
            self._work.cancel()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class OpenRequests:
    """All requests being answered.

    ``limit`` bounds their completions, over all processes that share ``numbers``. A request is taken while the number
    is below the limit, however many it brings: one that is larger than the limit must be possible on an idle server.
    """

    def __init__(self, limit: int | None = None, numbers: SharedNumbers | None = None) -> None:
        self._numbers = numbers or SharedNumbers()
        self._column = self._numbers.take()
        self._limit = limit
        self._open: set[OpenRequest] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def completions(self) -> int:
        """Of all open requests, in all processes."""
        return int(self._numbers.total(self._column))

    def check_room(self) -> None:
        """Raises ``OverloadedError`` while there is no room for another request."""
        completions = self.completions
        if self._limit is not None and completions >= self._limit:
            raise OverloadedError(
                f"the server is busy: {completions} completions run or wait, the limit is {self._limit} "
                "(--max-num-seqs and --max-queued-requests); try again in a moment"
            )

    def add(self, completions: int = 1) -> OpenRequest:
        """Note a new one. The caller gives it to ``remove`` when it is answered. Raises ``OverloadedError``."""
        self.check_room()
        request = OpenRequest(completions)
        self._numbers.own[self._column] += completions
        self._open.add(request)
        self._none_open.clear()
        return request

    def remove(self, request: OpenRequest) -> None:
        """Forget an answered one."""
        if request in self._open:
            self._open.discard(request)
            self._numbers.own[self._column] -= request.completions
        if not self._open:
            self._none_open.set()

    def end_all(self, error: OctavoError) -> None:
        """End every open request with ``error``."""
        for request in list(self._open):
            request.end(error)

    async def wait_none(self, timeout: float) -> bool:
        """True once no request is open; False if ``timeout`` seconds pass first."""
        try:
            await asyncio.wait_for(self._none_open.wait(), timeout)
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a request's answer needs beside a generation. ``ServerContext.accept`` makes it."""

    headers: dict[str, str]
    """Headers of the answer, beside those of its form."""
    log: RequestLog
    open_requests: OpenRequests
