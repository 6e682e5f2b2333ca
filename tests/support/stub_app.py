"""The HTTP application over a stub engine, and clients of it that need no socket."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from stub_engine import StubEngine

from octavo.api.app import build_app
from octavo.api.context import ServerContext
from octavo.api.metrics import Metrics
from octavo.api.server_args import ServerArgs

T = TypeVar("T")
MODEL = "stub-model"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


class StubApp:
    """An application with everything behind it at hand."""

    def __init__(self, engine: StubEngine | None = None, **args: Any) -> None:
        self.engine = engine or StubEngine()
        self.context = ServerContext(self.engine, ServerArgs(**args), [MODEL, "other-name"])
        self.metrics = Metrics(MODEL, self.engine.config)
        self.app = build_app(self.context, self.metrics)

    def client(self) -> httpx.AsyncClient:
        """A client that calls the application directly; an exception that leaves the application is raised here."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://stub", timeout=20)

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        """POST a JSON value, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client() as client:
            return await client.post(path, content=content, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        """GET a path."""
        async with self.client() as client:
            return await client.get(path)

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON events of a stream, which must end with ``[DONE]``."""
        response = await self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = sse_events(response.content)
        assert events[-1] == "[DONE]"
        assert all(isinstance(event, dict) for event in events[:-1])
        return events[:-1]


def sse_events(content: bytes) -> list[Any]:
    """Events of a stream, JSON decoded strictly; ``[DONE]`` stays a string."""
    assert content.endswith(b"\n\n")
    events = []
    for block in content.decode("utf-8").split("\n\n")[:-1]:
        assert block.startswith("data: ") and "\n" not in block
        events.append(block[6:] if block == "data: [DONE]" else strict_json(block[6:]))
    return events


def strict_json(text: str | bytes) -> Any:
    """JSON without NaN and Infinity, which Python's parser would take."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"not JSON: {word}")

    return json.loads(text, parse_constant=refuse)


def check_error(response: httpx.Response, status: int = 400, param: str | None = None) -> dict[str, Any]:
    """The error object of an answer in OpenAI's shape."""
    assert response.status_code == status, response.text
    body = strict_json(response.content)
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
    assert isinstance(body["error"]["message"], str) and body["error"]["message"]
    if param is not None:
        assert body["error"]["param"] == param, body
    return body["error"]


@dataclass
class StreamedChoice:
    """One choice put together from its chunks."""

    text: str = ""
    finish_reason: str | None = None
    stop_reason: Any = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    lists: dict[str, list[Any]] = field(default_factory=dict)


def join_chunks(events: list[dict[str, Any]]) -> dict[int, StreamedChoice]:
    """The choices of a chat or completion stream, by index."""
    choices: dict[int, StreamedChoice] = {}
    for event in events:
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], StreamedChoice())
            assert choice.finish_reason is None, "a chunk after the finish reason"
            choice.text += part["text"] if "text" in part else part["delta"].get("content", "")
            choice.finish_reason = part["finish_reason"]
            choice.stop_reason = part.get("stop_reason")
            choice.token_ids += part.get("token_ids", [])
            logprobs = part.get("logprobs") or {}
            choice.logprobs += logprobs.get("content", [])
            for name, values in logprobs.items():
                if name not in ("content", "refusal"):
                    choice.lists.setdefault(name, []).extend(values)
    return choices


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine."""
    return asyncio.run(work)
