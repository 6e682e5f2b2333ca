"""Each test of this folder ends what it starts, and fails if anything is left on the machine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import children, orphaned_folders, shared_memory, until
from scripted_transport import text_tokenizer
from server_process import ServerProcess


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    text_tokenizer(folder)
    return folder


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    processes, memory, orphans = set(children()), shared_memory(), orphaned_folders()
    yield
    until(lambda: set(children()) <= processes, "child processes ended")
    assert shared_memory() <= memory
    assert orphaned_folders() <= orphans


@pytest.fixture
def serve(tokenizer_folder: Path, nothing_is_left: None) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a server around a worker of the tests."""
    servers: list[ServerProcess] = []

    def start(*settings: Any, **named: Any) -> ServerProcess:
        servers.append(ServerProcess.of_worker(tokenizer_folder, *settings, **named))
        return servers[-1]

    yield start
    for server in servers:
        server.clean_up()
