"""The way to an engine: messages arrive in order, the end is told with its cause, nothing blocks or is left behind."""

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from counting import children, folders, gone, shared_memory, until
from scripted_transport import text_config

from octavo.core.config import EngineConfig, ParallelConfig
from octavo.core.engine_input import AbortRequests, EngineCoreRequest, UtilityCall
from octavo.core.engine_output import EngineCoreOutputs, EngineGone, EngineReady
from octavo.core.sampling_params import SamplingParams
from octavo.engine.process_transport import ProcessTransport
from octavo.engine.seat_transport import SeatTransport
from octavo.engine.thread_transport import ThreadTransport
from octavo.engine.transport import EngineTransport, make_transport

PATIENCE = 30.0


def config_of(worker: str = "CountingWorker", executor: str = "uni") -> EngineConfig:
    parallel = ParallelConfig(worker=f"faulty_workers:{worker}", executor=executor)
    return msgspec.structs.replace(text_config(), parallel=parallel)


class Line:
    """A transport, and what came over it."""

    def __init__(self, transport: EngineTransport) -> None:
        self.transport = transport
        self.heard: queue.Queue[Any] = queue.Queue()
        transport.start(self.heard.put)

    def hear(self) -> Any:
        return self.heard.get(timeout=PATIENCE)

    def hear_until(self, wanted: Callable[[Any], bool]) -> Any:
        while not wanted(message := self.hear()):
            assert not isinstance(message, EngineGone), message
        return message

    def call(self, number: int, method: str, *arguments: Any) -> Any:
        self.transport.send(UtilityCall(0, number, method, list(arguments)))
        message = self.hear_until(lambda m: isinstance(m, EngineCoreOutputs) and bool(m.results))
        assert message.results[0].call_id == number
        return message.results[0]


def request_of(handle: int, max_tokens: int = 5, **changes: Any) -> EngineCoreRequest:
    prompt = np.array([5, 6, 7], dtype=np.int32).tobytes()
    params = SamplingParams(max_tokens=max_tokens)
    request = EngineCoreRequest(f"r{handle}", handle, 0, prompt, params, 1, 3 + max_tokens, 0.0)
    return msgspec.structs.replace(request, **changes)


