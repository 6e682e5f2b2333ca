"""``AsyncLLM`` on workers that misbehave and on a real small model, in a thread and in a process."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from async_use import GREEDY, LONG, collect, run, settle
from checkpoints import make_checkpoint
from counting import children, folders, gone, until
from scripted_transport import text_config

from octavo import AsyncLLM, SamplingParams
from octavo.core.config import ParallelConfig
from octavo.core.engine_args import EngineArgs
from octavo.core.errors import CheckpointError, ConfigurationError, EngineDeadError, EngineError, EngineStartError
from octavo.core.outputs import RequestOutput
from octavo.core.sampling_params import RequestOutputKind
from octavo.core.stats import FinishedRequestStats, SchedulerStats
from octavo.engine.process_transport import ProcessTransport
from octavo.engine.transport import make_transport


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    processes = set(children())
    yield
    until(lambda: set(children()) <= processes, "child processes ended")
    assert folders(os.getpid()) == []


# On workers without a model: a real engine in a thread and in a process.


@pytest.fixture(params=["thread", "process"])
def multiprocess(request: pytest.FixtureRequest) -> bool:
    return request.param == "process"


class LastStats:
    """A stat logger that remembers the last word."""

    def __init__(self) -> None:
        self.stats: SchedulerStats | None = None
        self.finished: list[FinishedRequestStats] = []

    @property
    def all_free(self) -> bool:
        stats = self.stats
        return stats is not None and (
            stats.num_running == stats.num_waiting == 0 and stats.num_free_blocks == stats.num_blocks
        )

    def record_step(self, stats: SchedulerStats) -> None:
        self.stats = stats

    def record_first_token(self, seconds: float) -> None:
        pass

    def record_tokens(self, count: int, seconds: float) -> None:
        pass

    def record_finished(self, stats: FinishedRequestStats) -> None:
        self.finished.append(stats)


@asynccontextmanager
async def engine_of(
    multiprocess: bool, worker: str = "CountingWorker", executor: str = "uni", **scheduler: Any
) -> AsyncIterator[tuple[AsyncLLM, LastStats]]:
    config = text_config()
    config = msgspec.structs.replace(
        config,
        parallel=ParallelConfig(worker=f"faulty_workers:{worker}", executor=executor),
        scheduler=msgspec.structs.replace(config.scheduler, **scheduler),
    )
    stats = LastStats()
    engine = AsyncLLM(config, make_transport(config, multiprocess), [stats])
    try:
        yield engine, stats
    finally:
        await engine.shutdown()


def test_an_aborted_request_is_gone_from_the_engine_within_a_step(multiprocess: bool) -> None:
    async def main() -> None:
        async with engine_of(multiprocess) as (engine, stats):
            async with aclosing(engine.generate([5] * 20, LONG)) as stream:
                async for _ in stream:
                    break
            await settle(lambda: stats.all_free)
            await engine.call("check_integrity")
            assert stats.finished[0].finish_reason == "abort"

    run(main())


@pytest.mark.parametrize(
    ("worker", "error", "cause"),
    [
        ("RefusingWorker", ConfigurationError, "not to my taste"),
        ("BrokenWorker", type(None), "IndexError: no such layer"),
    ],
)
def test_why_an_engine_does_not_start_is_told(multiprocess: bool, worker: str, error: type, cause: str) -> None:
    async def main() -> None:
        async with engine_of(multiprocess, worker) as (engine, _):
            for use in (engine.wait_ready(), collect(engine, [5])):
                with pytest.raises(EngineStartError, match=cause) as caught:
                    await use
                assert isinstance(caught.value.__cause__, error)

    run(main())


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_what_a_step_raises_reaches_every_reader(multiprocess: bool, executor: str) -> None:
    async def main() -> None:
        async with engine_of(multiprocess, "FailingWorker", executor) as (engine, _):
            tasks = [asyncio.create_task(collect(engine, [5], LONG)) for _ in range(3)]
            for task in tasks:
                with pytest.raises(EngineDeadError, match="ArithmeticError: the device fell off the bus"):
                    await task
            with pytest.raises(EngineDeadError, match="fell off"):
                await collect(engine, [5])

    run(main())


def test_a_killed_engine_ends_every_stream_and_every_later_call() -> None:
    async def main() -> None:
        async with engine_of(True) as (engine, _):
            streams = [engine.generate([5], LONG) for _ in range(4)]
            for stream in streams:
                await anext(stream)
            transport = engine._transport
            assert isinstance(transport, ProcessTransport)
            os.kill(transport.pid or 0, signal.SIGKILL)
            until(lambda: gone(transport.pid or 0), "the engine died")
            await engine.abort("request-1")  # its end is not known here yet: sending must not block
            for stream in streams[1:]:
                with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                    async for _ in stream:
                        pass
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                await collect(engine, [5])
            with pytest.raises(EngineDeadError, match="signal SIGKILL"):
                await engine.call("check_integrity")

    run(main())


def test_shutdown_while_the_engine_loads(multiprocess: bool) -> None:
    async def main() -> None:
        async with engine_of(multiprocess, "SlowLoadingWorker" if multiprocess else "CountingWorker") as (engine, _):
            task = asyncio.create_task(collect(engine, [5]))
            await asyncio.sleep(0)
        with pytest.raises(EngineError):
            await task

    run(main())


@pytest.mark.parametrize("overlap", [True, False])
def test_random_aborts_leave_everything_free(multiprocess: bool, overlap: bool) -> None:
    """200 rounds, 8 at a time, aborted in every state, among them waiting, prefilling and on the last token."""
    chance = random.Random(7)

    async def reader(engine: AsyncLLM, number: int) -> None:
        prompt = [chance.randrange(300) for _ in range(chance.choice([1, 7, 30, 90]))]
        params = LONG.replace(max_tokens=chance.choice([1, 3, 20]), n=chance.choice([1, 1, 3]))
        patience = chance.choice([None, 0, 1, 2, 5])
        taken = 0
        async with aclosing(engine.generate(prompt, params, f"r{number}")) as stream:
            async for _ in stream:
                taken += 1
                if patience is not None and taken > patience:
                    return

    async def rounds(engine: AsyncLLM, worker: int) -> None:
        for number in range(25):
            task = asyncio.create_task(reader(engine, worker * 1000 + number))
            if chance.random() < 0.4:
                for _ in range(chance.choice([0, 1, 2, 5])):
                    await asyncio.sleep(0.001 * chance.randrange(4))
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not task.cancelled() or task.done()

    async def main() -> None:
        async with engine_of(multiprocess, overlap=overlap, max_num_seqs=6, max_num_batched_tokens=40) as (
            engine,
            stats,
        ):
            await asyncio.gather(*(rounds(engine, worker) for worker in range(8)))
            await settle(lambda: stats.all_free)
            await engine.call("check_integrity")
            assert engine.num_requests == 0
            assert not engine._outputs._completions
            assert (await collect(engine, [5], GREEDY)).outputs[0].finish_reason == "length"

    run(main())


# On a real model.


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def arguments(checkpoint: Path, **settings: Any) -> EngineArgs:
    return EngineArgs(model=str(checkpoint), dtype="float32", max_model_len=256, check_integrity=True, **settings)


def test_requests_beside_each_other_get_what_they_get_alone(checkpoint: Path, multiprocess: bool) -> None:
    prompts = ["the hat", "in the house", [5] * 40, "a", list(range(3, 90))]
    params = [
        GREEDY,
        SamplingParams(seed=5, max_tokens=12, ignore_eos=True, logprobs=2),
        GREEDY.replace(stop=["e"]),
        SamplingParams(seed=6, temperature=1.5, top_k=40, max_tokens=12, ignore_eos=True, n=2),
        GREEDY.replace(output_kind=RequestOutputKind.FINAL_ONLY),
    ]

    def essence(output: RequestOutput) -> Any:
        parts = [
            (part.index, part.text, part.token_ids, part.finish_reason, part.stop_reason) for part in output.outputs
        ]
        return output.finished, parts

    async def main() -> None:
        engine = AsyncLLM.from_engine_args(arguments(checkpoint), multiprocess=multiprocess)
        try:
            pairs = list(zip(prompts, params, strict=True))
            alone = [essence(await collect(engine, prompt, each)) for prompt, each in pairs]
            together = await asyncio.gather(*(collect(engine, prompt, each) for prompt, each in pairs))
            assert [essence(output) for output in together] == alone
            streamed = ""
            async for output in engine.generate(prompts[0], GREEDY.replace(output_kind=RequestOutputKind.DELTA)):
                streamed += output.outputs[0].text
            assert streamed == alone[0][1][0][1]
            await engine.call("check_integrity")
        finally:
            await engine.shutdown()

    run(main())


def test_a_broken_checkpoint_is_told_with_its_cause(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[:500] if file.suffix == ".safetensors" else content)

    async def main() -> None:
        engine = AsyncLLM.from_engine_args(arguments(tmp_path))
        try:
            with pytest.raises(EngineStartError, match=r"safetensors") as caught:
                await engine.wait_ready()
            assert isinstance(caught.value.__cause__, ConfigurationError)
        finally:
            await engine.shutdown()

    run(main())


def test_wrong_settings_are_refused_before_anything_starts(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        AsyncLLM.from_engine_args(EngineArgs(model=str(tmp_path)))
    with pytest.raises(ConfigurationError, match="--block-size"):
        AsyncLLM.from_engine_args(arguments(checkpoint, block_size=0))
