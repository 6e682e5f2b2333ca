"""The official ``openai`` client's Responses API: against a live server, and tool loops against a scripted engine."""

import json
from typing import Any

import httpx
import openai
import pydantic
import pytest
from live_app import live
from openai import AsyncOpenAI, OpenAI
from stub_app import StubApp, run
from stub_engine import StubEngine

MODEL = "SmolLM2-135M-Instruct"
FRANCE = "What is the capital of France?"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
LAMP: dict[str, Any] = {
    "type": "function",
    "name": "set_lamp",
    "description": "Dims a lamp.",
    "parameters": {"type": "object", "properties": {"level": {"type": "integer"}}, "required": ["level"]},
    "strict": False,
}
LAMP_CALL = '<tool_call>\n{"name": "set_lamp", "arguments": {"level": 3}}\n</tool_call>'


def test_a_response_is_typed_and_says_what_a_chat_says(client: OpenAI) -> None:
    answer = client.responses.create(input=FRANCE, **GREEDY)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": FRANCE}], temperature=0, max_tokens=12
    )
    assert answer.output_text == chat.choices[0].message.content and "Paris" in answer.output_text
    assert answer.usage is not None and chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens
    assert answer.status in ("completed", "incomplete") and answer.output[0].type == "message"


def test_a_stream_of_events_joins_to_the_plain_answer(client: OpenAI) -> None:
    plain = client.responses.create(input=FRANCE, instructions="Answer briefly.", **GREEDY)
    text, numbers, final = "", [], None
    for event in client.responses.create(input=FRANCE, instructions="Answer briefly.", stream=True, **GREEDY):
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            final = event.response
    assert final is not None
    assert text == final.output_text == plain.output_text and numbers == list(range(len(numbers)))


def test_the_stream_helper_gathers_the_same_answer(client: OpenAI) -> None:
    body: dict[str, Any] = {**GREEDY, "max_output_tokens": 200, "extra_body": {"stop": "."}}
    plain = client.responses.create(input=FRANCE, **body)
    with client.responses.stream(input=FRANCE, **body) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == plain.output_text == snapshots[-1]


def test_a_conversation_goes_on_and_is_deleted(client: OpenAI) -> None:
    first = client.responses.create(input="My name is Ann.", **GREEDY)
    second = client.responses.create(input="What is my name?", previous_response_id=first.id, **GREEDY)
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(second.id).output_text == second.output_text
    items = client.responses.input_items.list(second.id)
    assert [item.type for item in items] == ["message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(input="again", previous_response_id=first.id, **GREEDY)
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(second.id)


def test_logprobs_are_typed(client: OpenAI) -> None:
    answer = client.responses.create(input=FRANCE, include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY)
    message = answer.output[0]
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs and all(entry.logprob <= entry.top_logprobs[0].logprob for entry in logprobs)


class City(pydantic.BaseModel):
    """What the model is made to answer."""

    name: str
    is_capital: bool


def test_a_schema_is_enforced_on_a_real_model(client: OpenAI) -> None:
    answer = client.responses.parse(input="Describe Paris.", text_format=City, **GREEDY | {"max_output_tokens": 100})
    assert answer.status == "incomplete" or isinstance(answer.output_parsed, City)


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(input=FRANCE, background=True, **GREEDY)
    assert raised.value.param == "background"
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(input=" a" * 600, **GREEDY)
    assert raised.value.code == "context_length_exceeded" and raised.value.param == "input"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input=FRANCE, **GREEDY | {"model": "gpt-x"})


def scripted(*texts: str) -> StubApp:
    """An application whose model says these texts, one per request."""
    app = StubApp(StubEngine(context=4096), tool_call_parser="hermes", reasoning_parser="qwen3")
    tokenizer = app.engine.tokenizer
    assert tokenizer is not None
    app.engine.plays = lambda ids, params, index: tokenizer.encode(texts[len(app.engine.started) - 1])
    return app


def client_of(port: int) -> AsyncOpenAI:
    """The asynchronous client, with a connection of its own so that it can be closed in the loop."""
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=20)


def test_a_tool_loop_ends_with_the_answer() -> None:
    async def scenario() -> None:
        async with live(scripted(LAMP_CALL, "The lamp is at 3.")) as port, client_of(port) as client:
            async with client.responses.stream(model="stub-model", input="dim it", tools=[LAMP]) as stream:
                kinds = [event.type async for event in stream]
                first = await stream.get_final_response()
            assert "response.function_call_arguments.done" in kinds
            (call,) = first.output
            assert call.type == "function_call" and json.loads(call.arguments) == {"level": 3}
            history: Any = [{"role": "user", "content": "dim it"}, *first.output]
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": "ok"})
            # The helper's parsed items have fields of their own, which a caller leaves out.
            history[1] = call.model_dump(exclude={"parsed_arguments"}, exclude_none=True)
            last = await client.responses.create(model="stub-model", input=history, tools=[LAMP])
            assert last.output_text == "The lamp is at 3."

    run(scenario())


class Lamp(pydantic.BaseModel):
    """What ``parse`` makes of an answer."""

    level: int


def test_parse_gives_an_object_of_the_callers_own_class() -> None:
    async def scenario() -> None:
        app = scripted('{"level": 3}', '{"level": 3}')
        async with live(app) as port, client_of(port) as client:
            answer = await client.responses.parse(model="stub-model", input="q", text_format=Lamp)
            assert answer.output_parsed == Lamp(level=3)
            async with client.responses.stream(model="stub-model", input="q", text_format=Lamp) as stream:
                final = await stream.get_final_response()
            assert final.output_parsed == Lamp(level=3)
        assert all(params.structured_outputs is not None for _, _, params in app.engine.started)

    run(scenario())


def test_reasoning_is_an_item_before_the_message() -> None:
    async def scenario() -> None:
        async with live(scripted("<think>\nhm\n</think>\n\nyes")) as port, client_of(port) as client:
            async with client.responses.stream(model="stub-model", input="q") as stream:
                deltas = [event.delta async for event in stream if event.type == "response.reasoning_text.delta"]
                final = await stream.get_final_response()
            reasoning, message = final.output
            assert reasoning.type == "reasoning" and reasoning.content and reasoning.content[0].text == "hm"
            assert message.type == "message" and final.output_text == "yes" and "".join(deltas) == "hm"

    run(scenario())


def test_the_death_of_the_engine_raises_in_the_middle_of_a_stream() -> None:
    async def scenario() -> None:
        app = StubApp(StubEngine(fail_after=2))
        async with live(app) as port, client_of(port) as client:
            last = ""
            with pytest.raises(openai.APIError) as raised:
                async for event in await client.responses.create(model="stub-model", input="q", stream=True):
                    last = event.type
            assert "killed" in raised.value.message and last == "response.failed"
            with pytest.raises(openai.InternalServerError):
                await client.responses.create(model="stub-model", input="q")
            assert (await app.post("/v1/responses", {"input": "q"})).status_code == httpx.codes.SERVICE_UNAVAILABLE

    run(scenario())
