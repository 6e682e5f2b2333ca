"""Chat answers with calls and reasoning: streamed and plain, which must be the same."""

from typing import Any

from stub_app import CHAT, HI, StubApp, run, strict_json
from stub_engine import StubEngine

SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}, "level": {"type": "integer"}}}
LAMP = {"type": "function", "function": {"name": "set_lamp", "description": "Sets it.", "parameters": SCHEMA}}
ROOMS = {"type": "function", "function": {"name": "list_rooms"}}
TOOLS = [LAMP, ROOMS]
NAMED = {"type": "function", "function": {"name": "set_lamp"}}
CALL = '<tool_call>\n{"name": "set_lamp", "arguments": {"room": "attic \\"A\\"", "level": 3}}\n</tool_call>'
ARGUMENTS = {"room": 'attic "A"', "level": 3}


def streamed(app: StubApp, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Each choice of a stream put together as a client does it, in the shape of the plain answer's choices."""
    choices: dict[int, dict[str, Any]] = {}
    for event in run(app.events(CHAT, body)):
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"message": {"content": ""}, "finish_reason": None})
            assert choice["finish_reason"] is None
            choice["finish_reason"] = part["finish_reason"]
            delta = part["delta"]
            choice["message"]["content"] += delta.get("content") or ""
            for name in ("reasoning_content", "reasoning"):
                if name in delta:
                    choice["message"][name] = choice["message"].get(name, "") + delta[name]
            add_calls(choice["message"], delta.get("tool_calls", []))
    return [choices[index] for index in sorted(choices)]


def add_calls(message: dict[str, Any], deltas: list[dict[str, Any]]) -> None:
    """Add pieces of calls. Id, type and name come once each, with the first piece."""
    for delta in deltas:
        calls = message.setdefault("tool_calls", [])
        if delta["index"] == len(calls):
            assert delta["id"] and delta["type"] == "function" and delta["function"]["name"]
            calls.append({"function": {"name": delta["function"]["name"], "arguments": ""}})
        else:
            assert delta["index"] == len(calls) - 1
            assert delta.keys() == {"index", "function"} and delta["function"].keys() == {"arguments"}
        calls[-1]["function"]["arguments"] += delta["function"]["arguments"]


def both(engine: StubEngine, args: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
    """The choices of the plain answer, which are those of the stream."""
    app = StubApp(engine, **(args or {}))
    body = {"messages": HI, **fields}
    response = run(app.post(CHAT, body))
    assert response.status_code == 200, response.text
    plain = strict_json(response.content)["choices"]
    for ours, theirs in zip(streamed(app, body), plain, strict=True):
        message = theirs["message"]
        assert ours["finish_reason"] == theirs["finish_reason"]
        assert ours["message"]["content"] == (message["content"] or "")
        assert [call["function"] for call in ours["message"].get("tool_calls", [])] == [
            call["function"] for call in message.get("tool_calls", [])
        ]
        assert ours["message"].get("reasoning_content") == message.get("reasoning_content")
        assert ours["message"].get("reasoning") == message.get("reasoning")
        if theirs["finish_reason"] == "tool_calls":
            assert message["tool_calls"]
    return plain
