"""Over a real connection: clients that go away, readers that stall, errors in the middle, and what is logged."""

import asyncio
import logging
from typing import Any

import httpx
import msgspec
import pytest
from live_app import live, send_request
from stub_app import CHAT, COMPLETIONS, HI, StubApp, check_error, run, sse_events
from stub_engine import StubEngine, until

from octavo.api import streaming
from octavo.core.errors import RequestFailedError

ENDLESS = {"max_tokens": 2000, "ignore_eos": True}
LONG = 100_000


def endless_engine(**changes: Any) -> StubEngine:
    """Never ends by itself."""
    return StubEngine(context=LONG, **{"step_seconds": 0.005, **changes})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": HI}),
        (COMPLETIONS, {"prompt": "a", "n": 4}),
        (COMPLETIONS, {"prompt": ["a", "bc", "def"]}),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
def test_a_client_that_goes_away_aborts_its_request(path: str, fields: dict, stream: bool, waits: bool) -> None:
    async def scenario() -> None:
        # With hold_after 0 not even the first token comes: the request still waits in the queue.
        app = StubApp(endless_engine(hold_after=0 if waits else None))
        expected = len(fields["prompt"]) if isinstance(fields.get("prompt"), list) else 1
        async with live(app) as port:
            _, writer = await send_request(port, path, {**fields, **ENDLESS, "stream": stream})
            await until(lambda: len(app.engine.running) == expected)
            await asyncio.sleep(0.05)
            writer.close()
            await until(lambda: not app.engine.running, 2.0)
            await until(lambda: len(app.context.open_requests) == 0)
            assert len(app.engine.aborted) == expected and app.engine.ended == []
            app.engine.hold_after = None
            assert (await app.post(CHAT, {"messages": HI})).status_code == 200

    run(scenario())


