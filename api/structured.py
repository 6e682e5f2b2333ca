"""The shape that a request wants its answer in: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and its
older ``guided_*`` fields, all of them one ``StructuredOutputs``."""

from typing import TYPE_CHECKING, Any

import msgspec

from ..core.errors import RequestError
from ..core.grammar import PARAM, StructuredOutputs

if TYPE_CHECKING:
    from .protocol import SamplingFields

_GUIDED = {f"guided_{name}": name for name in ("json", "regex", "choice", "grammar")}
FORMAT_TYPES = ("text", "json_object", "json_schema", "structural_tag")


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A schema and its name. It is enforced whether or not ``strict`` is set."""

    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """``{"type": "text"}``, ``{"type": "json_object"}``, ``{"type": "json_schema", "json_schema": {...}}``, or
    ``{"type": "structural_tag", "structures": [...], "triggers": [...]}``."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: list[Any] | None = None
    triggers: list[str] | None = None

    def outputs(self) -> StructuredOutputs | None:
        """What it asks for; None for plain text. Raises ``RequestError``."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutputs(json_object=True)
        if self.type == "json_schema":
            if self.json_schema is None or self.json_schema.schema is None:
                raise RequestError("response_format of type json_schema needs json_schema.schema", "response_format")
            schema = self.json_schema.schema
            if not isinstance(schema, dict | bool):
                raise RequestError(f"a JSON schema must be an object or a boolean, not {type(schema).__name__}", PARAM)
            return StructuredOutputs(json=schema)
        if self.type == "structural_tag":
            return StructuredOutputs(
                structural_tag={"structures": self.structures or [], "triggers": self.triggers or []}
            )
        raise RequestError.at(
            "response_format.type", f"must be one of {', '.join(FORMAT_TYPES)}, not {self.type[:64]!r}"
        )


def structured_field(request: "SamplingFields") -> str:
    """The field that says what shape the answer must have, for the ``param`` of an error."""
    given = _given(request)
    return given[0] if given else PARAM


def structured_outputs(request: "SamplingFields") -> StructuredOutputs | None:
    """The shape that the answer must have. Raises ``RequestError`` if more than one is asked for."""
    given = _given(request)
    if not given:
        return None
    if len(given) > 1:
        raise RequestError(f"only one constraint can be given, not {' and '.join(given)}", PARAM)
    name = given[0]
    if name == "response_format" and request.response_format is not None:
        return request.response_format.outputs()
    if name in _GUIDED:
        return StructuredOutputs(**{_GUIDED[name]: getattr(request, name)})
    return request.structured_outputs


def _given(request: "SamplingFields") -> list[str]:
    names = []
    if request.response_format is not None and request.response_format.type != "text":
        names.append("response_format")
    # An empty object asks for nothing, as it does elsewhere.
    if request.structured_outputs is not None and request.structured_outputs != StructuredOutputs():
        names.append("structured_outputs")
    return names + [name for name in _GUIDED if getattr(request, name) is not None]
