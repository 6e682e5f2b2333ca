"""The stub application behind a real uvicorn, on the test's own event loop, and a client that speaks plain sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from stub_app import StubApp

from octavo.api.http_server import HttpServer
from octavo.api.listener import open_listener


@contextlib.asynccontextmanager
async def live(app: StubApp) -> AsyncIterator[int]:
    """Serves the application; gives the port."""
    listener = open_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = HttpServer(app.app, listener)
    await server.start()
    try:
        yield port
    finally:
        await server.close()


async def send_request(port: int, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a whole request was sent, and nothing read yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: stub\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer
