"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}}``."""

import msgspec
from starlette.responses import Response

from ...core.errors import RequestError
from ..error_answers import error_answer, error_response, error_status
from .protocol import MessageError, MessageErrorBody

_encode = msgspec.json.Encoder().encode
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

# Tells the official client to send whole conversations instead of counting on one that the server holds.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def message_error(error: Exception) -> MessageError:
    """The body for an error. This shape has no field for the parameter, so the message begins with it if need be."""
    told = error_answer(error).error
    message = told.message
    if told.param and told.param not in message:
        message = f"{told.param}: {message}"
    status = error_status(error)
    kind = _TYPES.get(status, "invalid_request_error" if isinstance(error, RequestError) else "api_error")
    details = _NO_THREADS if told.param == "thread" else msgspec.UNSET
    return MessageError(error=MessageErrorBody(kind, message, details))


def message_error_response(error: Exception) -> Response:
    """The whole HTTP answer for an error: status and headers as everywhere, the body in this shape."""
    response = error_response(error)
    body = _encode(message_error(error))
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return Response(body, response.status_code, headers)


def message_error_event(error: Exception) -> bytes:
    """The event that ends a stream."""
    return b"event: error\ndata: " + _encode(message_error(error)) + b"\n\n"
