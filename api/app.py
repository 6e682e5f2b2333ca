"""The ASGI application: routes, error shapes and request ids."""

import uuid
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from .auth import METRICS_PATH, PROBE_PATHS, ApiKeys, KeyDoor, inner_path
from .context import ServerContext, usable_request_id
from .docs_page import docs_page
from .error_answers import error_response, handle_errors, log_internal_error
from .generation_endpoints import GenerationEndpoints
from .messages.endpoints import MessagesEndpoints
from .metrics import Metrics
from .openapi import Route, component_schemas, describe_keys
from .pooling_endpoints import PoolingEndpoints
from .responses.endpoints import ResponsesEndpoints
from .server_args import ServerArgs
from .service_endpoints import ServiceEndpoints
from .streaming import SERVER_SEND
from .tracing import TRACING, Tracing


def build_app(context: ServerContext, metrics: Metrics, tracing: Tracing | None = None) -> ASGIApp:
    """The whole application for one engine: CORS, then request ids, then keys, then the routes."""
    app = FastAPI(
        title="Octavo",
        version=__version__,
        redirect_slashes=False,
        # FastAPI's own pages load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    generation = GenerationEndpoints(context)
    routes = [
        *generation.routes,
        *ServiceEndpoints(context, metrics).routes,
        *ResponsesEndpoints(context, generation).routes,
        *MessagesEndpoints(context, generation).routes,
        *PoolingEndpoints(context).routes,
    ]
    for route in routes:
        _add_route(app, route)
    handle_errors(app)
    _use_struct_schemas(app, routes, bool(context.args.api_key))
    _add_docs(app)
    door = RequestDoor(_keyed(app, context.args), metrics, tracing, context.args.root_path)
    return _cors(door, context.args)


def _add_route(app: FastAPI, route: Route) -> None:
    # No response model: handlers return encoded answers, and FastAPI must not build them once more. The bare response
    # class keeps FastAPI from promising JSON where the answer is something else.
    app.add_api_route(
        route.path,
        route.handler,
        methods=[route.method],
        response_model=None,
        response_class=Response,
        openapi_extra=route.operation(),
    )
    if route.method == "GET":
        app.add_api_route(route.path, route.handler, methods=["HEAD"], response_model=None, include_in_schema=False)


def _keyed(app: ASGIApp, args: ServerArgs) -> ASGIApp:
    keys = ApiKeys(args.api_key)
    open_paths = PROBE_PATHS | {METRICS_PATH} if args.metrics_without_key else PROBE_PATHS
    return KeyDoor(app, keys, open_paths, args.root_path) if keys else app


def _cors(app: ASGIApp, args: ServerArgs) -> ASGIApp:
    """Outside of the keys: a browser's preflight request carries none, and a page must be able to read a 401."""
    if not args.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=args.allowed_origins,
        allow_methods=args.allowed_methods,
        allow_headers=args.allowed_headers,
        allow_credentials=args.allow_credentials,
        expose_headers=["x-request-id", "request-id", "x-octavo-ignored-fields", "retry-after"],
    )


def _add_docs(app: FastAPI) -> None:
    async def docs(_request: Request) -> Response:
        return docs_page(app.openapi())

    app.add_api_route("/docs", docs, methods=["GET", "HEAD"], response_model=None, include_in_schema=False)


def _use_struct_schemas(app: FastAPI, routes: list[Route], keyed: bool) -> None:
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        document.setdefault("components", {})["schemas"] = component_schemas(routes)
        for path in document["paths"].values():
            for operation in path.values():
                # FastAPI adds its own 422 to every route with parameters; here all of those are 400.
                operation["responses"].pop("422", None)
        if keyed:
            describe_keys(document, PROBE_PATHS)
        return document

    app.openapi = openapi


class RequestDoor:
    """Gives every request an id, counts refusals, and turns what nobody caught into a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing | None = None, root_path: str = "") -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        own_id = None if given is None else usable_request_id(given.decode("latin-1"))
        scope["octavo.request_id"] = own_id
        scope[TRACING] = self._tracing
        scope[SERVER_SEND] = send
        if self._root_path:
            scope["root_path"] = self._root_path
        probe = inner_path(scope["path"], self._root_path) in PROBE_PATHS
        request_id = (own_id or uuid.uuid4().hex).encode("latin-1")
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if not probe:
                    self._metrics.record_status(message["status"])
                # The second is where Anthropic's client looks.
                ids = [(b"x-request-id", request_id), (b"request-id", request_id)]
                message["headers"] = [*message["headers"], *ids]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log_internal_error(error, f"unexpected error in {scope['method']} {scope['path']!r}")
            if not started:
                await error_response(error)(scope, receive, send_with_id)
