"""What this test run has started or made on the machine: processes, socket folders, shared memory."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def children(pid: int | None = None) -> list[int]:
    """Process ids of all descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(folder.name)] = int(fields[1])
    found: list[int] = []
    front = [os.getpid() if pid is None else pid]
    while front:
        front = [child for child, parent in parents.items() if parent in front]
        found += front
    return found


def gone(pid: int) -> bool:
    """True if the process does not run any more (it may wait for its parent to notice)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def folders(pid: int | None = None) -> list[Path]:
    """Socket folders that a process (or any) has made."""
    owner = "[0-9]*" if pid is None else str(pid)
    return sorted(Path(tempfile.gettempdir()).glob(f"octavo-{owner}-*"))


def orphaned_folders() -> set[Path]:
    """Socket folders whose process is gone. (Other programs of this machine have folders, too.)"""
    return {folder for folder in folders() if gone(int(folder.name.split("-")[1]))}


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> float:
    """Wait for something that other processes bring about; fails after ``seconds``. Returns how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"{what}: not after {seconds:g} s")
        time.sleep(0.02)
    return time.monotonic() - began
