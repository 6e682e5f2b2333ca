"""A light check that a tool's parameters are a JSON schema: what a slip of the hand gets wrong."""

from typing import Any

from ...core.errors import RequestError

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
MAX_DEPTH = 64


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises ``RequestError`` naming the place of what no JSON schema has. The root must allow an object."""
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise RequestError.at(f"{param}.type", "must be 'object': a function's arguments are an object")
    _check(schema, param, MAX_DEPTH)


def _check(schema: Any, param: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    _require(isinstance(schema, dict), "must be a JSON schema, an object", param)
    _require(depth > 0, f"is nested more than {MAX_DEPTH} deep", param)
    _check_type(schema.get("type"), f"{param}.type")
    required = schema.get("required", [])
    _require(
        isinstance(required, list) and all(isinstance(name, str) for name in required),
        "must be a list of names",
        f"{param}.required",
    )
    _require(isinstance(schema.get("enum", []), list), "must be a list of values", f"{param}.enum")
    _require(isinstance(schema.get("$ref", ""), str), "must be text", f"{param}.$ref")
    for key in _SCHEMAS_BY_NAME:
        inner = schema.get(key, {})
        _require(isinstance(inner, dict), "must be an object of schemas", f"{param}.{key}")
        for name, each in inner.items():
            _check(each, f"{param}.{key}.{name[:64]}", depth - 1)
    for key in _SCHEMA_LISTS:
        inner = schema.get(key, [])
        _require(isinstance(inner, list), "must be a list of schemas", f"{param}.{key}")
        for index, each in enumerate(inner):
            _check(each, f"{param}.{key}[{index}]", depth - 1)
    for key in _SCHEMAS:
        if key in schema:
            _check(schema[key], f"{param}.{key}", depth - 1)


def _check_type(kind: Any, param: str) -> None:
    kinds = kind if isinstance(kind, list) else [] if kind is None else [kind]
    for each in kinds:
        _require(
            isinstance(each, str) and each in _TYPES, f"must be one of {', '.join(sorted(_TYPES))}, not {each!r}", param
        )


def _require(fulfilled: bool, message: str, param: str) -> None:
    if not fulfilled:
        raise RequestError.at(param, message[:200])
