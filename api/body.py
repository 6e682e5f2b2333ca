"""Reading a request body: size limit, JSON, types, fields. Whatever is wrong is a ``RequestError`` naming the field."""

import logging
import re
from typing import Generic, TypeVar

import msgspec
from starlette.requests import Request

from ..core.errors import BodyTooLargeError, RequestError
from .errors import ClientGoneError
from .fields import IGNORED_FIELDS_HEADER, EndpointFields, FieldCheck

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


class BodyParser(Generic[T]):
    """Parses the bodies of one endpoint. ``limit`` is in bytes."""

    def __init__(self, fields: EndpointFields[T], limit: int, strict: bool) -> None:
        self._names = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._decoder = msgspec.json.Decoder(fields.request_type)
        self._check = FieldCheck(fields, strict)
        self._limit = limit

    async def parse(self, request: Request) -> tuple[T, dict[str, str]]:
        """What the body of an HTTP request asks for, and the response header that names ignored fields, if any are.

        Raises ``RequestError``, ``BodyTooLargeError``.
        """
        asked, ignored = self._decode(await read_body(request, self._limit))
        if not ignored:
            return asked, {}
        names = ", ".join(ignored)
        logger.warning("%s: ignored unknown fields: %s", request.url.path, names)
        return asked, {IGNORED_FIELDS_HEADER: names}

    def _decode(self, body: bytes) -> tuple[T, list[str]]:
        """What a whole body asks for, and its unknown fields, made safe for headers and logs."""
        try:
            ignored = self._check.check(self._names.decode(body))
            return self._decoder.decode(body), ignored
        except msgspec.ValidationError as error:
            raise _type_error(error) from error
        except msgspec.DecodeError as error:
            raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error
        except RecursionError as error:
            raise RequestError("the body is nested too deeply", code="invalid_json") from error


def _type_error(error: msgspec.ValidationError) -> RequestError:
    message = str(error)
    found = _PATH.search(message)
    path = found.group(1) if found else ""
    missing = _MISSING.search(message)
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return RequestError(f"{path} is required", path, code="missing_required_parameter")
    reason = message[: found.start()] if found else message
    reason = reason[:1].lower() + reason[1:]
    return RequestError(f"{path or 'the body'}: {reason}", path or None, code="invalid_type")


async def read_body(request: Request, limit: int) -> bytes:
    """The body, at most ``limit`` bytes. Counts while reading, since Content-Length may be absent.

    Raises ``BodyTooLargeError``; ``ClientGoneError`` if the connection closes first.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(f"Content-Encoding {encoding[:32]!r} is not supported; send the body uncompressed")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise BodyTooLargeError(f"the body has {declared[:32]} bytes; the limit is {limit} (--max-body-bytes)")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(f"the body has more than {limit} bytes, the limit (--max-body-bytes)")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
