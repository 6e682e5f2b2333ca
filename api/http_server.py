"""uvicorn, started and stopped by hand: its signal handlers and its tenth-of-a-second tick are left out."""

import asyncio
import contextlib
import logging
import socket
import ssl

import uvicorn
from starlette.types import ASGIApp

from ..core.logging import adopt_logger

CLOSE_SECONDS = 1
"""For connections to close once nothing is being answered any more."""


class HttpServer:
    """Serves one application on one listening socket, over TLS if a context is given."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        # What matters is logged by the application; uvicorn would log tracebacks of clients that went away.
        if not logging.getLogger("octavo").isEnabledFor(logging.DEBUG):
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
        adopt_logger("uvicorn")
        self._listener = listener
        self._tls = tls
        self._config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=2048,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server = uvicorn.Server(self._config)
        self._clock: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections. Those that came before wait in the socket's backlog and are served now."""
        self._config.load()
        self._config.ssl = self._tls
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=[self._listener])
        self._clock = asyncio.create_task(self._keep_date())

    async def _keep_date(self) -> None:
        while True:
            await self._server.on_tick(0)  # sets the Date header
            await asyncio.sleep(1.0)

    def stop_accepting(self) -> None:
        """Refuse new connections at once; open ones go on."""
        if self._server.started:
            for server in self._server.servers:
                server.close()
        self._listener.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._clock is not None:
            self._clock.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock
        if self._server.started:
            await self._server.shutdown(sockets=[self._listener])
