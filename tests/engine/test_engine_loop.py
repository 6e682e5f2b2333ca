"""The loop around the steps: takes everything that came in, waits without working, and never fails for one request."""

import queue
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from simulation import make_config

from octavo.core.engine_input import AbortRequests, EngineCoreRequest, UtilityCall
from octavo.core.engine_output import EngineCoreOutputs, Started, UtilityResult
from octavo.core.sampling_params import SamplingParams
from octavo.core.startup import StartupTimeline
from octavo.engine.engine_core import EngineCore
from octavo.engine.engine_loop import EngineLoop
from octavo.executor.simulated_executor import SimulatedExecutor


class Machine:
    """A loop on the simulated executor. ``start`` runs it on a thread of its own."""

    def __init__(self, num_clients: int = 1) -> None:
        config = make_config()
        self.core = EngineCore(config, SimulatedExecutor(config), StartupTimeline("engine"), num_clients)
        self.said: queue.Queue[tuple[int, EngineCoreOutputs]] = queue.Queue()
        self.loop = EngineLoop(self.core, lambda client, message: self.said.put((client, message)))
        self.error: Exception | None = None
        self.cpu_seconds = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error
        self.cpu_seconds = time.thread_time()

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.loop.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def hear(self) -> EngineCoreOutputs:
        return self.said.get(timeout=10)[1]

    def hear_result(self) -> UtilityResult:
        while not (results := self.hear().results):
            pass
        return results[0]

    def hear_of_end(self, handle: int) -> str:
        while True:
            for finished in self.hear().finished:
                if finished.handle == handle:
                    return finished.reason


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    if machine.thread.is_alive():
        machine.stop()


def request_of(handle: int, *, prompt: bytes | None = None, max_tokens: int = 4, client: int = 0) -> EngineCoreRequest:
    ids = np.array([5, 6, 7], dtype=np.int32).tobytes() if prompt is None else prompt
    params = SamplingParams(max_tokens=max_tokens)
    return EngineCoreRequest(f"r{handle}", handle, client, ids, params, 1, 3 + max_tokens, 0.0)


def test_all_that_has_come_in_is_taken_before_the_next_step(machine: Machine) -> None:
    for handle in range(6):
        machine.loop.receive(request_of(handle))
    machine.start()
    started: list[Started] = machine.hear().started
    assert [start.handle for start in started] == list(range(6))


def test_an_abort_that_came_with_its_request_means_that_it_never_runs(machine: Machine) -> None:
    machine.loop.receive(request_of(1))
    machine.loop.receive(AbortRequests(0, [1]))
    machine.start()
    message = machine.hear()
    assert message.stats is not None
    assert (message.stats.num_running, message.stats.num_waiting, message.stats.step) == (0, 0, 0)
    assert machine.said.empty()


def test_one_request_that_cannot_be_prepared_is_that_requests_error(machine: Machine) -> None:
    machine.start()
    machine.loop.receive(request_of(1, prompt=b"abc"))
    machine.loop.receive(request_of(2))
    finished = machine.hear().finished[0]
    assert (finished.handle, finished.reason) == (1, "error")
    assert machine.hear_of_end(2) == "length"


def test_an_idle_loop_uses_no_processor_time(machine: Machine) -> None:
    machine.start()
    machine.loop.receive(request_of(1))
    machine.hear_of_end(1)
    time.sleep(0.5)
    machine.stop()
    assert machine.cpu_seconds < 0.25


def test_stop_returns_though_requests_run(machine: Machine) -> None:
    machine.loop.receive(request_of(1, max_tokens=60))
    machine.start()
    machine.hear()
    machine.stop()
    assert machine.error is None


def test_what_a_step_raises_ends_the_loop(machine: Machine) -> None:
    def explode(*_: object) -> None:
        raise ArithmeticError("the device fell off the bus")

    machine.core.executor.execute = explode  # pyright: ignore[reportAttributeAccessIssue]
    machine.loop.receive(request_of(1))
    machine.start()
    machine.thread.join(10)
    assert isinstance(machine.error, ArithmeticError)


def test_a_utility_that_raises_anything_answers_with_it(machine: Machine) -> None:
    def explode() -> None:
        raise KeyError("lost")

    machine.core.check_integrity = explode  # pyright: ignore[reportAttributeAccessIssue]
    machine.start()
    machine.loop.receive(UtilityCall(0, 7, "check_integrity"))
    result = machine.hear_result()
    assert (result.call_id, result.error) == (7, "KeyError: 'lost'")
    machine.loop.receive(UtilityCall(0, 8, "__init__"))
    assert "no utility" in str(machine.hear_result().error)


def test_each_client_hears_of_its_own_requests_and_one_alone_of_the_state() -> None:
    machine = Machine(num_clients=2)
    machine.loop.receive(request_of(1, client=0))
    machine.loop.receive(request_of(1, client=1, max_tokens=6))
    machine.start()
    tokens = {0: 0, 1: 0}
    ends: list[int] = []
    while len(ends) < 2:
        client, message = machine.said.get(timeout=10)
        tokens[client] += len(message.handles) // 4
        ends += [client] * len(message.finished)
        assert (message.stats is not None) == (client == 0)
        assert message.has_news
    machine.stop()
    assert tokens == {0: 4, 1: 6}
    assert ends == [0, 1]
