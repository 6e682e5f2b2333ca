"""The ASGI application: routes, error shapes and request ids."""

import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..core.errors import OctavoError
from .context import ServerContext, usable_request_id
from .error_answers import (
    error_response,
    handle_client_gone,
    handle_http_exception,
    handle_octavo_error,
    log_internal_error,
)
from .errors import ClientGoneError
from .fields import CHAT_FIELDS, COMPLETION_FIELDS, DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from .generation_endpoints import GenerationEndpoints
from .metrics import Metrics
from .openapi import RouteSchema, component_schemas
from .protocol import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .protocol_answers import ChatCompletion, Completion, DetokenizeAnswer, ModelCard, ModelList, TokenizeAnswer
from .service_endpoints import ServiceEndpoints

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_GENERATION_ERRORS = (400, 404, 413, 503)


def build_app(context: ServerContext, metrics: Metrics) -> ASGIApp:
    """The whole application for one engine."""
    app = FastAPI(title="Octavo", version=__version__, root_path=context.args.root_path, redirect_slashes=False)
    schemas: list[RouteSchema] = []

    def add(method: str, path: str, handler: Handler, schema: RouteSchema) -> None:
        schemas.append(schema)
        # No response model: handlers return encoded answers, and FastAPI must not build them once more.
        app.add_api_route(path, handler, methods=[method], response_model=None, openapi_extra=schema.operation())
        if method == "GET":
            app.add_api_route(path, handler, methods=["HEAD"], response_model=None, include_in_schema=False)

    _add_routes(add, GenerationEndpoints(context), ServiceEndpoints(context, metrics))
    app.add_exception_handler(OctavoError, handle_octavo_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(RequestValidationError, handle_http_exception)
    app.add_exception_handler(ClientGoneError, handle_client_gone)
    _use_struct_schemas(app, schemas)
    return RequestDoor(app)


def _add_routes(
    add: Callable[[str, str, Handler, RouteSchema], None],
    generation: GenerationEndpoints,
    service: ServiceEndpoints,
) -> None:
    add(
        "POST",
        "/v1/chat/completions",
        generation.chat_completions,
        RouteSchema(ChatCompletion, ChatCompletionRequest, True, CHAT_FIELDS, _GENERATION_ERRORS),
    )
    add(
        "POST",
        "/v1/completions",
        generation.completions,
        RouteSchema(Completion, CompletionRequest, True, COMPLETION_FIELDS, _GENERATION_ERRORS),
    )
    add("GET", "/v1/models", service.models, RouteSchema(ModelList))
    add("GET", "/v1/models/{model_id:path}", service.model, RouteSchema(ModelCard, errors=(404,)))
    add(
        "POST",
        "/tokenize",
        service.tokenize,
        RouteSchema(TokenizeAnswer, TokenizeRequest, fields=TOKENIZE_FIELDS, errors=(400, 404, 413)),
    )
    add(
        "POST",
        "/detokenize",
        service.detokenize,
        RouteSchema(DetokenizeAnswer, DetokenizeRequest, fields=DETOKENIZE_FIELDS, errors=(400, 404, 413)),
    )
    add("GET", "/health", service.health, RouteSchema())
    add("GET", "/version", service.version, RouteSchema())
    add("GET", "/metrics", service.metrics, RouteSchema())


def _use_struct_schemas(app: FastAPI, schemas: list[RouteSchema]) -> None:
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        document.setdefault("components", {})["schemas"] = component_schemas(schemas)
        for path in document["paths"].values():
            for operation in path.values():
                # FastAPI adds its own 422 to every route with parameters; here all of those are 400.
                operation["responses"].pop("422", None)
        return document

    app.openapi = openapi


class RequestDoor:
    """Outermost layer: gives every request an id, and turns what nobody caught into a plain 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        own_id = None if given is None else usable_request_id(given.decode("latin-1"))
        scope["octavo.request_id"] = own_id
        request_id = own_id or uuid.uuid4().hex
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("latin-1"))]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log_internal_error(error, f"unexpected error in {scope['method']} {scope['path']}")
            if not started:
                await error_response(error)(scope, receive, send_with_id)
