"""A streamed answer with calls and reasoning, put together, is the plain one: any text, pieces, format and options."""

from typing import Any

import pytest
from call_markup import COMMON, FRAGMENTS
from chat_answers import LAMP, ROOMS, add_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_app import CHAT, HI, StubApp, run, strict_json
from stub_engine import StubEngine, make_tokenizer

TOKENIZER = make_tokenizer()
TOKENIZER.chat_templates["default"] = "{{ tools }}{{ messages[0].content }}{# </think> #}{{ '<think>' if think }}"
THOUGHTS = ["<think>", "</think>", "<think>so</think>"]
NAMED = {"type": "function", "function": {"name": "list_rooms"}}
OPTIONS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 400)},
    optional={
        "n": st.integers(1, 2),
        "tool_choice": st.sampled_from(["auto", "auto", "none", "required", NAMED]),
        "parallel_tool_calls": st.booleans(),
        "include_reasoning": st.booleans(),
        "chat_template_kwargs": st.just({"think": True}),
        "return_token_ids": st.booleans(),
        "top_logprobs": st.integers(0, 1),
        "stop": st.sampled_from(["}", "</", "\n"]),
        "echo": st.booleans(),
    },
)


def joined(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices of a stream, each put together."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"finish": None, "ids": [], "logprobs": [], "message": {}})
            assert choice["finish"] is None, "a chunk after the finish reason"
            choice["finish"] = part["finish_reason"]
            choice["ids"] += part.get("token_ids", [])
            choice["logprobs"] += (part.get("logprobs") or {"content": []})["content"]
            delta = dict(part["delta"])
            assert None not in delta.values()
            add_calls(choice["message"], delta.pop("tool_calls", []))
            delta.pop("role", None)
            for name, text in delta.items():
                choice["message"][name] = choice["message"].get(name, "") + text
    return choices


@pytest.mark.parametrize("name", sorted(FRAGMENTS))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_chat_with_every_format_of_calls(name: str, data: st.DataObject) -> None:
    fragment = st.sampled_from(FRAGMENTS[name] + COMMON + THOUGHTS)
    texts = data.draw(st.lists(st.lists(fragment, max_size=8).map("".join), min_size=2, max_size=2))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    engine = StubEngine(
        tokenizer=TOKENIZER,
        context=4000,
        plays=lambda ids, params, index: TOKENIZER.encode(texts[index]),
        pieces=lambda step: sizes[step % len(sizes)],
    )
    app = StubApp(engine, tool_call_parser=name)
    body = {"messages": HI, "tools": [LAMP, ROOMS], **data.draw(OPTIONS)}
    if "top_logprobs" in body:
        body["logprobs"] = True
    events = run(app.events(CHAT, {**body, "stream_options": {"include_usage": True}}))
    response = run(app.post(CHAT, body))
    assert response.status_code == 200, response.text
    plain = strict_json(response.content)
    assert events[-1]["usage"] == plain["usage"]
    choices = joined(events)
    for choice in plain["choices"]:
        streamed, message = choices[choice["index"]], choice["message"]
        assert streamed["finish"] == choice["finish_reason"]
        assert (choice["finish_reason"] != "tool_calls") or message["tool_calls"]
        assert streamed["message"].get("content", "") == (message["content"] or "")
        for field in ("reasoning_content", "reasoning"):
            assert streamed["message"].get(field) == message.get(field)
        calls = [{"function": call["function"]} for call in message.get("tool_calls", [])]
        assert streamed["message"].get("tool_calls", []) == calls
        assert streamed["ids"] == choice.get("token_ids", [])
        assert streamed["logprobs"] == (choice["logprobs"] or {"content": []})["content"]
