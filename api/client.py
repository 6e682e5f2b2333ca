"""A small client of an OpenAI-compatible server, for the terminal commands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from ..core.errors import OctavoError
from .config_file import UsageError

DEFAULT_URL = "http://127.0.0.1:8000"


class ServerAnswerError(OctavoError):
    """The server cannot be reached, or answered with an error. The message says which, and what to try."""


@dataclass(slots=True)
class StreamUsage:
    """Token counts that the server reports at the end of a stream."""

    prompt_tokens: int
    completion_tokens: int


class ServerClient:
    """Talks to the server at ``url`` (with or without a final ``/v1``); every method raises ``ServerAnswerError``."""

    def __init__(self, url: str = DEFAULT_URL, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # Proxies from the environment are for the world outside; a model server is most often this machine.
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=httpx.Timeout(timeout, connect=5.0), trust_env=False
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> "ServerClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        try:
            response = self._http.get("/v1/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise ServerAnswerError(f"{self.url} answered {response.status_code}: {_message(response.content)}")
        try:
            return [model["id"] for model in msgspec.json.decode(response.content)["data"]]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ServerAnswerError(f"{self.url} does not answer like an OpenAI-compatible server") from error

    def first_model(self) -> str:
        """The first of them. Raises ``UsageError`` if there is none."""
        models = self.models()
        if not models:
            raise UsageError(f"{self.url} offers no model; name one with --model")
        return models[0]

    def stream_chat(self, messages: list[dict[str, str]], **parameters: Any) -> Iterator[str | StreamUsage]:
        """Yields the answer's text piece by piece, then the usage if the server tells it."""
        return self._pieces("/v1/chat/completions", {"messages": messages, **parameters})

    def stream_completion(self, prompt: str, **parameters: Any) -> Iterator[str | StreamUsage]:
        """Yields the continuation of ``prompt`` piece by piece, then the usage if the server tells it."""
        return self._pieces("/v1/completions", {"prompt": prompt, **parameters})

    def _pieces(self, path: str, body: dict[str, Any]) -> Iterator[str | StreamUsage]:
        for event in self._stream(path, body):
            yield from event_texts(event)
            usage = event.get("usage")
            if usage:
                yield StreamUsage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        body = {key: value for key, value in body.items() if value is not None}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    text = _message(response.read())
                    raise ServerAnswerError(f"{self.url} answered {response.status_code}: {text}")
                yield from _events(_lines(response.iter_bytes()))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ServerAnswerError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerAnswerError(
                f"no server answers at {self.url}; start one with 'octavo serve', or name another with --url"
            )
        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            return ServerAnswerError(f"--url {self.url!r} is not an address; write it like {DEFAULT_URL}")
        if isinstance(error, httpx.TimeoutException):
            return ServerAnswerError(f"{self.url} gave no answer in time")
        return ServerAnswerError(f"the connection to {self.url} broke: {error or type(error).__name__}")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines that end at CR and LF alone: those of httpx also end at U+2028, which JSON may hold as it is."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        yield from lines
    yield rest


def _events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON events of a server-sent stream, up to ``[DONE]``. An error event raises ``ServerAnswerError``."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ServerAnswerError(f"the server sent what is no event: {_message(data)}") from error
        if event.get("error"):
            raise ServerAnswerError(f"the server ended the stream: {_message(data)}")
        yield event


def event_texts(event: dict[str, Any]) -> Iterator[str]:
    """The pieces of text in one event of a stream of either kind."""
    for choice in event.get("choices") or ():
        text = choice.get("text") or (choice.get("delta") or {}).get("content")
        if text:
            yield text


def _message(content: bytes) -> str:
    """The message of an error body in OpenAI's shape, or the start of whatever it is."""
    try:
        return str(msgspec.json.decode(content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace") or "(empty body)"
