"""Any process of a server is killed, at any time: everybody is told, and within five seconds nothing is left."""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from counting import gone, until
from server_process import ServerProcess, Stream, gauge, wait_behind_eight

from octavo.engine.process_transport import remove_stale_folders

Serve = Callable[..., ServerProcess]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def no_traceback(server: ServerProcess) -> bool:
    return "Traceback" not in server.log


def test_the_engine_is_killed_while_requests_run(serve: Serve) -> None:
    server = serve()
    url = server.wait_ready()
    (engine,) = server.wait_children(1)
    streams = [Stream(url) for _ in range(6)]
    plain = [Stream(url, stream=False) for _ in range(2)]
    for stream in streams:
        stream.wait_flowing()
    streams.append(wait_behind_eight(url))
    kill(engine)
    until(lambda: httpx.get(f"{url}/health").status_code == 503, "/health tells it", 3)
    began = time.monotonic()
    refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
    assert refused.status_code >= 500
    assert time.monotonic() - began < 1
    assert httpx.get(f"{url}/v1/models").status_code == 200
    assert [stream.last_error for stream in streams] == ["engine_dead"] * 7
    assert [(one.last_error, one.status) for one in plain] == [("engine_dead", 503)] * 2
    assert server.end() == 1
    assert server.lines[-1] == f"octavo: the engine process (pid {engine}) ended with signal SIGKILL"
    assert no_traceback(server)


def test_the_engine_is_killed_while_nothing_runs(serve: Serve) -> None:
    server = serve()
    server.wait_ready()
    (engine,) = server.wait_children(1)
    kill(engine)
    assert server.end() == 1
    assert server.lines[-1] == f"octavo: the engine process (pid {engine}) ended with signal SIGKILL"
    assert no_traceback(server)


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_the_engine_is_killed_while_it_loads(serve: Serve, executor: str) -> None:
    server = serve("SlowLoadingWorker", executor)
    url = server.wait_listening()
    assert httpx.get(f"{url}/health").status_code == 503
    server.wait_children(1 if executor == "uni" else 2)
    (engine,) = children_of(server)
    kill(engine)
    assert server.end() == 1
    assert server.lines[-1] == f"octavo: the engine process (pid {engine}) ended with signal SIGKILL"
    assert no_traceback(server)


def children_of(server: ServerProcess) -> list[int]:
    """The direct children alone: the engine."""
    direct = []
    for pid in server.see_family():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[1]) == server.pid:
            direct.append(pid)
    return direct


def test_a_worker_process_is_killed_while_requests_run(serve: Serve) -> None:
    server = serve(executor="mp")
    url = server.wait_ready()
    server.wait_children(2)
    (engine,) = children_of(server)
    (worker,) = server.family - {engine}
    stream, plain = Stream(url), Stream(url, stream=False)
    stream.wait_flowing()
    until(lambda: gauge(url, "num_requests_running") == 2, "both run")
    kill(worker)
    assert (stream.last_error, plain.last_error, plain.status) == ("engine_dead", "engine_dead", 503)
    assert server.end() == 1
    assert f"worker 0 (pid {worker}) is gone" in server.lines[-1]
    assert no_traceback(server)


def test_a_worker_process_is_killed_while_nothing_runs(serve: Serve) -> None:
    server = serve(executor="mp")
    server.wait_ready()
    server.wait_children(2)
    (engine,) = children_of(server)
    (worker,) = server.family - {engine}
    kill(worker)
    assert server.end() == 1
    assert f"worker 0 (pid {worker}) is gone" in server.lines[-1]


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_a_step_that_raises_ends_the_server_with_its_cause(serve: Serve, executor: str) -> None:
    server = serve("FailingWorker", executor)
    url = server.wait_ready()
    stream = Stream(url)
    assert stream.last_error == "engine_dead"
    assert server.end() == 1
    assert "ArithmeticError: the device fell off the bus" in server.lines[-1]
    assert no_traceback(server)


