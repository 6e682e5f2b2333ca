"""``/docs``: the OpenAPI document as one plain page. No script, nothing loaded from elsewhere, so it works offline."""

from html import escape
from typing import Any

from starlette.responses import Response

_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "cache-control": "no-cache"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h2 { font-size: 1.1rem; margin-top: 2rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h2 b { color: #0a5; } h3 { margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
td { text-align: left; vertical-align: top; padding: .2rem .6rem; }
tr:nth-child(even) { background: #f4f4f4; } code { font-size: .9em; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e4e4e4; } tr:nth-child(even) { background: #22252b; } a { color: #8bf; }
}
"""


def docs_page(document: dict[str, Any]) -> Response:
    """The page of an OpenAPI document."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    parts = [f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"]
    # Relative, so that it also works behind a proxy's prefix.
    parts.append(f"</head><body><h1>{title}</h1><p>The same as JSON: <a href='openapi.json'>openapi.json</a></p>")
    for path, operations in document["paths"].items():
        parts += [_operation(path, method, operation) for method, operation in operations.items()]
    parts.append("<h2>Schemas</h2>")
    parts += [_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
    parts.append("</body></html>")
    return Response("".join(parts), headers=_HEADERS, media_type="text/html")


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2>"]
    if operation.get("description"):
        lines.append(f"<p>{escape(operation['description'])}</p>")
    body = operation.get("requestBody", {}).get("content", {})
    lines += [f"<p>Body: {_type(content.get('schema', {}))}</p>" for content in body.values()]
    rows = []
    for status, response in operation["responses"].items():
        kinds = [
            f"{_type(content.get('schema', {}))} <code>{escape(media)}</code>"
            for media, content in response.get("content", {}).items()
        ]
        rows.append(f"<tr><td>{escape(status)}<td>{escape(response['description'])}<td>{'<br>'.join(kinds)}")
    return "".join(lines) + f"<table>{''.join(rows)}</table>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        f"<tr><td><code>{escape(field)}</code>{' (required)' if field in required else ''}"
        f"<td>{_type(kind)}<td>{escape(str(kind.get('description', '')))}"
        for field, kind in schema.get("properties", {}).items()
    ]
    text = escape(schema.get("description", ""))
    return f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{text}</p><table>{''.join(rows)}</table>"


def _type(schema: dict[str, Any]) -> str:
    """A short text for a type, with links to the schemas it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        return f"<a href='#{name}'>{name}</a>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(kind) for kind in schema[several])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    values = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(values, dict) and values:
        return f"object of {_type(values)}"
    return escape(str(schema.get("type", "any")))
