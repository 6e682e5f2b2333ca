"""The official ``openai`` client with tools and reasoning, over a socket, on an engine that plays given texts."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from chat_answers import CALL, TOOLS
from live_app import live
from openai import AsyncOpenAI
from pydantic import BaseModel
from stub_app import StubApp, run
from stub_engine import StubEngine, make_tokenizer

TURNS = [f"<think>\nWhich lamp?\n</think>\n\nI will.\n{CALL}", "<think>Done.</think>The attic is lit."]
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    "{# tags like </think> are what the model writes #}"
)


def app() -> StubApp:
    """Plays the second turn once a result is in the prompt."""
    tokenizer = make_tokenizer()
    tokenizer.chat_templates["default"] = TEMPLATE

    def play(ids: list[int], params: Any, index: int) -> list[int]:
        return tokenizer.encode(TURNS["<tool_response>" in tokenizer.decode(ids)])

    return StubApp(StubEngine(tokenizer=tokenizer, context=8000, plays=play, pieces=lambda step: step % 3 + 1))


def client_of(port: int) -> AsyncOpenAI:
    """A client of the server on this port."""
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)


def with_client(work: Callable[[AsyncOpenAI], Any]) -> Any:
    """Run ``work`` with a client of a live server."""

    async def serve() -> Any:
        async with live(app()) as port, client_of(port) as client:
            return await asyncio.wait_for(work(client), 60)

    return run(serve())


def test_a_tool_loop_runs_to_its_end() -> None:
    async def loop(client: AsyncOpenAI) -> list[Any]:
        messages: list[Any] = [{"role": "user", "content": "Light in the attic, please."}]
        while True:
            answer = await client.chat.completions.create(model="stub-model", messages=messages, tools=TOOLS)
            choice = answer.choices[0]
            messages.append(choice.message)
            if choice.finish_reason != "tool_calls":
                return messages
            for call in choice.message.tool_calls or []:
                assert call.type == "function" and json.loads(call.function.arguments)["level"] == 3
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "ok"})

    messages = with_client(loop)
    assert len(messages) == 4 and messages[-1].content == "The attic is lit."
    assert messages[1].content == "I will." and messages[1].reasoning_content == "Which lamp?"


def test_the_streaming_helper_gathers_calls_and_reasoning() -> None:
    async def stream(client: AsyncOpenAI) -> tuple[Any, list[Any]]:
        async with client.chat.completions.stream(
            model="stub-model", messages=[{"role": "user", "content": "Light!"}], tools=TOOLS
        ) as helper:
            events = [event async for event in helper]
            return await helper.get_final_completion(), events

    answer, events = with_client(stream)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I will.")
    [call] = choice.message.tool_calls
    assert call.function.name == "set_lamp" and json.loads(call.function.arguments) == {"room": 'attic "A"', "level": 3}
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == ["set_lamp"]
    reasoning = [
        chunk.choices[0].delta.reasoning_content
        for chunk in (event.chunk for event in events if event.type == "chunk")
        if chunk.choices and "reasoning_content" in (chunk.choices[0].delta.model_extra or {})
    ]
    assert "".join(reasoning) == "Which lamp?"


def test_parsed_tools_come_back_as_models() -> None:
    import openai

    class SetLamp(BaseModel):
        room: str
        level: int

    async def parse(client: AsyncOpenAI) -> Any:
        tool = openai.pydantic_function_tool(SetLamp, name="set_lamp")
        return await client.chat.completions.parse(
            model="stub-model", messages=[{"role": "user", "content": "Light!"}], tools=[tool]
        )

    [call] = with_client(parse).choices[0].message.tool_calls
    assert call.function.parsed_arguments == SetLamp(room='attic "A"', level=3)
