"""Tools for chat templates that know none: the system message describes them, and earlier calls become text.

The words and the markup are Hermes', which most models have seen in training.
"""

import json
from typing import Any

_INTRODUCTION = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def messages_with_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a template without calls: those become text, and their results a user's message.

    A ``tool`` message that answers no call stays as it is.
    """
    adapted: list[dict[str, Any]] = []
    called = False
    results: dict[str, Any] | None = None
    for message in messages:
        if message.get("role") == "tool" and called:
            text = f"<tool_response>\n{message.get('content', '')}\n</tool_response>"
            if results is None:
                results = {"role": "user", "content": text}
                adapted.append(results)
            else:
                # One message for all results in a row: some templates want roles to alternate.
                results["content"] += "\n" + text
            continue
        results = None
        calls = message.get("role") == "assistant" and bool(message.get("tool_calls"))
        called = called or calls
        adapted.append(_without_calls(message) if calls else message)
    return adapted


def _without_calls(message: dict[str, Any]) -> dict[str, Any]:
    texts = [message["content"]] if message.get("content") else []
    for call in message["tool_calls"]:
        function = call["function"]
        given = function.get("arguments") or {}
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        texts.append(f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>')
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": "\n".join(texts)}


def messages_with_tools(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a description of the tools in the system message."""
    text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [first | {"content": first["content"] + "\n\n" + text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
