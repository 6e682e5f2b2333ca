"""The life of the server process: ports, loading, signals, the engine's death. Each test runs a real process."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "stub_server.py"
ENDLESS = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 2000}


class ServerProcess:
    """One server; ``log`` is what it wrote so far."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = 30.0) -> str:
        """The first group of a pattern in the log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log)
            if found:
                return found.group(1)
            time.sleep(0.02)
        raise AssertionError(f"{pattern} did not come:\n{self.log}")

    def url(self, state: str = "ready") -> str:
        """The address, once the server listens or is ready."""
        return self.wait_for(r"is ready on (http\S+)" if state == "ready" else r"listening on (http[^\s,]+)")

    def end(self, seconds: float = 20.0) -> int:
        """The exit code, once the process has ended by itself."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[ServerProcess]:
    """A server that is gone afterwards, whatever happens."""
    server = ServerProcess(*arguments)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


class Stream:
    """A chat stream that is read in the background."""

    def __init__(self, url: str, body: dict) -> None:
        self.events: list[dict | str] = []
        self.status: int | None = None
        self.thread = threading.Thread(target=self._read, args=(url, body), daemon=True)
        self.thread.start()

    def _read(self, url: str, body: dict) -> None:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
            self.status = response.status_code
            if not body.get("stream"):
                self.events.append(json.loads(response.read()))
                return
            for line in response.iter_lines():
                if line:
                    self.events.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))

    def wait_started(self) -> None:
        """Until a few chunks came."""
        deadline = time.monotonic() + 10
        while len(self.events) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(self.events) >= 3

    def finish(self) -> dict | str:
        """The last event."""
        self.thread.join(20)
        assert not self.thread.is_alive(), "the stream never ended"
        return self.events[-1]


def no_traceback(server: ServerProcess) -> bool:
    return "Traceback" not in server.log


@pytest.mark.parametrize("held", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_told_at_once_and_nothing_is_started(held: str) -> None:
    with socket.socket() as holder:
        holder.bind((held, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with serving("--port", str(port)) as server:
            assert server.end() == 1
            assert server.lines[-1].startswith("error: ") and str(port) in server.lines[-1]
            assert len(server.lines) == 1
        with socket.create_connection(holder.getsockname()[:2], timeout=5):
            pass


def test_port_zero_takes_a_free_port_and_logs_it() -> None:
    with serving("--port", "0") as server:
        url = server.url()
        assert not url.endswith(":0")
        assert httpx.get(f"{url}/health").json() == {"status": "ready"}


def test_while_loading_health_says_so_and_requests_are_told_to_come_back() -> None:
    with serving("--load-seconds", "60") as server:
        url = server.url("listening")
        health = httpx.get(f"{url}/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        answer = httpx.post(f"{url}/v1/chat/completions", json=ENDLESS)
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "loading"
        assert httpx.get(f"{url}/v1/models").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end(5) == 0
        assert "stub engine was shut down" in server.log and no_traceback(server)


def test_an_engine_that_does_not_start_ends_the_server_with_the_cause_as_its_last_line() -> None:
    with serving("--fail-start") as server:
        assert server.end() == 1
        assert server.lines[-1] == "error: the engine did not start: config.json is missing"
        assert "stub engine was shut down" in server.log and no_traceback(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_cleanly(number: signal.Signals) -> None:
    with serving() as server:
        url = server.url()
        with httpx.Client() as client:
            client.get(f"{url}/health")  # an open keep-alive connection must not hold up the end
            server.process.send_signal(number)
            assert server.end(5) == 0
        assert "stub engine was shut down" in server.log and no_traceback(server)


def test_draining_lets_short_requests_end_and_ends_the_others_with_an_error() -> None:
    with serving("--shutdown-timeout", "1.5", "--step-seconds", "0.1") as server:
        url = server.url()
        # About six steps of 0.1 s, against 2000 steps.
        short = Stream(url, ENDLESS | {"stream": True, "max_tokens": 6})
        long = Stream(url, ENDLESS | {"stream": True})
        plain = Stream(url, ENDLESS)
        long.wait_started()
        with httpx.Client() as client:
            assert client.get(f"{url}/health").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("(stopping)")
            with contextlib.suppress(httpx.TransportError):
                assert client.post(f"{url}/v1/chat/completions", json=ENDLESS).json()["error"]["code"] == "stopping"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        assert short.finish() == "[DONE]"
        last = long.finish()
        assert isinstance(last, dict) and last["error"]["code"] == "stopping"
        answer = plain.finish()
        assert plain.status == 503 and isinstance(answer, dict) and answer["error"]["code"] == "stopping"
        assert server.end(6) == 0
        assert no_traceback(server)


def test_a_second_signal_does_not_wait_for_the_deadline() -> None:
    with serving("--shutdown-timeout", "600") as server:
        stream = Stream(server.url(), ENDLESS | {"stream": True})
        stream.wait_started()
        server.process.send_signal(signal.SIGINT)
        server.wait_for("(stopping; 1)")
        server.process.send_signal(signal.SIGINT)
        assert server.end(6) == 0
        last = stream.finish()
        assert isinstance(last, dict) and last["error"]["code"] == "stopping"


def test_the_engines_death_is_told_to_every_request_and_ends_the_server_with_its_cause() -> None:
    with serving("--die-after", "1.5", "--step-seconds", "0.1") as server:
        url = server.url()
        stream = Stream(url, ENDLESS | {"stream": True})
        plain = Stream(url, ENDLESS)
        stream.wait_started()
        server.wait_for("(killed by signal 9); ending all open")
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503 and "signal 9" in health.json()["error"]
        refused = httpx.post(f"{url}/v1/chat/completions", json=ENDLESS)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_dead"
        last = stream.finish()
        assert isinstance(last, dict) and last["error"]["code"] == "engine_dead"
        plain.finish()
        assert plain.status == 503
        assert server.end(6) == 1
        assert server.lines[-1] == "error: the engine process was killed by signal 9"
        assert no_traceback(server)
