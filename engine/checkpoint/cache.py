"""The cache folder, and building a thing in it exactly once whatever else runs or dies meanwhile."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import CheckpointError
from .progress import Progress


def cache_folder() -> Path:
    """``$OCTAVO_CACHE``, else ``$XDG_CACHE_HOME/octavo``, else ``~/.cache/octavo``. Not created here."""
    own = os.environ.get("OCTAVO_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "octavo"


def build_once(
    target: Path, complete: Callable[[Path], bool], build: Callable[[Path], None], progress: Progress
) -> Path:
    """Return ``target``, a folder, after calling ``build(partial folder)`` if it is not ``complete`` yet.

    The folder appears under its name only when whole: it is built beside it and renamed. Processes that want it at
    the same time wait for the first one; a lock of the kernel's, which dies with its holder, tells them apart, so what
    a killed process left behind is built anew. Raises ``CheckpointError`` where the cache cannot be written.
    """
    if complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock"), progress):
            if not complete(target):
                partial = target.with_name(f"{target.name}.partial")
                for leftover in (partial, target):
                    if leftover.exists():
                        shutil.rmtree(leftover)
                partial.mkdir()
                try:
                    build(partial)
                    partial.rename(target)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the model cache {target.parent}: {error.strerror or error}; free some space there or name "
            "another folder in the environment variable OCTAVO_CACHE"
        ) from error
    return target


def require_space(folder: Path, num_bytes: int) -> None:
    """Raise ``CheckpointError`` if the file system of ``folder`` has fewer than ``num_bytes`` bytes left."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise CheckpointError(
            f"{folder.parent} has {free / 1e9:.1f} GB left and {num_bytes / 1e9:.1f} GB are needed; free some space "
            "there or name another folder in the environment variable OCTAVO_CACHE"
        )


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file ``path`` alone. Says so before it waits for another process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another process is preparing this model; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
