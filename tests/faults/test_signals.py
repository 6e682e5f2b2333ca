"""SIGTERM and Ctrl-C, at any time: within five seconds everything has ended, with the documented exit code.

Exit codes of ``octavo serve``: 0 once it listens, the signal's own (or 130 for Ctrl-C) while Python still starts.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from checkpoints import make_checkpoint
from counting import children, cpu_seconds, folders, gone, until
from server_process import END_SECONDS, ServerProcess, Stream, gauge, wait_behind_eight

Serve = Callable[..., ServerProcess]
SIGNALS = [signal.SIGTERM, signal.SIGINT]
EARLY_CODES = {0, 130, -signal.SIGTERM, -signal.SIGINT}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def octavo(checkpoint: Path, nothing_is_left: None) -> Iterator[Callable[..., ServerProcess]]:
    """Starts the real command on a small real model."""
    servers: list[ServerProcess] = []

    def start(port: int = 0) -> ServerProcess:
        settings = ("--dtype", "float32", "--max-model-len", "512", "--port", str(port))
        servers.append(ServerProcess.octavo("serve", str(checkpoint), *settings))
        return servers[-1]

    yield start
    for server in servers:
        server.clean_up()


def no_traceback(server: ServerProcess) -> bool:
    return "Traceback" not in server.log


# At which moment.


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_while_nothing_runs(serve: Serve, number: signal.Signals) -> None:
    server = serve()
    server.wait_ready()
    server.signal(number)
    assert server.end() == 0
    assert no_traceback(server)
    assert server.folders() == []


@pytest.mark.parametrize("executor", ["uni", "mp"])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_while_the_engine_loads(serve: Serve, number: signal.Signals, executor: str) -> None:
    server = serve("SlowLoadingWorker", executor)
    server.wait_listening()
    server.wait_children(1 if executor == "uni" else 2)
    server.signal(number)
    assert server.end() == 0
    assert no_traceback(server)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_while_requests_run(serve: Serve, number: signal.Signals) -> None:
    server = serve(shutdown_timeout=1.0)
    url = server.wait_ready()
    endless, plain = Stream(url), Stream(url, stream=False)
    endless.wait_flowing()
    until(lambda: gauge(url, "num_requests_running") == 2, "both run")
    short = Stream(url, max_tokens=200)
    short.wait_flowing()
    server.signal(number)
    until(lambda: refused(url), "new requests are refused", 3)
    assert short.done.wait(5)
    assert short.events[-1] == "[DONE]"
    assert short.events[-2]["choices"][0]["finish_reason"] == "length"
    assert endless.last_error == "stopping"
    assert (plain.last_error, plain.status) == ("stopping", 503)
    assert server.end() == 0
    assert no_traceback(server)


def test_without_time_to_drain_every_request_is_told_at_once(serve: Serve) -> None:
    server = serve(shutdown_timeout=0)
    url = server.wait_ready()
    streams, plain = [Stream(url) for _ in range(7)], Stream(url, stream=False)
    for stream in streams:
        stream.wait_flowing()
    streams.append(wait_behind_eight(url))
    server.signal(signal.SIGTERM)
    assert {stream.last_error for stream in streams} == {"stopping"}
    assert (plain.last_error, plain.status) == ("stopping", 503)
    assert server.end() == 0
    assert no_traceback(server) and server.folders() == []


def refused(url: str) -> bool:
    try:
        return httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=5).status_code == 503
    except httpx.TransportError:
        return True


def test_a_second_signal_ends_a_long_drain(serve: Serve) -> None:
    server = serve(shutdown_timeout=100)
    url = server.wait_ready()
    stream = Stream(url)
    stream.wait_flowing()
    server.signal(signal.SIGTERM)
    server.wait_for(r"(may go on for 100 s)")
    count = len(stream.events)
    until(lambda: len(stream.events) > count + 50, "the stream goes on")
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    assert stream.last_error == "stopping"
    assert no_traceback(server)


def test_any_number_of_signals_ends_everything(serve: Serve) -> None:
    server = serve(shutdown_timeout=100)
    stream = Stream(server.wait_ready())
    stream.wait_flowing()
    for _ in range(20):
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGINT)
    # One that comes when all is done, and Python itself ends, may still decide the code.
    assert server.end() in EARLY_CODES
    assert no_traceback(server)


def test_while_the_engine_hangs(serve: Serve) -> None:
    server = serve("HangingWorker")
    Stream(server.wait_ready()).wait_flowing()
    server.signal(signal.SIGTERM)
    assert server.end(0.5 + END_SECONDS) == 0


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_at_any_moment_of_a_real_start(octavo: Serve, number: signal.Signals) -> None:
    chance = random.Random(number)
    for _ in range(4):
        server = octavo()
        time.sleep(chance.uniform(0.0, 0.9))  # not to wait for anything: any moment is a good one
        server.signal(number)
        code = server.end()
        assert code in EARLY_CODES, server.log
        if "listening" in server.log:
            assert code == 0, server.log
        if server.family:
            assert no_traceback(server), server.log
        assert server.folders() == []


def test_a_real_server_answers_and_ends(octavo: Serve) -> None:
    server = octavo()
    url = server.wait_ready()
    body = {"messages": [{"role": "user", "content": "the hat"}], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200
    server.signal(signal.SIGTERM)
    assert server.end() == 0


def test_signals_to_every_process_at_once_still_let_requests_finish(serve: Serve) -> None:
    """As a service manager sends them."""
    server = serve(shutdown_timeout=30)
    url = server.wait_ready()
    stream = Stream(url, max_tokens=600)
    stream.wait_flowing()
    for pid in (*server.see_family(), server.pid):
        os.kill(pid, signal.SIGTERM)
    assert stream.done.wait(20)
    assert stream.events[-1] == "[DONE]"
    assert server.end() == 0


# The port.


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_told_before_anything_starts(octavo: Serve, host: str) -> None:
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        server = octavo(port)
        assert server.end() == 1
        assert len(server.lines) == 1
        assert f"port {port} " in server.lines[0]
        assert "in use" in server.lines[0]
        assert not server.family
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass  # the other one is not disturbed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a plain user")
def test_a_port_that_only_root_may_open_is_told_to_a_plain_user() -> None:
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
        if int(file.read()) <= 81:
            pytest.skip("any user may open any port here")
    # The folders of this checkout may be closed to other users, so modules are imported before root is given up.
    program = """
        import encodings.idna, os
        from octavo.api.listener import open_listener
        from octavo.core.errors import ConfigurationError
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        try:
            open_listener("127.0.0.1", 81)
        except ConfigurationError as error:
            print(error)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told == "port 81 may not be opened by this user; choose one from 1024 on with --port\n"


