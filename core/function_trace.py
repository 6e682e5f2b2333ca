"""``OCTAVO_TRACE_FUNCTION=1``: every call of Octavo's own functions, written to a file per process.

For hunting a hang or a crash: the last lines of a process's file say where it was. The files are
``octavo-trace-<process>-<pid>.log`` in ``OCTAVO_TRACE_DIR`` (the system's temporary folder without it). A line is

    seconds since the trace began . thread . depth as dots . > (call) or < (return) . module.function:line

It slows Python code several times over, so nothing measured under it counts.
"""

import atexit
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_ROOMS = ("api", "core", "engine", "executor", "kernels", "worker")


def start_function_trace_if_asked(process_name: str) -> "FunctionTrace | None":
    """Starts the trace of this process when ``OCTAVO_TRACE_FUNCTION`` is 1; otherwise does nothing."""
    if os.environ.get("OCTAVO_TRACE_FUNCTION") != "1":
        return None
    folder = Path(os.environ.get("OCTAVO_TRACE_DIR") or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    trace = FunctionTrace(folder / f"octavo-trace-{process_name}-{os.getpid()}.log")
    trace.start()
    atexit.register(trace.stop)  # before the interpreter takes the hook's own globals away
    return trace


class FunctionTrace:
    """Writes calls and returns of Octavo's functions, in all threads that start after ``start``, to ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = time.perf_counter()
        self._file: TextIO | None = None
        self._names: dict[CodeType, str | None] = {}
        self._local = threading.local()

    def start(self) -> None:
        """Opens the file and installs the hook in this thread and in those to come."""
        # Line buffering: the last call before a crash must be in the file.
        self._file = self.path.open("w", encoding="utf-8", buffering=1)
        self._local.depth = 0
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def stop(self) -> None:
        """Removes the hook and closes the file; threads that still run fall silent."""
        sys.setprofile(None)
        threading.setprofile(None)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call" and event != "return":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = _own_name(code)
        name = self._names[code]
        file = self._file
        if name is None or file is None:
            return
        local = self._local.__dict__
        depth = local.get("depth", 0)
        if event == "return":
            depth = max(0, depth - 1)
        seconds = time.perf_counter() - self._began
        mark = ">" if event == "call" else "<"
        file.write(f"{seconds:12.6f} {threading.current_thread().name} {'.' * depth}{mark} {name}:{frame.f_lineno}\n")
        local["depth"] = depth + 1 if event == "call" else depth


def _own_name(code: CodeType) -> str | None:
    """``core.scheduler.Scheduler.schedule`` for code of a room of ours, None for everybody else's."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_PACKAGE_ROOT):
        return None
    parts = path.relative_to(_PACKAGE_ROOT).with_suffix("").parts
    if parts[0] not in _ROOMS or parts[-1] == "function_trace":
        return None
    return ".".join((*parts, code.co_qualname))
