"""``AsyncLLM`` on a stub: what the client does, message by message."""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import msgspec
import numpy as np
import pytest
from async_use import LONG, collect, run, settle
from scripted_transport import ScriptedTransport, outputs, text_config, text_tokenizer

from octavo import AsyncLLM, SamplingParams
from octavo.core.config import EngineConfig
from octavo.core.engine_output import EngineCoreOutputs, EngineGone, Finished, UtilityResult
from octavo.core.errors import EngineDeadError, EngineError, RequestError, RequestFailedError
from octavo.engine.input_processor import PreparedRequest
from octavo.engine.transport import EngineLost


@pytest.fixture(scope="module")
def stub_config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("tokenizer")
    text_tokenizer(folder)
    return msgspec.structs.replace(text_config(), tokenizer=str(folder))


@pytest.fixture
def stub() -> ScriptedTransport:
    return ScriptedTransport()


def test_a_request_made_while_the_engine_loads_waits_for_it(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        assert engine.status == "loading"
        task = asyncio.create_task(collect(engine, [5]))
        await asyncio.sleep(0.05)
        assert not stub.sent
        stub.be_ready()
        await settle(lambda: bool(stub.sent))
        assert engine.status == "ready"
        stub.say(outputs([(1, 5)], finished=[Finished(1, "length")]))
        assert (await task).outputs[0].token_ids == [5]

    run(main())


def test_an_engine_that_ends_while_a_prompt_is_prepared_ends_its_request(
    stub: ScriptedTransport, stub_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = AsyncLLM(stub_config, stub)
    stub.be_ready()
    prepare = engine._inputs.prepare

    def prepare_late(*arguments: Any) -> PreparedRequest:
        stub.say(EngineGone("it fell over"))
        time.sleep(0.1)
        return prepare(*arguments)

    monkeypatch.setattr(engine._inputs, "takes_long", lambda *_: True)
    monkeypatch.setattr(engine._inputs, "prepare", prepare_late)

    async def main() -> None:
        with pytest.raises(EngineDeadError, match="fell over"):
            await asyncio.wait_for(collect(engine, [5]), 20)

    run(main())


def test_an_engine_that_was_ready_before_the_first_use_is_noticed(
    stub: ScriptedTransport, stub_config: EngineConfig
) -> None:
    engine = AsyncLLM(stub_config, stub)
    stub.be_ready(max_model_len=128)

    async def main() -> None:
        await engine.wait_ready()
        assert engine.config.scheduler.max_model_len == 128
        with pytest.raises(RequestError, match="128"):
            await collect(engine, [5] * 128)

    run(main())


def test_leaving_the_loop_aborts_in_the_engine(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        async with aclosing(engine.generate([5], LONG)) as stream:
            feed = asyncio.create_task(say_later(stub, outputs([(1, 5)])))
            async for _ in stream:
                break
            await feed
        assert stub.aborted == [1]
        assert engine.num_requests == 0

    run(main())


async def say_later(stub: ScriptedTransport, message: EngineCoreOutputs) -> None:
    await settle(lambda: bool(stub.requests))
    stub.say(message)


def test_a_cancelled_reader_aborts_all_its_completions(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        task = asyncio.create_task(collect(engine, [5], LONG.replace(n=3)))
        await settle(lambda: len(stub.requests) == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stub.aborted == [1, 2, 3]

    run(main())


def test_a_request_that_ended_by_itself_is_not_aborted(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        task = asyncio.create_task(collect(engine, [5]))
        await say_later(stub, outputs([(1, 5)], finished=[Finished(1, "stop")]))
        await task
        assert stub.aborted == []

    run(main())


def test_abort_by_name_gives_a_last_output(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        task = asyncio.create_task(collect(engine, [5], name="mine"))
        await settle(lambda: bool(stub.requests))
        await engine.abort("somebody else's")
        await engine.abort("mine")
        output = await task
        assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
        assert stub.aborted == [1]

    run(main())


def test_a_name_in_use_is_refused_and_can_be_used_again_later(
    stub: ScriptedTransport, stub_config: EngineConfig
) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        task = asyncio.create_task(collect(engine, [5], name="mine"))
        await settle(lambda: bool(stub.requests))
        with pytest.raises(RequestError, match="'mine' is in use") as caught:
            await collect(engine, [6], name="mine")
        assert caught.value.param == "request_id"
        stub.say(outputs([(1, 5)], finished=[Finished(1, "length")]))
        assert (await task).outputs[0].token_ids == [5]
        again = asyncio.create_task(collect(engine, [5], name="mine"))
        await settle(lambda: len(stub.requests) == 2)
        stub.say(outputs([(2, 6)], finished=[Finished(2, "length")]))
        assert (await again).outputs[0].token_ids == [6]

    run(main())


def test_a_stop_string_stops_the_engine(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        (token,) = engine.tokenizer.encode("X") if engine.tokenizer else (0,)
        task = asyncio.create_task(collect(engine, [5], SamplingParams(stop=["X"], max_tokens=50)))
        await say_later(stub, outputs([(1, token)]))
        assert (await task).outputs[0].stop_reason == "X"
        assert stub.aborted == [1]

    run(main())


def test_one_failed_request_leaves_the_others_alone(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        tasks = [asyncio.create_task(collect(engine, [5])) for _ in range(2)]
        await settle(lambda: len(stub.requests) == 2)
        stub.say(outputs([(2, 6)], finished=[Finished(1, "error", error="bad"), Finished(2, "length")]))
        with pytest.raises(RequestFailedError, match="bad"):
            await tasks[0]
        assert (await tasks[1]).outputs[0].token_ids == [6]
        assert stub.aborted == []

    run(main())


def test_the_death_of_the_engine_reaches_everybody(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        waiting = asyncio.create_task(engine.wait_dead())
        streams = [asyncio.create_task(collect(engine, [5])) for _ in range(3)]
        call = asyncio.create_task(engine.call("check_integrity"))
        await settle(lambda: len(stub.sent) == 4)
        stub.say(EngineGone("the engine process (pid 5) ended with signal SIGKILL"))
        for task in (*streams, call):
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await task
        assert isinstance(await waiting, EngineDeadError)
        for later in (engine.wait_ready(), collect(engine, [5]), engine.call("check_integrity")):
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await later
        assert engine.status == "dead"
        assert engine.num_requests == 0
        assert stub.aborted == []

    run(main())


def test_requests_go_on_at_the_next_engine_where_the_last_one_stopped(
    stub: ScriptedTransport, stub_config: EngineConfig
) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        params = SamplingParams(max_tokens=4, n=2, seed=5)
        task = asyncio.create_task(collect(engine, [5, 6], params))
        call = asyncio.create_task(engine.call("check_integrity"))
        await settle(lambda: len(stub.sent) == 3)
        stub.say(outputs([(1, 70), (2, 71)]))
        stub.say(outputs([(1, 72)], finished=[Finished(1, "stop")]))
        stub.say(EngineLost("the engine process (pid 5) ended with signal SIGKILL"))
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await call
        assert engine.status == "restarting"
        later = asyncio.create_task(collect(engine, [7]))
        await asyncio.sleep(0.05)
        assert len(stub.sent) == 3
        stub.be_ready()
        await settle(lambda: len(stub.requests) == 4)
        first, again = stub.requests[1:3]
        assert again == msgspec.structs.replace(first, output_token_ids=np.array([71], np.int32).tobytes())
        assert engine.status == "ready"
        stub.say(outputs([(2, 73)], finished=[Finished(2, "length")]))
        stub.say(outputs([(3, 74)], finished=[Finished(3, "length")]))
        assert [completion.token_ids for completion in (await task).outputs] == [[70, 72], [71, 73]]
        assert (await later).outputs[0].token_ids == [74]

    run(main())


def test_what_has_lost_two_engines_is_not_given_to_a_third(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        poison = asyncio.create_task(collect(engine, [5]))
        await settle(lambda: len(stub.requests) == 1)
        stub.say(EngineLost("first"))
        stub.say(EngineLost("one that only loaded"))  # it never had the request
        stub.be_ready()
        young = asyncio.create_task(collect(engine, [6]))
        await settle(lambda: len(stub.requests) == 3)
        stub.say(EngineLost("second"))
        with pytest.raises(EngineDeadError, match="second"):
            await poison
        stub.be_ready()
        await settle(lambda: len(stub.requests) == 4)
        assert [message.handle for message in stub.requests] == [1, 1, 2, 2]
        stub.say(outputs([(2, 7)], finished=[Finished(2, "length")]))
        assert (await young).outputs[0].token_ids == [7]

    run(main())


def test_a_call_answers_its_own_caller(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        calls = [asyncio.create_task(engine.call("request_timeline", name)) for name in "ab"]
        await settle(lambda: len(stub.sent) == 2)
        first, second = (message.call_id for message in stub.sent)  # pyright: ignore[reportAttributeAccessIssue]
        results = [UtilityResult(second, "b"), UtilityResult(first, error="no"), UtilityResult(999, 1)]
        stub.say(EngineCoreOutputs(0.0, results=results))
        with pytest.raises(EngineError, match="no"):
            await calls[0]
        assert await calls[1] == "b"

    run(main())


def test_a_broken_request_id_is_refused_and_leaves_nothing(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        for name in ("\ud83d", 5):
            with pytest.raises(RequestError) as caught:
                await collect(engine, [5], name=name)  # pyright: ignore[reportArgumentType]
            assert caught.value.param == "request_id"
        assert engine.num_requests == 0
        assert not stub.requests

    run(main())


def test_one_engine_serves_one_event_loop_after_the_other(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    engine = AsyncLLM(stub_config, stub)
    stub.be_ready()

    async def one(handle: int) -> None:
        task = asyncio.create_task(collect(engine, [5]))
        await settle(lambda: len(stub.requests) == handle)
        stub.say(outputs([(handle, 5)], finished=[Finished(handle, "length")]))
        assert (await task).finished

    run(one(1))
    stub.say(EngineCoreOutputs(0.0))  # nobody listens between the two
    run(one(2))
    stub.say(EngineGone("it broke"))

    async def last() -> None:
        with pytest.raises(EngineDeadError, match="it broke"):
            await collect(engine, [5])
        assert engine.status == "dead"

    run(last())


def test_two_event_loops_at_once_are_refused(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    engine = AsyncLLM(stub_config, stub)
    stub.be_ready()

    async def main() -> None:
        await engine.wait_ready()
        with pytest.raises(EngineError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, engine.wait_ready())

    run(main())


def test_shutdown_ends_what_waits_and_can_be_repeated(stub: ScriptedTransport, stub_config: EngineConfig) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        task = asyncio.create_task(collect(engine, [5]))
        await settle(lambda: bool(stub.requests))
        await engine.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await task
        await engine.shutdown()
        assert stub.closed

    run(main())


def test_shutdown_lets_requests_finish_for_as_long_as_it_is_told(
    stub: ScriptedTransport, stub_config: EngineConfig
) -> None:
    async def main() -> None:
        engine = AsyncLLM(stub_config, stub)
        stub.be_ready()
        quick, endless = (asyncio.create_task(collect(engine, [5])) for _ in range(2))
        await settle(lambda: len(stub.requests) == 2)
        ending = asyncio.create_task(engine.shutdown(drain_seconds=1.0))
        stub.say(outputs([(1, 5)], finished=[Finished(1, "length")]))
        assert (await quick).finished
        assert not ending.done()
        await ending
        with pytest.raises(EngineDeadError, match="shut down"):
            await endless

    run(main())


def test_a_transport_that_cannot_start_is_closed(stub_config: EngineConfig) -> None:
    class Broken(ScriptedTransport):
        def start(self, on_message: Any) -> None:
            raise OSError("no more processes")

    transport = Broken()
    with pytest.raises(OSError, match="no more processes"):
        AsyncLLM(stub_config, transport)
    assert transport.closed == 1
