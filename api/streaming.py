"""Answering with a generation: as server-sent events, or as one JSON body collected from the same events."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..core.errors import OctavoError, OverloadedError
from .dialect import Collector, StreamWriter, encode_json
from .error_answers import error_status, log_internal_error, shaped_error
from .errors import ClientGoneError
from .generation import Event, Generation
from .open_requests import Exchange
from .tracing import TRACING, Tracing

HEADERS_AFTER = 1.0
"""Seconds after which a stream's headers go out even without an event. Until then an error can still be a status."""

IDLE_SECONDS = 10.0
"""Silence after which a stream of a dialect that has an event for it says that it is still there."""

SERVER_SEND = "octavo.send"
"""Key of the scope under which the server's own ``send`` is. The wrappers around it look only at how a response starts,
so a stream's chunks, one for each token, need not pass through them."""

ERROR_SEND_SECONDS = 1.0
"""A reader that has stalled does not get to hold up the end of its own stream."""


class GenerationResponse(Response):
    """The ASGI application of one answer: runs its generation while the client is there."""

    def __init__(self, generation: Generation, exchange: Exchange) -> None:
        super().__init__()
        self.headers_given = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.headers.items()
        ]
        """Those of the answer, beside those of its form."""
        self.generation = generation
        self._requests = exchange.open_requests
        self._log = exchange.log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; whatever goes wrong is told to the client, in OpenAI's shape unless the dialect has its own."""
        try:
            request = self._requests.add(len(self.generation.finish_reasons))
        except OverloadedError as error:
            self._log.ended(self.generation, f"error {error_status(error)}")
            await self.fail(error, scope, receive, send)
            return
        outcome = "ok"
        try:
            await request.run(receive, self.produce(send))
            await self.conclude(send)
            self._log.finished(self.generation)
        except ClientGoneError:
            outcome = "client gone"
            self._log.ended(self.generation, outcome)
        except Exception as error:
            if not isinstance(error, OctavoError) or error_status(error) == 500:
                log_internal_error(error, f"{self.generation.request_id} failed")
            outcome = f"error {error_status(error)}"
            self._log.ended(self.generation, outcome)
            await self.fail(error, scope, receive, send)
        finally:
            self._requests.remove(request)
            tracing: Tracing | None = scope.get(TRACING)
            if tracing is not None:
                tracing.record(self.generation, scope["headers"], scope["path"], outcome)

    @abstractmethod
    async def produce(self, send: Send) -> None:
        """Run the generation. May be cancelled at any await."""

    @abstractmethod
    async def conclude(self, send: Send) -> None:
        """Send what ends the answer."""

    async def fail(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error instead."""
        response = shaped_error(scope, error)
        response.raw_headers.extend(self.headers_given)
        await response(scope, receive, send)


class CollectedResponse(GenerationResponse):
    """A plain answer."""

    def __init__(self, generation: Generation, collector: Collector, exchange: Exchange) -> None:
        super().__init__(generation, exchange)
        self._collector = collector

    async def produce(self, send: Send) -> None:
        """Collect every event; nothing is sent before all are there."""
        async with aclosing(self.generation.batches()) as batches:
            async for events in batches:
                self._collector.add(events)

    async def conclude(self, send: Send) -> None:
        """Send the whole answer."""
        body = encode_json(self._collector.answer())
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"application/json"), length, *self.headers_given]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class EventStreamResponse(GenerationResponse):
    """An answer in server-sent events. Chunks are bytes that go straight to the ASGI server."""

    def __init__(self, generation: Generation, writer: StreamWriter, exchange: Exchange) -> None:
        super().__init__(generation, exchange)
        self._writer = writer
        self._started = False
        self._num_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ``GenerationResponse``."""
        self._send_body: Send = scope.get(SERVER_SEND, send)
        await super().__call__(scope, receive, send)

    async def produce(self, send: Send) -> None:
        """Send the chunks of every event as it comes."""
        idle = asyncio.create_task(self._fill_silence(send)) if self._writer.idle else None
        try:
            async with aclosing(self.generation.batches()) as batches:
                await self._send_chunk(send, self._writer.write(await self._first(batches, send)))
                async for events in batches:
                    chunk = self._writer.write(events)
                    if chunk:
                        self._num_sent += 1
                        await self._send_body({"type": "http.response.body", "body": chunk, "more_body": True})
                await self._send_chunk(send, self._writer.end())
        finally:
            if idle is not None:
                idle.cancel()
                await asyncio.gather(idle, return_exceptions=True)

    async def conclude(self, send: Send) -> None:
        """End the response."""
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        """An error before the headers is a status; after them it is the last event."""
        if not self._started:
            await super().fail(error, scope, receive, send)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ERROR_SEND_SECONDS):
                await send({"type": "http.response.body", "body": self._writer.fail(error), "more_body": False})

    async def _first(self, batches: AsyncGenerator[list[Event], None], send: Send) -> list[Event]:
        """The first events; sends the headers early if they take long."""
        first = asyncio.ensure_future(anext(batches, []))
        try:
            await asyncio.wait({first}, timeout=HEADERS_AFTER)
            if not first.done():
                await self._start(send)
        except asyncio.CancelledError:
            # The generator can only be closed once nobody is inside of it any more.
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            raise
        return await first

    async def _start(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self.headers_given,
        ]
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _fill_silence(self, send: Send) -> None:
        """Proxies and clients take a connection on which nothing comes for long to be dead."""
        while True:
            before = self._num_sent
            await asyncio.sleep(IDLE_SECONDS)
            if self._started and self._num_sent == before:
                await send({"type": "http.response.body", "body": self._writer.idle, "more_body": True})

    async def _send_chunk(self, send: Send, chunk: bytes) -> None:
        if not self._started:
            await self._start(send)
        if chunk:
            self._num_sent += 1
            await self._send_body({"type": "http.response.body", "body": chunk, "more_body": True})
