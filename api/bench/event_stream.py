"""A lean HTTP client for server-sent events on asyncio streams.

The load generator shares its cores with the server it measures. A general HTTP library spends more time on each chunk
than a fast server does, and would measure itself; this one does what a stream of ``data:`` lines needs, nothing more.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from ..client import ServerAnswerError
from ..config_file import UsageError

# One event holds one chunk of JSON; prompt echoes and logprobs make it larger than asyncio's 64 KiB.
_LINE_LIMIT = 16 * 1024 * 1024


class EventStreamClient:
    """Opens one connection per request to the server at ``url`` and yields its events. Raises ``UsageError``."""

    def __init__(self, url: str, *, api_key: str | None = None, connect_timeout: float = 10.0) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url {url!r} is not an address; write it like http://127.0.0.1:8000")
        self.url = url
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._connect_timeout = connect_timeout

    async def post(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        """Sends JSON and yields the data of each event, ``[DONE]`` left out.

        Raises ``ServerAnswerError`` when the server cannot be reached, answers with anything but 200, or breaks off.
        """
        try:
            opening = asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_LINE_LIMIT)
            reader, writer = await asyncio.wait_for(opening, self._connect_timeout)
        except (OSError, TimeoutError) as error:
            raise ServerAnswerError(f"no server answers at {self.url}; check --url") from error
        try:
            writer.write(self._head(path, len(body)) + body)
            await writer.drain()
            status, chunked = await _read_head(reader)
            lines = _chunked_lines(reader) if chunked else _plain_lines(reader)
            if status != 200:
                text = b" ".join([line async for line in lines])[:500]
                raise ServerAnswerError(f"{path} answered {status}: {text.decode('utf-8', 'replace')}")
            async for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield data
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise ServerAnswerError(f"the stream from {path} broke: {error}") from error
        finally:
            writer.close()

    def _head(self, path: str, length: int) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\nhost: {host}:{self._port}\r\n{self._key}"
            f"content-type: application/json\r\naccept: text/event-stream\r\nconnection: close\r\n"
            f"content-length: {length}\r\n\r\n"
        )
        return head.encode("latin-1")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Status, and whether the body comes in chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status_line, *fields = head.split(b"\r\n")
    return int(status_line.split()[1]), any(
        field.startswith(b"transfer-encoding:") and b"chunked" in field for field in fields
    )


async def _chunked_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a chunked body. A line may begin in one chunk and end in another."""
    rest = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            break
        chunk = await reader.readexactly(size + 2)
        *lines, rest = (rest + chunk[:-2]).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _plain_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a body that ends with its connection (which the request asked to be closed)."""
    while line := await reader.readline():
        yield line
