"""Batch files in OpenAI's format: one request per line in, one result per line out.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code", "request_id", "body"}, "error": null}

Results come in the order in which they get done. Each is written whole and at once, so that a run which was stopped
goes on where it was: what has a result already is not asked for again.
"""

import asyncio
import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import msgspec

from ..core.errors import ConfigurationError, OctavoError

PATH_PREFIX = "/v1/"
PATIENCE_SECONDS = 30.0
"""So long a server that cannot be reached, or is not ready, is asked again."""
_RESULT_HEAD = b'{"id":"batch_req_'


class BatchStoppedError(OctavoError):
    """The server is gone in the middle of a batch. What has a result keeps it; the same command goes on."""


class BatchRequest(msgspec.Struct):
    """One line of the input."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class LineError(msgspec.Struct):
    """Why a line of the input could not be sent. ``line`` counts from 1."""

    code: str
    message: str
    line: int | None = None


class LineResponse(msgspec.Struct):
    """The server's answer, whatever its status."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchResult(msgspec.Struct):
    """One line of the output."""

    id: str
    custom_id: str | None
    response: LineResponse | None = None
    error: LineError | None = None


BatchItem = BatchRequest | BatchResult
"""A request, or in place of one that cannot be sent, the result that says why."""


@dataclass
class WrittenResults:
    """What the output of an earlier run holds."""

    ids: set[str] = field(default_factory=set)
    lines: set[int] = field(default_factory=set)
    """Numbers of the lines that were no valid request."""

    def __len__(self) -> int:
        return len(self.ids) + len(self.lines)