def test_requests_that_end_leave_nothing_behind() -> None:
    async def scenario() -> None:
        app = StubApp()
        async with live(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for stream in (True, False):
                for body in ({"messages": HI}, {"messages": HI, "n": 3}, {"messages": HI, "temperature": -1}):
                    await client.post(CHAT, json={**body, "stream": stream})
            assert len(app.context.open_requests) == 0 and app.engine.running == set()
            assert app.engine.aborted == []
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run(scenario())


def test_a_stalled_reader_holds_up_its_own_generation_and_its_end_ends_it() -> None:
    async def scenario() -> None:
        # 4000 characters a step and nobody reads: the connection's buffers fill, and the stub stands still.
        engine = endless_engine(step_seconds=0, pieces=lambda step: 4000, plays=lambda ids, params, n: [40] * LONG)
        engine.context = LONG
        app = StubApp(engine)
        steps = []
        play = engine._pace

        async def counted(step: int) -> None:
            steps.append(step)
            await play(step)

        engine._pace = counted  # type: ignore[method-assign]
        async with live(app) as port:
            _, writer = await send_request(
                port, CHAT, {"messages": HI, "max_tokens": 90_000, "stream": True, "ignore_eos": True}
            )
            await until(lambda: len(steps) > 1)
            writer.close()
            await until(lambda: not engine.running)

    run(scenario())


def test_headers_of_a_stream_come_before_a_slow_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HEADERS_AFTER", 0.05)

    async def scenario() -> None:
        app = StubApp(StubEngine(hold_after=0))
        async with (
            live(app) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            client.stream("POST", CHAT, json={"messages": HI, "stream": True}) as response,
        ):
            assert response.status_code == 200
            app.engine.release.set()
            events = sse_events(await response.aread())
        assert events[-1] == "[DONE]" and events[0]["choices"][0]["delta"]["role"] == "assistant"

    run(scenario())


@pytest.mark.parametrize("after", [0, 2])
def test_an_engine_that_dies_is_a_status_before_the_first_chunk_and_an_event_after_it(after: int) -> None:
    for path, fields in ((CHAT, {"messages": HI, "n": 2}), (COMPLETIONS, {"prompt": ["a", "b"]})):
        app = StubApp(StubEngine(fail_after=after))
        plain = run(app.post(path, fields))
        assert check_error(plain, 503)["code"] == "engine_dead"
        streamed = run(app.post(path, {**fields, "stream": True}))
        if after == 0:
            assert check_error(streamed, 503)["code"] == "engine_dead"
        else:
            events = sse_events(streamed.content)
            assert streamed.status_code == 200 and "error" not in events[0]
            assert events[-1]["error"]["code"] == "engine_dead"
        assert app.engine.running == set() and len(app.context.open_requests) == 0


def test_a_request_that_fails_inside_the_engine_is_a_500_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    app = StubApp(StubEngine(hold_after=0))
    app.engine.dead_error = RequestFailedError("the sampler met a NaN")
    app.engine.release = asyncio.Event()
    app.engine.release.set()
    error = check_error(run(app.post(CHAT, {"messages": HI})), 500)
    assert (error["message"], error["code"]) == ("the sampler met a NaN", "request_failed")
    assert "the sampler met a NaN" in caplog.text and "Traceback" not in caplog.text


def test_a_fault_of_ours_is_a_500_that_tells_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> list[int]:
        raise ZeroDivisionError("secret detail")

    for stream in (True, False):
        response = run(StubApp(StubEngine(plays=broken)).post(CHAT, {"messages": HI, "stream": stream}))
        assert "secret" not in check_error(response, 500)["message"]
    assert "secret detail" in caplog.text


def test_a_fault_of_ours_before_anything_runs_has_the_shape_of_its_dialect(caplog: pytest.LogCaptureFixture) -> None:
    app = StubApp()
    app.engine.inputs = None  # type: ignore[assignment]
    body = {"messages": HI, "max_tokens": 2}
    assert check_error(run(app.post(CHAT, body)), 500)["type"] == "server_error"
    response = run(app.post("/v1/messages", body))
    error = {"type": "api_error", "message": "internal error; the server's log has the details"}
    assert response.status_code == 500 and response.json() == {"type": "error", "error": error}
    assert caplog.text.count("AttributeError") == 2 and "Traceback" not in caplog.text


def test_nothing_is_started_while_the_server_is_not_ready() -> None:
    app = StubApp()
    for status, code in (("loading", "loading"), ("dead", "engine_dead")):
        app.engine.status = status
        for path in (CHAT, COMPLETIONS):
            assert check_error(run(app.post(path, b"not even read")), 503)["code"] == code
    app.engine.status = "ready"
    app.context.stopping = True
    assert check_error(run(app.post(CHAT, {"messages": HI})), 503)["code"] == "stopping"
    assert app.engine.started == []


def test_one_line_is_logged_for_each_request_with_numbers_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")
    app = StubApp(StubEngine(text="An answer that is secret"))
    body = {"messages": [{"role": "user", "content": "a prompt that is secret"}]}
    for stream in (False, True):
        caplog.clear()
        run(app.post(CHAT, {**body, "stream": stream}, {"x-request-id": "trace-7"}))
        lines = [record.getMessage() for record in caplog.records if record.name == "octavo.api.request_log"]
        assert len(lines) == 1
        for part in ("chatcmpl-", CHAT, "cached 4", "stop", "first token", "tok/s", "total", "trace-7"):
            assert part in lines[0], lines[0]
        assert "secret" not in caplog.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages"])
def test_a_refused_request_has_a_line_too_with_the_place_and_no_text(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")
    app = StubApp()

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == "octavo.api.request_log"]
        caplog.clear()
        return found

    body = {"messages": HI, "prompt": "a secret", "input": "a secret", "max_tokens": "secret\n"}
    run(app.post(path, body, {"x-request-id": "trace-8"}))
    (line,) = lines()
    for part in (path, "error 400", "max_tokens" if path != "/v1/responses" else "messages", "trace-8", "total"):
        assert part in line, line
    assert "secret" not in line
    app.engine.status = "loading"
    run(app.post(path, body))
    (line,) = lines()
    assert f"{path}: error 503" in line


def test_requests_log_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")
    engine = StubEngine()
    engine.config = msgspec.structs.replace(engine.config, log_requests=False)
    run(StubApp(engine).post(CHAT, {"messages": HI}))
    assert not [record for record in caplog.records if record.name == "octavo.api.request_log"]
