"""``octavo bench startup``: from ``octavo serve`` to the first token, step by step.

The child is watched from outside (when its port opens, when it is healthy, when the first token comes) and tells the
steps in between itself, through the file that ``OCTAVO_STARTUP_JSON`` names (see ``core/startup.py``).
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cyclopts import Parameter

from ...core.errors import EngineStartError
from ...core.limits import check_least
from ..client import ServerClient
from ..config_file import UsageError
from ..listener import open_listener
from .report import print_table, progress, write_json

BAR_WIDTH = 40
PROMPT = "What is the capital of France?"


@Parameter(name="*")
@dataclass(kw_only=True)
class StartupArgs:
    """How often, and how long to wait."""

    repeat: int = 1
    """Starts to measure. The fastest is shown; the others' totals are printed beside it."""

    timeout: float = 600.0
    """Seconds after which a start counts as failed."""

    json: Path | None = None
    """Also write the results to this file."""


@dataclass(slots=True)
class Start:
    """One start: what was done when, in seconds since the process was created."""

    steps: list[tuple[str, float]]

    @property
    def total(self) -> float:
        """Seconds to the first token."""
        return self.steps[-1][1]

    def rows(self) -> list[list[object]]:
        """Step, when it ended, how long it took, and a bar. A step begins where its process's last one ended."""
        ends: dict[str, float] = {}
        rows: list[list[object]] = []
        for name, end in self.steps:
            process, _, _ = name.partition(":")
            # A process's first step begins with the step before it, which is the one that spawned it.
            begin = ends.get(process, rows[-1][1] if rows else 0.0)
            begin = min(float(str(begin)), end)
            ends[process] = end
            rows.append([name, end, end - begin, _bar(begin, end, self.total)])
        return rows


def run_startup(serve_flags: Sequence[str], args: StartupArgs) -> int:
    """Starts ``octavo serve`` with ``serve_flags``, prints the waterfall and writes the JSON. The exit code."""
    check_least(args, UsageError, repeat=1)
    command = [sys.executable, "-P", "-m", "octavo.api.cli", "serve", *serve_flags]
    starts = []
    for number in range(args.repeat):
        start = measure_start(command, args.timeout)
        progress(f"start {number + 1} of {args.repeat}: {start.total:.2f} s to the first token")
        starts.append(start)
    best = min(starts, key=lambda start: start.total)
    columns = ["step", "done at, s", "took, s", "0 s" + f"{best.total:.1f} s".rjust(BAR_WIDTH - 3)]
    print_table(" ".join(("Start of octavo serve", *serve_flags)), columns, best.rows())
    result = {"seconds": [start.total for start in starts], "steps": dict(best.steps), "flags": list(serve_flags)}
    write_json(args.json, "startup", result)
    return 0


def measure_start(command: Sequence[str], timeout: float) -> Start:
    """Runs one server until its first token, and ends it. Raises ``EngineStartError`` if that does not come."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="octavo-startup-") as folder:
        report, log = Path(folder) / "startup.json", Path(folder) / "log"
        environment = os.environ | {"OCTAVO_STARTUP_JSON": str(report)}
        with log.open("wb") as output:
            began = time.time()
            # A session of its own: Ctrl-C reaches the server through us, once, and not also from the terminal.
            server = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                outside = _watch(server, log, port, began + timeout)
            finally:
                _end(server)
        inside = _read_report(report)
    events = sorted({**inside, **outside}.items(), key=lambda item: item[1])
    first_token = outside["client: first token"]
    return Start([(name, when - began) for name, when in events if began <= when <= first_token])


def _watch(server: "subprocess.Popen[bytes]", log: Path, port: int, deadline: float) -> dict[str, float]:
    """Times at which the port opened, the server was ready and the first token came."""
    url = f"http://127.0.0.1:{port}"
    times = {}
    _wait("open its port", server, log, deadline, lambda: _accepts(port))
    times["client: port open"] = time.time()
    with httpx.Client(base_url=url, trust_env=False, timeout=10.0) as http:
        _wait("get ready", server, log, deadline, lambda: _healthy(http))
    times["client: healthy"] = time.time()
    with ServerClient(url) as client:
        model = client.first_model()
        for _ in client.stream_completion(PROMPT, model=model, max_tokens=1, temperature=0.0):
            times["client: first token"] = time.time()
            break
    if "client: first token" not in times:
        raise EngineStartError("the server's first answer held no text")
    return times


def _wait(what: str, server: "subprocess.Popen[bytes]", log: Path, deadline: float, done: Callable[[], bool]) -> None:
    """Asks ``done`` every 10 ms, until it says yes or the server has ended or the time is over."""
    while not done():
        if server.poll() is not None:
            raise EngineStartError(f"octavo serve ended with code {server.returncode} and said: {_last_line(log)}")
        if time.time() > deadline:
            raise EngineStartError(f"octavo serve did not {what} in time and last said: {_last_line(log)}")
        time.sleep(0.01)


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _end(server: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and after ten seconds SIGKILL: the server's children end with it."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _read_report(path: Path) -> dict[str, float]:
    """The server's own marks; none if it wrote no file."""
    try:
        report: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {str(name): float(when) for name, when in report["marks"].items()}


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"


def _free_port() -> int:
    with open_listener("127.0.0.1", 0) as probe:
        return probe.getsockname()[1]


def _bar(begin: float, end: float, total: float) -> str:
    left = min(round(BAR_WIDTH * begin / total), BAR_WIDTH - 1)
    return " " * left + "#" * max(1, round(BAR_WIDTH * end / total) - left)
