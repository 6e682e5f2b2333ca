"""The part of a JSON schema that every grammar can enforce.

A function whose definition is not ``strict`` promises less: where its whole schema cannot be enforced, its arguments
still get the right names and types.
"""

from typing import Any

_KEPT = frozenset({"type", "required", "enum", "const", "$ref", "additionalProperties"})
_SCHEMAS_BY_NAME = ("properties", "$defs", "definitions")


def loosened(schema: Any) -> Any:
    """The schema without keywords beyond types, names and alternatives. Whatever satisfies the schema satisfies it."""
    if not isinstance(schema, dict):
        return schema
    loose = {key: value for key, value in schema.items() if key in _KEPT}
    for key in _SCHEMAS_BY_NAME:
        if key in schema:
            loose[key] = {name: loosened(each) for name, each in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict | bool):
            loose[key] = loosened(schema[key])
    if isinstance(schema.get("prefixItems"), list):
        # Without them, the rule for the items behind them would hold for all.
        loose["prefixItems"] = [loosened(each) for each in schema["prefixItems"]]
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        loose["anyOf"] = [loosened(each) for each in alternatives]
    if schema.get("patternProperties"):
        # Names that only a pattern allows would be ruled out by the properties alone.
        loose.pop("additionalProperties", None)
    return loose
