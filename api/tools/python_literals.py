"""Values written in Python's spelling, as JSON."""

import ast
import json

_JSON_WORDS = ("true", "false", "null")


def literal_json(text: str) -> str | None:
    """A Python literal as JSON; None if it is none, or has no JSON form."""
    if text in _JSON_WORDS:
        return text
    try:
        found = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        found.encode()
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return found
