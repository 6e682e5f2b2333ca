"""Sockets of several processes at one address: connections are spread over those that listen, and a clash is told."""

import contextlib
import socket
from pathlib import Path

import pytest

from octavo.api.listener import another_listener, open_listener, open_unix_listener
from octavo.core.errors import ConfigurationError


def connections(address: tuple[str, int], listeners: list[socket.socket], count: int) -> list[int]:
    """How many of so many connections each listener has."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(address, timeout=5))
        return [len(accepted(listener)) for listener in listeners]


def accepted(listener: socket.socket) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, address = listener.accept()
            connection.close()
            found.append(address)
    return found


def test_connections_are_spread_over_those_that_listen() -> None:
    with open_listener("127.0.0.1", 0, shared=True) as first, another_listener(first) as second:
        assert second.getsockname() == first.getsockname()
        assert connections(first.getsockname(), [first], 20) == [20], "the second does not listen yet"
        second.listen()
        counts = connections(first.getsockname(), [first, second], 100)
        assert sum(counts) == 100 and min(counts) > 15


@pytest.mark.parametrize("shared", [True, False])
def test_a_port_that_another_server_shares_is_in_use(shared: bool) -> None:
    with open_listener("127.0.0.1", 0, shared=True) as first:
        with pytest.raises(ConfigurationError, match="in use"):
            open_listener("127.0.0.1", first.getsockname()[1], shared)
        assert connections(first.getsockname(), [first], 5) == [5]


def test_a_port_can_be_shared_that_was_asked_for() -> None:
    with open_listener("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with open_listener("127.0.0.1", port, shared=True) as first, another_listener(first) as second:
        assert first.getsockname()[1] == second.getsockname()[1] == port


def test_a_unix_socket_is_handed_on(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with open_unix_listener(path) as first, another_listener(first) as second, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        assert len(accepted(second)) == 1
