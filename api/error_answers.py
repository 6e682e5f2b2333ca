"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``, from every route."""

import logging
from collections.abc import Callable

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ..core.errors import EngineError, OctavoError, OverloadedError, RequestError
from .errors import ClientGoneError, EngineLoadingError
from .protocol_answers import ErrorAnswer, ErrorBody
from .request_log import log_refusal

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_SHAPE = "octavo.error_shape"
_TYPES = {400: "invalid_request_error", 404: "not_found_error", 413: "invalid_request_error", 429: "rate_limit_error"}


def error_status(error: Exception) -> int:
    """The HTTP status of an error of ours; 500 for any other."""
    return error.status if isinstance(error, RequestError | EngineError) else 500


def error_answer(error: Exception) -> ErrorAnswer:
    """The body for an error of ours. Anything else is told as an internal error, its text kept for the log."""
    if isinstance(error, RequestError):
        kind = _TYPES.get(error.status, "invalid_request_error")
        return ErrorAnswer(ErrorBody(message=error.message, type=kind, param=error.param, code=error.code))
    if isinstance(error, EngineError) and error.code is not None:
        return ErrorAnswer(ErrorBody(message=str(error), type=error.kind, code=error.code))
    return ErrorAnswer(ErrorBody(message="internal error; the server's log has the details", type="server_error"))


def error_response(error: Exception) -> Response:
    """The whole HTTP answer for an error."""
    status = error_status(error)
    headers = {"retry-after": "1"} if isinstance(error, EngineLoadingError | OverloadedError) else None
    return Response(_encode(error_answer(error)), status, headers, media_type="application/json")


def shape_errors(scope: Scope, shape: Callable[[Exception], Response]) -> None:
    """Have the errors of this request answered in its dialect's shape, which ``shape`` gives them."""
    scope[_SHAPE] = shape


def shaped_error(scope: Scope, error: Exception) -> Response:
    """The whole HTTP answer for an error, in the shape of the request's dialect; in OpenAI's where that has none."""
    shape: Callable[[Exception], Response] = scope.get(_SHAPE, error_response)
    return shape(error)


def error_event(error: Exception) -> bytes:
    """The event that ends a stream."""
    return b"data: " + _encode(error_answer(error)) + b"\n\n"


def log_internal_error(error: Exception, what: str) -> None:
    """Log an error that is a fault of ours or of the engine. The traceback only shows at level DEBUG."""
    logger.error("%s: %s: %s", what, type(error).__name__, error)
    logger.debug("traceback of the error above", exc_info=error)


def handle_errors(app: FastAPI) -> None:
    """Have every error answered as it should be. What nobody expected is told without its details."""
    app.add_exception_handler(OctavoError, _handle_octavo_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_http_exception)
    app.add_exception_handler(ClientGoneError, _handle_client_gone)
    app.add_exception_handler(Exception, _handle_unexpected)


async def _handle_octavo_error(request: Request, error: Exception) -> Response:
    if error_status(error) == 500:
        log_internal_error(error, "a request failed")
    if isinstance(error, OctavoError):
        log_refusal(request.scope, error, error_status(error))
    return shaped_error(request.scope, error)


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """For the framework's own 404, 405 and the like."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    messages = {
        404: f"there is no {request.url.path} here; /docs lists every path",
        405: f"{request.url.path} does not take {request.method}; /docs lists the methods of each path",
    }
    detail = str(error.detail) if isinstance(error, HTTPException) else "the request is not valid"
    body = ErrorBody(message=messages.get(status, detail), type=_TYPES.get(status, "invalid_request_error"))
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(_encode(ErrorAnswer(body)), status, headers, media_type="application/json")


async def _handle_client_gone(_request: Request, _error: Exception) -> Response:
    """An answer for nobody (499 is the status proxies log for this)."""
    return Response(status_code=499)


async def _handle_unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours. ``RequestDoor`` gets it too, and logs it."""
    return shaped_error(request.scope, error)