@pytest.fixture(params=["thread", "process"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_line(kind: str) -> Iterator[Callable[..., Line]]:
    lines: list[Line] = []

    def make(worker: str = "CountingWorker", executor: str = "uni") -> Line:
        lines.append(Line(make_transport(config_of(worker, executor), kind == "process")))
        return lines[-1]

    yield make
    for line in lines:
        line.transport.close()
        line.transport.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    processes, memory = set(children()), shared_memory()
    yield
    until(lambda: set(children()) <= processes, "child processes ended")
    assert folders(os.getpid()) == []
    assert shared_memory() <= memory


def test_ready_comes_first_and_then_what_was_asked_for(open_line: Callable[..., Line]) -> None:
    line = open_line()
    ready = line.hear()
    assert isinstance(ready, EngineReady)
    assert (ready.num_blocks, ready.max_model_len) == (63, 252)
    line.transport.send(request_of(3))
    last = line.hear_until(lambda message: bool(message.finished))
    assert (last.finished[0].handle, last.finished[0].reason) == (3, "length")


def test_requests_sent_one_after_the_other_start_in_that_order(open_line: Callable[..., Line]) -> None:
    line = open_line()
    line.hear()
    for handle in range(30):
        line.transport.send(request_of(handle))
    started: list[int] = []
    while len(started) < 30:
        started += [start.handle for start in line.hear().started]
    assert started == list(range(30))


def test_an_abort_sent_behind_its_request_ends_it(open_line: Callable[..., Line]) -> None:
    line = open_line()
    line.hear()
    line.transport.send(request_of(1, max_tokens=240))
    line.transport.send(AbortRequests(0, [1, 99]))
    stats = line.hear_until(lambda m: m.stats is not None and m.stats.num_running + m.stats.num_waiting == 0).stats
    assert stats.num_free_blocks == stats.num_blocks
    assert line.call(5, "check_integrity").error is None


def test_a_request_that_cannot_be_prepared_is_answered_with_an_error(open_line: Callable[..., Line]) -> None:
    line = open_line()
    line.hear()
    line.transport.send(request_of(4, prompt_token_ids=b"abc"))
    finished = line.hear_until(lambda message: bool(message.finished)).finished[0]
    assert (finished.handle, finished.reason) == (4, "error")
    assert "buffer size" in finished.error
    line.transport.send(request_of(5))
    assert line.hear_until(lambda message: bool(message.finished)).finished[0].reason == "length"


def test_utilities_answer_and_a_wrong_call_is_an_error_of_the_caller(open_line: Callable[..., Line]) -> None:
    line = open_line()
    line.hear()
    assert "no utility" in line.call(1, "shutdown").error
    assert "TypeError" in line.call(2, "reset_prefix_cache", 5).error
    assert line.call(3, "request_timeline", "nobody").result == []
    assert line.call(4, "check_integrity").error is None


@pytest.mark.parametrize(
    ("worker", "cause", "configuration"),
    [
        ("RefusingWorker", "the checkpoint is not to my taste; take another one", True),
        ("BrokenWorker", "IndexError: no such layer", False),
        ("NoSuchWorker", "NoSuchWorker", True),
    ],
)
def test_an_engine_that_cannot_start_tells_why(
    open_line: Callable[..., Line], worker: str, cause: str, configuration: bool
) -> None:
    end = open_line(worker).hear()
    assert isinstance(end, EngineGone)
    assert cause in end.message
    assert end.configuration is configuration


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_an_engine_that_fails_in_a_step_tells_why(open_line: Callable[..., Line], executor: str) -> None:
    line = open_line("FailingWorker", executor)
    line.hear()
    line.transport.send(request_of(1, max_tokens=200))
    while not isinstance(message := line.hear(), EngineGone):
        pass
    assert "ArithmeticError: the device fell off the bus" in message.message
    assert not message.configuration
    line.transport.send(request_of(2))  # dropped, and does not block
    line.transport.send(AbortRequests(0, [1]))


def test_it_can_be_closed_at_any_time(kind: str) -> None:
    transport = make_transport(config_of(), kind == "process")
    transport.close()
    transport.close()
    started = make_transport(config_of(), kind == "process")
    started.start(lambda message: None)
    started.close()
    started.send(request_of(1))


def test_it_can_be_closed_while_a_step_runs(open_line: Callable[..., Line]) -> None:
    line = open_line()
    line.hear()
    for handle in range(8):
        line.transport.send(request_of(handle, max_tokens=200))
    line.hear_until(lambda message: bool(message.started))
    line.transport.close()
    assert not any(isinstance(message, EngineGone) for message in line.heard.queue)


# Only where there is a process.


@pytest.fixture
def transport() -> Iterator[ProcessTransport]:
    transport = ProcessTransport(config_of())
    yield transport
    transport.close()


def test_the_socket_folder_is_private_and_gone_once_the_engine_said_hello(transport: ProcessTransport) -> None:
    (folder,) = folders(os.getpid())
    assert folder.stat().st_mode & 0o777 == 0o700
    line = Line(transport)
    assert isinstance(line.hear(), EngineReady)
    assert folders(os.getpid()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_engine_is_told_and_what_is_sent_to_it_does_not_block(
    transport: ProcessTransport, number: signal.Signals
) -> None:
    line = Line(transport)
    line.hear()
    assert transport.pid is not None
    os.kill(transport.pid, number)
    until(lambda: gone(transport.pid or 0), "the engine died")

    def talk() -> None:
        for handle in range(100):
            transport.send(request_of(handle))

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    talker.join(10)
    assert not talker.is_alive()
    end = line.hear()
    assert isinstance(end, EngineGone)
    assert end.message == f"the engine process (pid {transport.pid}) ended with signal {number.name}"


def test_an_engine_killed_while_it_loads_is_told() -> None:
    transport = ProcessTransport(config_of("SlowLoadingWorker"))
    try:
        line = Line(transport)
        until(lambda: folders(os.getpid()) == [], "the engine said hello")
        assert transport.pid is not None
        os.kill(transport.pid, signal.SIGKILL)
        assert "signal SIGKILL" in line.hear().message
    finally:
        transport.close()


def test_outputs_come_before_the_news_that_the_engine_is_gone(transport: ProcessTransport) -> None:
    line = Line(transport)
    line.hear()
    for handle in range(20):
        line.transport.send(request_of(handle, max_tokens=200))
    line.hear_until(lambda message: bool(message.started))
    assert transport.pid is not None
    os.kill(transport.pid, signal.SIGKILL)
    while not isinstance(line.hear(), EngineGone):
        pass
    assert line.heard.empty()


def test_an_engine_stuck_in_a_step_is_ended_by_force() -> None:
    transport = ProcessTransport(config_of("HangingWorker"))
    line = Line(transport)
    line.hear()
    transport.send(request_of(1, max_tokens=200))
    line.hear_until(lambda message: bool(message.started))
    transport.close()
    assert gone(transport.pid or 0)


def test_the_engine_leaves_signals_that_go_to_all_processes_to_its_parent(transport: ProcessTransport) -> None:
    line = Line(transport)
    line.hear()
    assert transport.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(transport.pid, number)
    assert line.call(1, "check_integrity").error is None


def test_a_request_that_the_engine_cannot_read_is_answered_with_an_error(transport: ProcessTransport) -> None:
    line = Line(transport)
    line.hear()
    params = SamplingParams()
    msgspec.structs.force_setattr(params, "top_p", "high")
    transport.send(request_of(7, params=params))
    finished = line.hear_until(lambda message: bool(message.finished)).finished[0]
    assert (finished.handle, finished.reason) == (7, "error")
    assert "top_p" in finished.error
    assert line.call(1, "check_integrity").error is None


def test_every_client_of_an_engine_has_a_seat_of_its_own() -> None:
    owner = ProcessTransport(config_of(), num_clients=3)
    others = [SeatTransport(seat) for seat in owner.seats]
    assert [one.client_index for one in (owner, *others)] == [0, 1, 2]
    assert len(folders(os.getpid())) == 3
    lines = [Line(one) for one in (owner, *others)]
    try:
        for line in lines:
            assert isinstance(line.hear(), EngineReady)
        assert folders(os.getpid()) == []
        for index, line in enumerate(lines):
            line.transport.send(request_of(1, max_tokens=5 + index, client_index=index))
        for index, line in enumerate(lines):
            num_tokens = 0
            while not (message := line.hear()).finished:
                num_tokens += len(message.handles) // 4
                assert (message.stats is None) == (index > 0)
            assert num_tokens + len(message.handles) // 4 == 5 + index
        assert all(line.heard.empty() for line in lines[1:])
    finally:
        for line in reversed(lines):
            line.transport.close()


def test_a_client_that_comes_late_misses_nothing() -> None:
    owner = ProcessTransport(config_of(), num_clients=2)
    line = Line(owner)
    try:
        assert isinstance(line.hear(), EngineReady)
        late = Line(SeatTransport(owner.seats[0]))
        assert isinstance(late.hear(), EngineReady)
        late.transport.send(request_of(1, client_index=1))
        assert late.hear_until(lambda message: bool(message.finished)).finished[0].reason == "length"
        late.transport.close()
    finally:
        owner.close()


def test_a_message_that_is_no_message_is_dropped(transport: ProcessTransport) -> None:
    line = Line(transport)
    line.hear()
    for data in (b"", b"\xc1", msgspec.msgpack.encode(["add", 5]), msgspec.msgpack.encode({"a": 1})):
        transport._own._input.send(data)
    assert line.call(1, "check_integrity").error is None


def test_a_thread_engine_takes_what_is_sent_before_it_is_ready() -> None:
    line = Line(ThreadTransport(config_of()))
    line.transport.send(request_of(3))
    assert isinstance(line.hear(), EngineReady)
    assert line.hear_until(lambda message: bool(message.finished)).finished[0].handle == 3
    line.transport.close()
