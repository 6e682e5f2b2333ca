"""Streams whose events have names (Responses, Anthropic Messages), read strictly."""

from typing import Any

from stub_app import StubApp, run, strict_json


def named_events(content: bytes) -> list[dict[str, Any]]:
    """The JSON events of a stream; each block must be a name and data of that type."""
    assert content.endswith(b"\n\n")
    events = []
    for block in content.decode("utf-8").split("\n\n")[:-1]:
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        event = strict_json(data[6:])
        assert event["type"] == name[7:]
        events.append(event)
    return events


def stream_of(app: StubApp, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that must succeed."""
    response = run(app.post(path, body | {"stream": True}))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return named_events(response.content)


def plain_of(app: StubApp, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The plain answer to a request that must succeed."""
    response = run(app.post(path, body))
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def prompt_text(app: StubApp, index: int = -1) -> str:
    """The prompt that the engine was given."""
    tokenizer = app.engine.tokenizer
    assert tokenizer is not None
    return tokenizer.decode(app.engine.started[index][1], skip_special_tokens=False)
