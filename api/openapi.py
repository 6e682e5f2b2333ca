"""The OpenAPI document: schemas come from the very Structs that decode the requests and encode the answers."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .fields import EndpointFields
from .protocol_answers import ErrorAnswer

_REFERENCE = "#/components/schemas/{name}"


@dataclass(frozen=True)
class RouteSchema:
    """Body and answer of one route."""

    answer: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    fields: EndpointFields | None = None
    errors: tuple[int, ...] = field(default=())
    error: type[msgspec.Struct] = ErrorAnswer
    """The dialect's shape of an error."""
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
        if self.body is not None:
            body = {"application/json": {"schema": _reference(self.body)}}
            operation["requestBody"] = {"required": True, "content": body}
        if self.fields is not None and self.fields.refused:
            operation["description"] = "Known but not offered: " + ", ".join(sorted(self.fields.refused)) + "."
        return operation


_STATUS = {
    400: "The request cannot be served as asked; param names the field.",
    401: "An API key is needed, and the request has none of the server's.",
    404: "The model is not served here.",
    413: "The body is over the limit.",
    429: "Too many requests are waiting; Retry-After says when to come back.",
    503: "The model is being loaded, or the server is stopping.",
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


def component_schemas(routes: list[RouteSchema]) -> dict[str, Any]:
    """The schemas that the routes refer to, by name."""
    types = {part for route in routes for part in (route.answer, route.body, route.error) if part is not None}
    ordered = sorted(types | {ErrorAnswer}, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    return components
