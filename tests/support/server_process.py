"""A server as a program of its own, its log, its process tree, and streams of it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from counting import children, folders, gone, until

SUPPORT = Path(__file__).parent
END_SECONDS = 5.0
"""The promise: this long after a signal or a death nothing is left."""


class ServerProcess:
    """Starts at once. ``log`` is what it wrote so far."""

    def __init__(self, arguments: Sequence[str]) -> None:
        paths = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self.process.pid
        self.lines: list[str] = []
        self.family: set[int] = set()
        """Every child that was ever seen."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def octavo(cls, *arguments: str) -> "ServerProcess":
        """The command itself."""
        return cls(["-m", "octavo.api.cli", *arguments])

    @classmethod
    def of_worker(
        cls,
        tokenizer: Path,
        worker: str = "CountingWorker",
        executor: str = "uni",
        shutdown_timeout: float = 0.5,
        api_servers: int = 1,
        hang_timeout: float = 600.0,
        restarts: int = 0,
    ) -> "ServerProcess":
        """The whole server around a worker of the tests."""
        settings = (worker, executor, tokenizer, shutdown_timeout, api_servers, hang_timeout, restarts)
        return cls([str(SUPPORT / "worker_server.py"), *map(str, settings)])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def see_family(self) -> set[int]:
        """The children that run now; remembered."""
        found = set(children(self.pid))
        self.family |= found
        return found

    def wait_for(self, pattern: str, seconds: float = 60.0) -> str:
        """The first group of a pattern in the log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.see_family()
            if found := re.search(pattern, self.log):
                return found.group(1)
            if self.process.poll() is not None:
                self._reader.join(5)
                if not re.search(pattern, self.log):
                    break
            time.sleep(0.02)
        raise AssertionError(f"{pattern} did not come:\n{self.log}")

    def wait_ready(self) -> str:
        """The address, once requests are served."""
        return self.wait_for(r"is ready on (http\S+)")

    def wait_listening(self) -> str:
        """The address, once probes are answered."""
        return self.wait_for(r"listening on (http[^\s,]+)")

    def wait_children(self, count: int) -> set[int]:
        """Once so many children run: the engine, its workers."""
        until(lambda: len(self.see_family()) >= count or self.process.poll() is not None, f"{count} children", 60)
        assert self.process.poll() is None, self.log
        return self.see_family()

    def signal(self, number: signal.Signals) -> None:
        self.see_family()
        self.process.send_signal(number)

    def end(self, seconds: float = END_SECONDS) -> int:
        """The exit code. Fails unless the whole family is gone within ``seconds`` from now."""
        deadline = time.monotonic() + seconds
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds:g} s:\n{self.log}") from None
        left = max(0.1, deadline - time.monotonic())
        until(lambda: all(gone(pid) for pid in self.family), f"children of {self.pid} ended\n{self.log}", left)
        self._reader.join(5)
        return code

    def clean_up(self) -> None:
        """Ends everything by force, whatever state it is in."""
        for pid in [*self.see_family(), self.pid]:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def folders(self) -> list[Path]:
        """Socket folders that it has left."""
        return folders(self.pid)


class Stream:
    """A completion that is read on a thread. ``events`` holds what came; ``fields`` are further ones of the request."""

    def __init__(
        self,
        url: str,
        max_tokens: int = 15_000,
        stream: bool = True,
        client: httpx.Client | None = None,
        **fields: Any,
    ) -> None:
        self._client = client
        self.status: int | None = None
        self.events: list[Any] = []
        self.error: Exception | None = None
        self.done = threading.Event()
        body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream, **fields}
        self._thread = threading.Thread(target=self._run, args=(f"{url}/v1/completions", body), daemon=True)
        self._thread.start()

    def _run(self, url: str, body: dict[str, Any]) -> None:
        try:
            with (self._client or httpx).stream("POST", url, json=body, timeout=60) as response:
                self.status = response.status_code
                if not body["stream"] or self.status != 200:
                    self.events.append(json.loads(response.read()))
                    return
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        text = line.removeprefix("data: ")
                        self.events.append(text if text == "[DONE]" else json.loads(text))
        except httpx.HTTPError as error:
            self.error = error
        finally:
            self.done.set()

    def wait_flowing(self) -> None:
        """Until something has come."""
        until(lambda: len(self.events) > 2 or self.done.is_set(), "the stream flows")
        assert not self.done.is_set(), (self.events, self.error)

    @property
    def last_error(self) -> str:
        """The code of the error event that ended it."""
        assert self.done.wait(10)
        for event in reversed(self.events):
            if isinstance(event, dict) and "error" in event:
                return event["error"]["code"]
        return f"none: {self.events[-1:]} {self.error}"


def wait_behind_eight(url: str) -> Stream:
    """A stream that waits in the queue of a server on which eight others run, the most that the tests' workers take."""
    waiting = Stream(url)
    until(lambda: gauge(url, "num_requests_waiting") == 1, "it waits")
    return waiting


def gauge(url: str, name: str) -> float:
    """The value of one of the server's metrics that has one series."""
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"octavo:{name}{{"))
