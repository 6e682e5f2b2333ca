"""JSON schemas in the form that can be enforced to the letter, or the reason why one cannot.

The grammar library refuses most of what it cannot enforce by itself, naming the keyword. Here is the rest: keywords
that it would enforce only in part, found by comparing its output with an independent validator.
"""

import math
from typing import Any

from .errors import RequestError

MAX_DEPTH = 100
MAX_MULTIPLE = 10_000
"""Largest ``multipleOf``: the automaton that divides has a state for every remainder."""

MAX_OPTIONAL_PROPERTIES = 2000
"""Of one object. While its names can come, each costs the parser four items in every step."""

_PARAM = "structured_outputs"

_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS = (
    "items additionalItems additionalProperties contains propertyNames not if then else unevaluatedItems "
    "unevaluatedProperties"
).split()

_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|{_YEAR}-(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|{_YEAR}-02-(0[1-9]|1[0-9]|2[0-8])|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"({_CLOCK}:[0-5][0-9]([.][0-9]{{1,6}})?(Z|[+-]{_CLOCK}))"

_FORMAT_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""RFC 3339, with the days that each month has and without leap seconds, which few readers take."""

_FORMATS = frozenset({*_FORMAT_PATTERNS, "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown"})


def enforceable_schema(schema: Any) -> Any:
    """The same schema in other words where the library needs them.

    Raises ``RequestError`` naming the keyword that cannot be enforced, wherever it stands in the schema.
    """
    if schema is True:
        return {}
    if schema is False:
        raise RequestError("the JSON schema false is satisfied by nothing", _PARAM)
    if not isinstance(schema, dict):
        raise RequestError(f"a JSON schema must be an object or a boolean, not {type(schema).__name__}", _PARAM)
    return _rewritten(schema, 0)


def _rewritten(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema  # a boolean, or wrong: the library says what it expects
    if depth > MAX_DEPTH:
        raise RequestError(f"the JSON schema is nested deeper than {MAX_DEPTH} levels", _PARAM)
    _check_keywords(schema)
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "uniqueItems" and value is False:
            continue  # asks for nothing, but the library refuses the word
        if key in _LISTS_OF_SCHEMAS or (key == "items" and isinstance(value, list)):
            parts = value if isinstance(value, list) else []
            result[key] = [_rewritten(part, depth + 1) for part in parts] if parts else value
        elif key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            result[key] = {name: _rewritten(part, depth + 1) for name, part in value.items()}
        elif key in _SCHEMAS:
            result[key] = _rewritten(value, depth + 1)
        else:
            result[key] = value
    return _with_exact_format(result)


def _check_keywords(schema: dict[str, Any]) -> None:
    if "x-guidance" in schema:
        raise _cannot("x-guidance", "it would loosen the rules of the schema")
    multiple = schema.get("multipleOf")
    if isinstance(multiple, int | float) and not isinstance(multiple, bool):
        _check_multiple(multiple, schema.get("type"))
    least, required = schema.get("minProperties"), schema.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and least > len(required):
        # The same name can come twice, and counts once for whoever reads the object.
        raise _cannot("minProperties", f"it is {least}, and only {len(required)} properties are required by name")
    properties = schema.get("properties")
    if isinstance(properties, dict) and isinstance(required, list):
        optional = len(properties.keys() - {name for name in required if isinstance(name, str)})
        if optional > MAX_OPTIONAL_PROPERTIES:
            raise _cannot("properties", f"{optional} are not required; at most {MAX_OPTIONAL_PROPERTIES} may be")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise RequestError(f"pattern: {pattern[:100]!r} ends with a backslash that escapes nothing", _PARAM)
    form = schema.get("format")
    if isinstance(form, str) and form not in _FORMATS:
        raise _cannot("format", f"{form[:100]!r} is none of {', '.join(sorted(_FORMATS))}")


def _check_multiple(multiple: float, kind: Any) -> None:
    """Readers divide in binary floating point, where 0.28 is no multiple of 0.01; what is exact there is allowed."""
    kinds = kind if isinstance(kind, list) else [kind]
    integers_only = "integer" in kinds and "number" not in kinds
    if not 0 < multiple <= MAX_MULTIPLE:
        raise _cannot("multipleOf", f"{multiple} is not above 0 and at most {MAX_MULTIPLE}")
    if not (integers_only and multiple == int(multiple)) and math.frexp(multiple)[0] != 0.5:
        raise _cannot("multipleOf", f"{multiple} is exact only for type integer; for numbers use a power of two")


def _with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Dates and times by a pattern of our own: the library takes February 29th of any year."""
    form = schema.get("format")
    pattern = _FORMAT_PATTERNS.get(form) if isinstance(form, str) else None
    if pattern is None:
        return schema
    schema = {key: value for key, value in schema.items() if key != "format"}
    if "pattern" not in schema:
        return schema | {"pattern": pattern}
    others = schema.get("allOf", [])
    return schema | {"allOf": [*others, {"pattern": pattern}]} if isinstance(others, list) else schema


def _cannot(keyword: str, reason: str) -> RequestError:
    return RequestError(f"the JSON schema keyword {keyword} cannot be enforced here: {reason}", _PARAM)