def test_the_port_is_free_again_at_once(octavo: Serve, serve: Serve) -> None:
    first = serve()
    url = first.wait_ready()
    Stream(url, max_tokens=5).done.wait(10)
    first.signal(signal.SIGTERM)
    first.end()
    port = int(url.rpartition(":")[2])
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


# Programs.


PROGRAM = """
    import sys
    from octavo import LLM, SamplingParams
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=512)
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    try:
        print("ready", flush=True)
        while True:
            llm.generate(["the hat"] * 4, params)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(len(llm.generate("the hat", SamplingParams(max_tokens=3, ignore_eos=True))), flush=True)
"""


@pytest.fixture
def program(checkpoint: Path, nothing_is_left: None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(PROGRAM), str(checkpoint)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_program_can_go_on_after_ctrl_c(program: subprocess.Popen[str]) -> None:
    assert read_line(program) == "ready"
    program.send_signal(signal.SIGINT)
    assert read_line(program) == "interrupted"
    assert read_line(program) == "1"
    assert program.wait(END_SECONDS) == 0
    assert folders(program.pid) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_program_that_is_killed_takes_its_engine_along(
    program: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert read_line(program) == "ready"
    family = children(program.pid)
    assert family
    program.send_signal(number)
    assert program.wait(END_SECONDS) == -number
    until(lambda: all(gone(pid) for pid in family), "the engine ended", END_SECONDS)
    assert folders(program.pid) == []


def test_ctrl_c_while_an_llm_loads_ends_the_program(program: subprocess.Popen[str]) -> None:
    until(lambda: bool(children(program.pid)), "the engine starts")
    family = children(program.pid)
    program.send_signal(signal.SIGINT)
    program.wait(END_SECONDS)
    until(lambda: all(gone(pid) for pid in family), "the engine ended", END_SECONDS)
    assert folders(program.pid) == []


# Nothing to do.


def test_an_idle_server_uses_next_to_no_processor_time(octavo: Serve) -> None:
    server = octavo()
    url = server.wait_ready()
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 4}, timeout=60).status_code == 200
    time.sleep(0.5)
    processes = [server.pid, *server.see_family()]
    before = sum(cpu_seconds(pid) for pid in processes)
    time.sleep(2.0)
    used = sum(cpu_seconds(pid) for pid in processes) - before
    assert used < 0.05 * 2.0
