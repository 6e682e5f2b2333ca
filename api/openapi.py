"""The OpenAPI document: schemas come from the very Structs that decode the requests and encode the answers."""

from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .fields import EndpointFields
from .protocol_answers import ErrorAnswer

_REFERENCE = "#/components/schemas/{name}"


Handler = Callable[[Request], Coroutine[Any, Any, Response]]

BODY_ERRORS = (400, 404, 413)
"""What a route with a body may answer."""
GENERATION_ERRORS = (400, 404, 413, 429, 503)
"""What a route that needs the engine may answer."""


@dataclass(frozen=True)
class Route:
    """One path with one method: its handler, and what the document says of its body and answers."""

    method: str
    path: str
    handler: Handler
    answer: type[msgspec.Struct] | None = None
    fields: EndpointFields[msgspec.Struct] | None = None
    """Those of its body, if it takes one."""
    errors: tuple[int, ...] = ()
    error: type[msgspec.Struct] = ErrorAnswer
    """The dialect's shape of an error."""
    streams: bool = False
    text: str | None = None
    """The media type of an answer that is no JSON."""

    def operation(self) -> dict[str, Any]:
        """The part of the document that describes this route."""
        content: dict[str, Any] = {}
        if self.answer is not None:
            content["application/json"] = {"schema": _reference(self.answer)}
        if self.text is not None:
            content[self.text] = {"schema": {"type": "string"}}
        if self.streams:
            # No type: tools read this schema as that of the whole text, or of one event.
            content["text/event-stream"] = {"schema": {"description": "The answer as server-sent events."}}
        responses: dict[str, Any] = {"200": {"description": "The answer", "content": content}}
        for status in self.errors:
            error = {"application/json": {"schema": _reference(self.error)}}
            responses[str(status)] = {"description": _STATUS[status], "content": error}
        operation: dict[str, Any] = {"responses": responses}
        if self.fields is not None:
            body = {"application/json": {"schema": _reference(self.fields.request_type)}}
            operation["requestBody"] = {"required": True, "content": body}
            if self.fields.refused:
                operation["description"] = "Known but not offered: " + ", ".join(sorted(self.fields.refused)) + "."
        return operation

    @property
    def structs(self) -> set[type[msgspec.Struct]]:
        """Those that the description refers to."""
        body = None if self.fields is None else self.fields.request_type
        return {struct for struct in (self.answer, body, self.error) if struct is not None}


_STATUS = {
    400: "The request cannot be served as asked; param names the field.",
    401: "An API key is needed, and the request has none of the server's.",
    404: "The model is not served here.",
    413: "The body is over the limit.",
    429: "Too many requests are waiting; Retry-After says when to come back.",
    503: "The model is being loaded, its engine is being replaced or is dead, or the server is stopping.",
}


def describe_keys(document: dict[str, Any], open_paths: Collection[str]) -> None:
    """Add to an OpenAPI document that every path but ``open_paths`` needs a key, in one of two headers."""
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    }
    refusal = {"description": _STATUS[401], "content": {"application/json": {"schema": _reference(ErrorAnswer)}}}
    for path, operations in document["paths"].items():
        if path not in open_paths:
            for operation in operations.values():
                operation["security"] = [{"bearer": []}, {"header": []}]
                operation["responses"]["401"] = refusal


def _reference(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=struct.__name__)}


def component_schemas(routes: Iterable[Route]) -> dict[str, Any]:
    """The schemas that the routes refer to, by name."""
    types = {ErrorAnswer}.union(*(route.structs for route in routes))
    ordered = sorted(types, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    return components