def open_results(path: Path) -> tuple[BinaryIO, WrittenResults]:
    """The output to append to, and what is in it already; a half-written last line is cut off.

    Raises ``ConfigurationError`` if it cannot be written, is no batch output, or another run is writing it.
    """
    try:
        output = path.open("a+b")
    except OSError as error:
        raise ConfigurationError(f"the output {path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        output.close()
        raise ConfigurationError(f"another run is writing {path}; wait for it, or choose another output") from error
    try:
        return output, _read_results(output, path)
    except BaseException:
        output.close()
        raise


def _read_results(output: BinaryIO, path: Path) -> WrittenResults:
    decoder = msgspec.json.Decoder(BatchResult)
    written = WrittenResults()
    good = 0
    output.seek(0)
    for number, line in enumerate(output, start=1):
        if not line.endswith(b"\n") and line[: len(_RESULT_HEAD)] == _RESULT_HEAD[: len(line)]:
            break  # the run was killed while it wrote this line
        try:
            result = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{path} line {number} is no batch result; choose another output") from error
        if result.error is not None and result.error.line is not None:
            written.lines.add(result.error.line)
        elif result.custom_id is not None:
            written.ids.add(result.custom_id)
        good += len(line)
    os.ftruncate(output.fileno(), good)
    output.seek(0, os.SEEK_END)
    return written


def read_requests(lines: Iterable[bytes]) -> Iterator[BatchItem]:
    """The requests of an input, and in place of each line that is none, the result that says why. Skips empty lines."""
    decoder = msgspec.json.Decoder(BatchRequest)
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = decoder.decode(line)
            reason = _refusal(request, fields.decode(request.body), seen)
        except (msgspec.MsgspecError, RecursionError) as error:
            yield _refused(None, "invalid_line", f"line {number} is no request: {error}", number)
            continue
        if reason is not None:
            yield _refused(request.custom_id, "invalid_request", f"line {number}: {reason}", number)
            continue
        seen.add(request.custom_id)
        yield request


def is_written(item: BatchItem, written: WrittenResults) -> bool:
    """True if an earlier run has written the result of this line."""
    if isinstance(item, BatchRequest):
        return item.custom_id in written.ids
    return item.error is not None and item.error.line in written.lines


def _refusal(request: BatchRequest, body: dict[str, msgspec.Raw], seen: set[str]) -> str | None:
    if request.custom_id in seen:
        return f"the custom_id {request.custom_id[:128]!r} is used twice"
    if request.method != "POST":
        return f"method must be POST, not {request.method[:16]!r}"
    if not request.url.startswith(PATH_PREFIX):
        return f"url must be a path like /v1/chat/completions, not {request.url[:128]!r}"
    if bytes(body.get("stream", b"null")) not in (b"null", b"false"):
        return "stream is not possible in a batch; leave it out"
    return None


def _refused(custom_id: str | None, code: str, message: str, line: int) -> BatchResult:
    return BatchResult(_new_id(), custom_id, None, LineError(code, message, line))


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


@dataclass
class BatchCounts:
    """How a run went, in lines."""

    answered: int = 0
    failed: int = 0
    """Answered with an error, or no valid request."""
    skipped: int = 0
    """Had a result before."""


class BatchRun:
    """Sends requests, some at a time, and writes their results."""

    def __init__(
        self, client: httpx.AsyncClient, output: BinaryIO, concurrency: int, on_done: Callable[[], None]
    ) -> None:
        self.counts = BatchCounts()
        self._client = client
        self._output = output
        self._concurrency = concurrency
        self._on_done = on_done

    async def run(self, items: Iterator[BatchItem], written: WrittenResults) -> None:
        """Until every item has its result. Raises ``BatchStoppedError`` if the server stays away."""
        todo = self._new(items, written)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._work(todo))
        except* OctavoError as errors:
            raise errors.exceptions[0] from None

    def _new(self, items: Iterator[BatchItem], written: WrittenResults) -> Iterator[BatchItem]:
        for item in items:
            if is_written(item, written):
                self.counts.skipped += 1
                self._on_done()
            else:
                yield item

    async def _work(self, todo: Iterator[BatchItem]) -> None:
        # All workers share one iterator, so the input is read no faster than it is worked off.
        for item in todo:
            result = await self._answer(item) if isinstance(item, BatchRequest) else item
            self._output.write(msgspec.json.encode(result) + b"\n")
            self._output.flush()
            if result.response is not None and result.response.status_code == 200:
                self.counts.answered += 1
            else:
                self.counts.failed += 1
            self._on_done()

    async def _answer(self, request: BatchRequest) -> BatchResult:
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        pause = 0.5
        while True:
            response, trouble = await self._post(request)
            if response is not None and response.status_code not in (429, 503):
                return BatchResult(_new_id(), request.custom_id, _line_response(response))
            if response is not None and response.status_code == 429:
                deadline = None  # it is there, only busy
            elif deadline is None:
                deadline = loop.time() + PATIENCE_SECONDS
            elif loop.time() >= deadline:
                raise BatchStoppedError(f"the batch stopped: {trouble}; run the same command again to go on")
            await asyncio.sleep(_retry_after(response) or pause)
            pause = min(2 * pause, 8.0)

    async def _post(self, request: BatchRequest) -> tuple[httpx.Response | None, str]:
        """The answer, or None; and what is wrong, if something is."""
        try:
            response = await self._client.post(
                request.url, content=bytes(request.body), headers={"content-type": "application/json"}
            )
        except httpx.TransportError as error:
            return None, f"the server cannot be reached ({error or type(error).__name__})"
        if response.status_code != 503:
            return response, ""
        code = _error_code(response.content)
        if code == "engine_dead":
            raise BatchStoppedError("the batch stopped: the engine died; run the same command again to go on")
        return response, f"the server answers 503 ({code or 'unavailable'})"


def _error_code(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)["error"]["code"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None


def _retry_after(response: httpx.Response | None) -> float | None:
    given = "" if response is None else response.headers.get("retry-after", "")
    return min(float(given), 60.0) if given.isdecimal() and int(given) else None


def _line_response(response: httpx.Response) -> LineResponse:
    try:
        msgspec.json.decode(response.content)
        body = msgspec.json.format(response.content, indent=-1)  # on one line, as a result must be
    except msgspec.MsgspecError:
        body = msgspec.json.encode(response.text)
    request_id = response.headers.get("x-request-id") or uuid.uuid4().hex
    return LineResponse(response.status_code, request_id, msgspec.Raw(body))
