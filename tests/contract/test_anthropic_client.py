"""The official ``anthropic`` client: against a live server, and tool loops against a scripted engine."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool
from live_app import live
from stub_app import StubApp, run
from stub_engine import StubEngine

MODEL = "SmolLM2-135M-Instruct"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "messages": FRANCE, "extra_body": {"temperature": 0}}
LAMP: dict[str, Any] = {
    "name": "set_lamp",
    "description": "Dims a lamp.",
    "input_schema": {"type": "object", "properties": {"level": {"type": "integer"}}, "required": ["level"]},
}
LAMP_CALL = '<tool_call>\n{"name": "set_lamp", "arguments": {"level": 3}}\n</tool_call>'


@pytest.fixture
def claude(server_url: str) -> Iterator[Anthropic]:
    """The client, on the live server."""
    with Anthropic(base_url=server_url, api_key="not-needed", max_retries=0, timeout=120) as client:
        yield client


def test_a_message_is_typed_and_counts_its_tokens(claude: Anthropic) -> None:
    message = claude.messages.create(**GREEDY)
    assert message.content[0].type == "text" and "Paris" in message.content[0].text
    assert message.role == "assistant" and message.model == MODEL
    assert message._request_id
    assert message.stop_reason in ("end_turn", "max_tokens") and message.usage.output_tokens <= 12
    counted = claude.messages.count_tokens(model=MODEL, messages=FRANCE)
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_the_stream_helper_gathers_the_plain_message(claude: Anthropic) -> None:
    plain = claude.messages.create(system="Answer briefly.", **GREEDY)
    with claude.messages.stream(system="Answer briefly.", **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text" and plain.content[0].type == "text"
    assert text == final.content[0].text == plain.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (plain.stop_reason, plain.usage.output_tokens)


def test_raw_events_come_in_the_order_of_the_reference_api(claude: Anthropic) -> None:
    kinds = [event.type for event in claude.messages.create(stream=True, **GREEDY)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_is_named(claude: Anthropic) -> None:
    message = claude.messages.create(stop_sequences=["zzz", "Paris"], **GREEDY)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert message.content[0].type == "text" and "Paris" not in message.content[0].text


def test_an_answer_that_is_begun_is_gone_on_with(claude: Anthropic) -> None:
    begun: list[Any] = [*FRANCE, {"role": "assistant", "content": "The capital of France is"}]
    message = claude.messages.create(**GREEDY | {"messages": begun})
    assert message.content[0].type == "text" and message.content[0].text.startswith(" Paris")


def test_a_tool_that_must_be_used_is_used_by_a_real_model(claude: Anthropic) -> None:
    message = claude.messages.create(
        tools=[LAMP], tool_choice={"type": "tool", "name": "set_lamp"}, **GREEDY | {"max_tokens": 60}
    )
    use = message.content[0]
    assert use.type == "tool_use" and use.name == "set_lamp"
    assert message.stop_reason == "max_tokens" or isinstance(use.input["level"], int)


def test_errors_are_the_clients_own(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(**GREEDY | {"extra_body": {"temperature": -1}})
    assert isinstance(bad.value.body, dict) and bad.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**GREEDY | {"model": "claude-x"})
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(**GREEDY | {"messages": [{"role": "user", "content": " a" * 600}]})


def scripted(*texts: str) -> StubApp:
    """An application whose model says these texts, one per request."""
    app = StubApp(StubEngine(context=4096), tool_call_parser="hermes", reasoning_parser="qwen3")
    tokenizer = app.engine.tokenizer
    assert tokenizer is not None
    app.engine.plays = lambda ids, params, index: tokenizer.encode(texts[len(app.engine.started) - 1])
    return app


def client_of(port: int) -> AsyncAnthropic:
    """The asynchronous client."""
    return AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0, timeout=20)


ASK: dict[str, Any] = {"model": "stub-model", "max_tokens": 500, "messages": [{"role": "user", "content": "dim it"}]}


def test_a_tool_use_streams_its_input_and_its_result_goes_back() -> None:
    async def scenario() -> None:
        async with live(scripted(f"Well. {LAMP_CALL}", "The lamp is at 3.")) as port, client_of(port) as client:
            async with client.messages.stream(tools=[LAMP], **ASK) as stream:
                pieces = [event.partial_json async for event in stream if event.type == "input_json"]
                message = await stream.get_final_message()
            use = message.content[-1]
            assert message.stop_reason == "tool_use" and use.type == "tool_use"
            assert use.input == {"level": 3} and len(pieces) > 1
            result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "ok"}
            turns = [
                *ASK["messages"],
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result]},
            ]
            last = await client.messages.create(**ASK | {"messages": turns, "tools": [LAMP]})
            assert last.content[0].type == "text" and last.content[0].text == "The lamp is at 3."
            assert last.stop_reason == "end_turn"

    run(scenario())


def test_the_tool_runner_calls_the_tool_and_returns_the_answer() -> None:
    levels: list[int] = []

    @beta_async_tool
    async def set_lamp(level: int) -> str:
        """Dims a lamp.

        Args:
            level: How bright.
        """
        levels.append(level)
        return "ok"

    async def scenario() -> None:
        async with live(scripted(LAMP_CALL, "Done.")) as port, client_of(port) as client:
            runner = client.beta.messages.tool_runner(tools=[set_lamp], **ASK)
            message = await runner.until_done()
            assert message.content[0].type == "text" and message.content[0].text == "Done."

    run(scenario())
    assert levels == [3]


class Lamp(pydantic.BaseModel):
    """What ``parse`` makes of an answer."""

    level: int


def test_parse_gives_an_object_of_the_callers_own_class() -> None:
    async def scenario() -> None:
        app = scripted('{"level": 3}')
        async with live(app) as port, client_of(port) as client:
            message = await client.messages.parse(output_format=Lamp, **ASK)
            assert message.parsed_output == Lamp(level=3)
        assert app.engine.started[0][2].structured_outputs is not None

    run(scenario())


def test_thinking_is_a_block_before_the_text() -> None:
    async def scenario() -> None:
        async with live(scripted("<think>\nhm\n</think>\n\nyes")) as port, client_of(port) as client:
            thinking: Any = {"type": "enabled", "budget_tokens": 1024}
            async with client.messages.stream(thinking=thinking, **ASK) as stream:
                thoughts = [event.thinking async for event in stream if event.type == "thinking"]
                message = await stream.get_final_message()
            first, second = message.content
            assert first.type == "thinking" and first.thinking == "hm" == "".join(thoughts)
            assert second.type == "text" and second.text == "yes"

    run(scenario())


def test_the_death_of_the_engine_raises_in_the_middle_of_a_stream() -> None:
    async def scenario() -> None:
        async with live(StubApp(StubEngine(fail_after=2))) as port, client_of(port) as client:
            with pytest.raises(anthropic.APIStatusError, match="killed"):
                async for _ in await client.messages.create(stream=True, **ASK):
                    pass
            with pytest.raises(anthropic.APIStatusError, match="killed") as raised:
                await client.messages.create(**ASK)
            assert raised.value.status_code == 503

    run(scenario())
