"""API keys: which requests need one, and the answer to those without.

Everything that is not listed as open needs a key, whatever path it is and whether or not the path exists: a second
spelling of a route can then never be a second door to it.
"""

import hashlib
import hmac
import logging
import os
from collections.abc import Iterable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ConfigurationError
from .protocol_answers import ErrorAnswer, ErrorBody

logger = logging.getLogger("octavo.api")

PROBE_PATHS = frozenset({"/health", "/live", "/ready"})
"""Paths that never need a key: load balancers and orchestrators have none."""
METRICS_PATH = "/metrics"
MESSAGES_PATH = "/v1/messages"
KEY_VARIABLE = "OCTAVO_API_KEY"

_Headers = Iterable[tuple[bytes, bytes]]


def keys_from_environment(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Keys in ``OCTAVO_API_KEY``, separated by spaces.

    Raises ``ConfigurationError`` if it is set but empty: a secret that was not filled in must not open the server.
    """
    text = environment.get(KEY_VARIABLE)
    if text is None:
        return []
    keys = text.split()
    if not keys:
        raise ConfigurationError(f"{KEY_VARIABLE} is set but empty; give it a key, or unset it to serve without keys")
    return keys


def check_keys(keys: list[str]) -> None:
    """Raises ``ConfigurationError`` for a key that no client could send. Never names the key."""
    for number, key in enumerate(keys, start=1):
        where = f"API key {number} of {len(keys)} (--api-key or {KEY_VARIABLE})"
        if not key:
            raise ConfigurationError(f"{where} is empty")
        if not all("!" <= character <= "~" for character in key):
            raise ConfigurationError(f"{where} must be printable ASCII without spaces: it travels in an HTTP header")


class ApiKeys:
    """The keys that open the server. Only their digests are kept."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def allow(self, headers: _Headers) -> bool:
        """True if any credential of the request is a key. Takes as long for a near miss as for a far one."""
        allowed = False
        for given in _credentials(headers):
            digest = _digest(given)
            for known in self._digests:
                allowed |= hmac.compare_digest(digest, known)
        return allowed


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _credentials(headers: _Headers) -> list[bytes]:
    """Keys of ``Authorization: Bearer KEY`` (OpenAI's clients) and ``X-Api-Key: KEY`` (Anthropic's)."""
    found = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                found.append(key.strip())
        elif name == b"x-api-key":
            found.append(value.strip())
    return found


def inner_path(path: str, root_path: str) -> str:
    """The path that routes are matched against: without the prefix of the reverse proxy, if it was left in."""
    root = root_path.rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


class KeyDoor:
    """ASGI layer that answers 401, in OpenAI's shape, to every request that needs a key and has none."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: frozenset[str], root_path: str = "") -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "http" and not self._is_open(scope) and not self._keys.allow(scope["headers"]):
            path = inner_path(scope["path"], self._root_path)
            logger.info("%s %r refused: 401, no key of the server's", scope["method"], path[:100])
            await _refusal(scope, path)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["method"] in ("GET", "HEAD") and inner_path(scope["path"], self._root_path) in self._open_paths


def _refusal(scope: Scope, path: str) -> Response:
    given = bool(_credentials(scope["headers"]))
    message = (
        "this API key is not one of the server's"
        if given
        else "an API key is needed: send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'"
    )
    # Anthropic's clients look for their own name of the error, and for the type beside it.
    messages = path.startswith(MESSAGES_PATH)
    kind = "authentication_error" if messages else "invalid_request_error"
    error = ErrorBody(message=message, type=kind, code="invalid_api_key")
    body = msgspec.json.encode({"type": "error", "error": error} if messages else ErrorAnswer(error))
    return Response(body, 401, {"www-authenticate": "Bearer"}, media_type="application/json")
