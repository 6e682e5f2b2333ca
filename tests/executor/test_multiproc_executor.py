"""Ranks in their own processes: every step reaches all of them in order, and none is left behind."""

import os
import signal
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from counting import until
from simulation import make_config

from octavo.core.config import ParallelConfig
from octavo.core.errors import ConfigurationError, EngineDeadError, EngineError
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Chunk, NewRequest, SchedulerOutput
from octavo.executor.executor import Executor, make_executor
from octavo.executor.multiproc_executor import MultiprocExecutor


def step_of(number: int, num_tokens: int = 3) -> SchedulerOutput:
    new = NewRequest(
        0, f"r{number}", np.arange(num_tokens, dtype=np.int32), num_tokens, 0, [1], SamplingParams(), 0, [], []
    )
    return SchedulerOutput(number, [], [new], [], None, [Chunk(0, num_tokens, True)], num_tokens)


def config_for(executor: str, ranks: int) -> object:
    parallel = ParallelConfig(executor=executor, tensor_parallel_size=ranks, worker="trivial_worker:TrivialWorker")
    return msgspec.structs.replace(make_config(), parallel=parallel)


@pytest.fixture
def two_ranks() -> Iterator[MultiprocExecutor]:
    executor = MultiprocExecutor(config_for("mp", 2))
    yield executor
    executor.shutdown()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if all(gone(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("kind", ["uni", "mp"])
def test_executors_of_both_kinds_behave_alike(kind: str) -> None:
    executor: Executor = make_executor(config_for(kind, 1))
    try:
        assert executor.call("num_blocks") == [10]
        futures = [executor.execute(step_of(number)) for number in range(1, 6)]
        assert [future.result().token_ids.tolist() for future in futures] == [[10 * n, 3] for n in range(1, 6)]
        with pytest.raises(ConfigurationError, match="not to my taste"):
            executor.call("refuse")
        assert executor.call("seen") == [[1, 2, 3, 4, 5]]
    finally:
        executor.shutdown()
        executor.shutdown()


def test_two_ranks_get_every_step_in_order_and_rank_0_answers(two_ranks: MultiprocExecutor) -> None:
    futures = [two_ranks.execute(step_of(number)) for number in range(1, 40)]
    assert [future.result().token_ids[0] for future in futures] == [10 * n for n in range(1, 40)]
    assert two_ranks.call("num_blocks") == [10, 11]
    assert two_ranks.call("seen") == [list(range(1, 40))] * 2
    assert two_ranks.call("pid") == two_ranks.pids


def test_a_message_longer_than_the_ring_arrives_whole(two_ranks: MultiprocExecutor) -> None:
    result = two_ranks.execute(step_of(1, num_tokens=600_000)).result()
    assert result.token_ids.tolist() == [10, 600_000]


def test_an_exception_names_its_rank_and_the_ranks_go_on(two_ranks: MultiprocExecutor) -> None:
    with pytest.raises(EngineError, match="worker 0: ValueError: seven is not a number"):
        two_ranks.call("fail")
    assert two_ranks.call("num_blocks") == [10, 11]


def test_a_killed_rank_fails_what_waits_for_it_and_all_that_follows(two_ranks: MultiprocExecutor) -> None:
    assert two_ranks.call("num_blocks") == [10, 11]
    os.kill(two_ranks.pids[0], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"worker 0 \(pid \d+\) is gone"):
        two_ranks.execute(step_of(1)).result(timeout=10)
    with pytest.raises(EngineDeadError):
        two_ranks.execute(step_of(2)).result(timeout=10)


def test_shutdown_leaves_no_process() -> None:
    executor = MultiprocExecutor(config_for("mp", 2))
    pids = executor.call("pid")
    executor.shutdown()
    assert wait_until_gone(pids)


def test_executors_one_after_the_other_leave_no_descriptor() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(2):
        executor = MultiprocExecutor(config_for("mp", 2))
        executor.call("pid")
        executor.shutdown()
    until(lambda: descriptors() <= before, "all descriptors are closed")


def test_ranks_end_with_the_process_that_started_them() -> None:
    import subprocess
    import sys

    program = (
        "import sys, time; sys.path[:0] = sys.argv[1].split(':')\n"
        "from test_multiproc_executor import config_for\n"
        "from octavo.executor.multiproc_executor import MultiprocExecutor\n"
        "executor = MultiprocExecutor(config_for('mp', 2))\n"
        "print(*executor.call('pid'), flush=True)\n"
        "time.sleep(60)\n"
    )
    here = os.path.dirname(__file__)
    paths = f"{here}:{os.path.join(os.path.dirname(here), 'support')}"
    with subprocess.Popen([sys.executable, "-P", "-c", program, paths], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    assert wait_until_gone(pids)


def test_an_idle_rank_uses_no_processor_time(two_ranks: MultiprocExecutor) -> None:
    two_ranks.call("num_blocks")

    def ticks(pid: int) -> int:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(0.5)  # the kernel may book the time of the start a little late
    before = [ticks(pid) for pid in two_ranks.pids]
    time.sleep(1.0)
    after = [ticks(pid) for pid in two_ranks.pids]
    assert all(late - early <= 1 for early, late in zip(before, after, strict=True))