@pytest.mark.parametrize(
    ("worker", "cause"),
    [
        ("RefusingWorker", "octavo: the checkpoint is not to my taste; take another one"),
        ("BrokenWorker", "no such layer"),
    ],
)
@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_an_engine_that_cannot_start_ends_the_server_with_one_line(
    serve: Serve, worker: str, cause: str, executor: str
) -> None:
    server = serve(worker, executor)
    server.wait_for(r"(octavo: .*)")
    assert server.end() == 1
    assert cause in server.lines[-1]
    assert no_traceback(server)


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_the_server_is_killed_while_requests_run(serve: Serve, executor: str) -> None:
    server = serve(executor=executor)
    url = server.wait_ready()
    server.wait_children(1 if executor == "uni" else 2)
    stream = Stream(url)
    stream.wait_flowing()
    server.signal(signal.SIGKILL)
    assert server.end() == -signal.SIGKILL
    assert server.folders() == []
    assert stream.done.wait(5)


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_the_server_is_killed_while_the_engine_loads(serve: Serve, executor: str) -> None:
    server = serve("SlowLoadingWorker", executor)
    server.wait_listening()
    server.wait_children(1 if executor == "uni" else 2)
    until(lambda: server.folders() == [], "the engine said hello")
    server.signal(signal.SIGKILL)
    assert server.end() == -signal.SIGKILL
    assert server.folders() == []


def test_the_server_is_killed_while_the_engine_hangs(serve: Serve) -> None:
    server = serve("HangingWorker")
    url = server.wait_ready()
    Stream(url).wait_flowing()
    server.signal(signal.SIGKILL)
    assert server.end() == -signal.SIGKILL


def test_the_server_is_killed_before_the_engine_said_hello(serve: Serve) -> None:
    """A folder may remain then; the next start removes it once it is old and its owner is gone."""
    server = serve("SlowLoadingWorker")
    until(lambda: bool(server.folders()) or bool(server.see_family()), "it makes its folder")
    server.signal(signal.SIGKILL)
    assert server.end() == -signal.SIGKILL
    left = server.folders()
    remove_stale_folders()
    assert server.folders() == left  # another start may be this young
    old = time.time() - 3600
    for folder in left:
        os.utime(folder, (old, old))
    remove_stale_folders()
    assert server.folders() == []


def test_only_folders_of_the_dead_that_are_old_are_removed(
    monkeypatch: pytest.MonkeyPatch, nothing_is_left: None
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are too long for socket files
        monkeypatch.setattr("tempfile.tempdir", folder)
        check_removal(Path(folder))


def check_removal(tmp_path: Path) -> None:
    with open("/proc/sys/kernel/pid_max") as file:
        dead = int(file.read()) - 1
    assert gone(dead)
    names = {
        f"octavo-{dead}-old": True, f"octavo-{dead}-young": False, f"octavo-{os.getpid()}-mine": False,
        "octavo-notes-old": False, f"other-{dead}-old": False,
    }  # fmt: skip
    old = time.time() - 3600
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "in").touch()
        if not name.endswith("young"):
            os.utime(tmp_path / name, (old, old))
    remove_stale_folders()
    assert {name: not (tmp_path / name).exists() for name in names} == names


@pytest.mark.parametrize("round_", range(5))
def test_three_servers_start_at_once_and_one_death_is_its_own(serve: Serve, round_: int) -> None:
    servers = [serve() for _ in range(3)]
    urls = [server.wait_ready() for server in servers]
    assert len(set(urls)) == 3
    streams = [Stream(url) for url in urls]
    for stream in streams:
        stream.wait_flowing()
    servers[0].signal(signal.SIGKILL)
    servers[0].end()
    for stream in streams[1:]:
        count = len(stream.events)
        until(lambda stream=stream, count=count: len(stream.events) > count + 20, "the others go on")
    for server in servers[1:]:
        server.signal(signal.SIGTERM)
        assert server.end() == 0
