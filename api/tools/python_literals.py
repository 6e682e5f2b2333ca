"""Values written in Python's spelling, as JSON."""

import ast
import json
import re

TRIPLE_QUOTES = ("'''", '"""')
_JSON_WORDS = ("true", "false", "null")
_TOKEN = re.compile(r"'''|\"\"\"|['\"]|\\.|[\x00-\x1f]", re.DOTALL)


def literal_json(text: str) -> str | None:
    """A Python literal as JSON; None if it is none, or has no JSON form."""
    if text in _JSON_WORDS:
        return text
    try:
        found = json.dumps(ast.literal_eval(_escaped(text)), ensure_ascii=False, allow_nan=False)
        found.encode()
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return found


def quote_behind(mark: str, quote: str) -> str:
    """The quote that is open behind the quotation mark ``mark``, where ``quote`` is open before it; empty if none."""
    if not quote:
        return mark
    return "" if mark.startswith(quote) else quote


def _escaped(text: str) -> str:
    """The same with escapes for control characters within strings: models write plain line breaks, Python has none."""
    quote = ""

    def escape(found: re.Match[str]) -> str:
        nonlocal quote
        token = found.group()
        if token[0] in "'\"":
            quote = quote_behind(token, quote)
        return f"\\x{ord(token):02x}" if quote and token < " " else token

    return _TOKEN.sub(escape, text)
