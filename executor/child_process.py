"""Child processes that never outlive their parent and never block its end.

    parent                                       child
    ------                                       -----
    Popen(own process group) ------------------> run_child(): ask the kernel for SIGKILL when the parent dies
    payload --> child's standard input --------> read the payload, then watch the pipe: end of file = end
    thread: wait() --> on_exit(code)             entry(payload, descriptors)
    tell(message) -----------------------------> parent_messages
    stop(): close the pipe, wait, then kill

A fresh interpreter is started (no fork, no import of the user's main module), so programs need no guard around
``LLM(...)``. The child is in a process group of its own: Ctrl-C in a terminal reaches only the parent, which decides.
A service manager that sends SIGTERM to every process of a service reaches the child, which therefore ignores it.
"""

import contextlib
import ctypes
import json
import logging
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

logger = logging.getLogger("octavo.process")

_PR_SET_PDEATHSIG = 1
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from octavo.executor.child_process import run_child; run_child()"
)
_LENGTH = struct.Struct("<Q")

on_parent_death: list[Callable[[], None]] = []
"""Called in a child, before it ends, when its parent is gone: what must be removed from the file system."""

parent_messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
"""In a child: what its parent has told it, beyond the payload."""


class ChildProcess:
    """One child. ``entry`` is ``module:function``, called there as ``function(payload, fds)``."""

    def __init__(
        self,
        name: str,
        entry: str,
        payload: bytes,
        pass_fds: Sequence[int] = (),
        on_exit: Callable[[int], None] | None = None,
        huge_pages: bool = False,
    ) -> None:
        """``huge_pages``: its heap is made of them, as far as the system grants any."""
        self.name = name
        paths = [path for path in sys.path if path]
        command = [sys.executable, "-P", "-c", _BOOT, f"octavo-{name}", json.dumps(paths), entry]
        # The kernel ties the death signal to the thread that starts the child. Only the main thread lasts as long as
        # the process; a child of another thread has the pipe alone.
        tied = threading.current_thread() is threading.main_thread()
        options = json.dumps({"parent": os.getpid() if tied else None, "fds": list(pass_fds)})
        self._process = subprocess.Popen(
            [*command, options],
            stdin=subprocess.PIPE,
            pass_fds=tuple(pass_fds),
            process_group=0,
            env=_with_huge_pages(os.environ) if huge_pages else None,
        )
        self.pid = self._process.pid
        self.tell(payload)
        self._on_exit = on_exit
        self._waiter = threading.Thread(target=self._wait, name=f"octavo-wait-{name}", daemon=True)
        self._waiter.start()

    def tell(self, message: bytes) -> None:
        """Send a message. Only small ones are sure not to wait for the child to read."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it is gone already; wait() tells
                self._process.stdin.write(_LENGTH.pack(len(message)) + message)
                self._process.stdin.flush()

    def _wait(self) -> None:
        code = self._process.wait()
        if self._on_exit is not None:
            self._on_exit(code)

    def wait(self, seconds: float) -> int | None:
        """Its exit status (negative: the signal that ended it), or None if it has none after so long."""
        self._waiter.join(seconds)
        return self._process.returncode

    def stop(self, grace_seconds: float = 2.0) -> None:
        """Let it end by itself, then by force. Returns when it is gone. May be called twice."""
        self.release()
        if self._waiter is threading.current_thread():
            return  # told of the end by the end itself
        self._waiter.join(grace_seconds)
        if self._waiter.is_alive():
            logger.warning("%s (pid %d) did not end within %g s and is killed", self.name, self.pid, grace_seconds)
            self.kill()
            self._waiter.join()

    def release(self) -> None:
        """Close the pipe: the child ends by itself as soon as it notices."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def _with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program whose heap is to lie in huge pages (glibc; others do not read it).

    A step reads all weights once, and with pages of 4 KiB a good part of that time goes into finding them: decoding
    SmolLM2-135M in a virtual machine took 11 % less time with huge pages at one row, 5 % at 8 and 32.
    """
    asked = environment.get("GLIBC_TUNABLES")
    setting = "glibc.malloc.hugetlb=1"
    return {**environment, "GLIBC_TUNABLES": setting if not asked else f"{asked}:{setting}"}


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def run_child() -> None:
    """The first thing a child does; arguments and payload come from ``ChildProcess``."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, _, entry, options = sys.argv[1:]
    wanted = json.loads(options)
    if wanted["parent"] is not None:
        die_with_parent(wanted["parent"])
    stream = os.fdopen(0, "rb", buffering=0, closefd=False)
    payload = _read_message(stream.fileno())
    if payload is None:
        os._exit(1)
    watcher = threading.Thread(target=_watch_parent, args=(stream.fileno(),), name="octavo-watch-parent", daemon=True)
    watcher.start()
    module, _, function = entry.partition(":")
    getattr(import_module(module), function)(payload, wanted["fds"])


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when the thread of ``parent`` that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def _read_message(fd: int) -> bytes | None:
    """The next message; None at the pipe's end."""
    length = _read_exactly(fd, _LENGTH.size)
    return None if length is None else _read_exactly(fd, _LENGTH.unpack(length)[0])


def _read_exactly(fd: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = os.read(fd, count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _watch_parent(fd: int) -> None:
    """Hears the parent until it closes the pipe or is gone, then ends this process, whatever it is doing."""
    while (message := _read_message(fd)) is not None:
        parent_messages.put(message)
    for action in on_parent_death:
        action()
    os._exit(0)
